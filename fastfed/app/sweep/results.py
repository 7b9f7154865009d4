"""The numbers of a sweep for other programs: a row per run."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...files import write_whole
from .outcome import PointOutcome, chosen_by, judged_by
from .points import Plan, Point
from .runner import SweepOutcome

CSV, JSON = "results.csv", "results.json"


def rows(swept: SweepOutcome) -> list[dict[str, Any]]:
    """A row per run, in the plan's order: its settings, its seed, and what came out."""
    return [_row(swept, one) for one in swept.outcomes]


def identity(plan: Plan, point: Point) -> dict[str, Any]:
    """The columns that say which run a row is of."""
    return {
        "point": point.name,
        **({"variant": point.variant} if plan.spec.variants else {}),
        **{key: point.settings.get(key) for key in plan.keys},
        "seed": point.seed,
    }


def _row(swept: SweepOutcome, one: PointOutcome) -> dict[str, Any]:
    return {
        **identity(swept.plan, one.point),
        "status": one.status,
        "metric": one.metric,
        "value": one.value,
        "best": one.best,
        "select": one.select,
        "choice": one.choice,
        "rounds": one.rounds,
        "bytes": one.bytes,
        "gradients": one.gradients,
        "seconds": one.seconds,
        "error": one.error,
    }


def write(swept: SweepOutcome) -> list[Path]:
    """Writes results.csv and results.json into the sweep's directory; each whole or not at all."""
    table = rows(swept)
    told = {
        "metric": judged_by(swept.outcomes),
        "select": chosen_by(swept.outcomes),
        "last": swept.plan.spec.window.evaluations,
        "last_rounds": swept.plan.spec.window.rounds,
        "interrupted": swept.interrupted,
        "rungs": swept.rungs,
        "rows": table,
    }
    files = {CSV: _csv(table), JSON: json.dumps(told, indent=1, default=str) + "\n"}
    for name, text in files.items():
        write_whole(swept.path / name, text)
    return [swept.path / name for name in files]


def _csv(table: Sequence[Mapping[str, Any]]) -> str:
    """Nothing for None; tables and lists as JSON."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(table[0]), lineterminator="\n")
    writer.writeheader()
    for row in table:
        writer.writerow({key: json.dumps(v) if isinstance(v, (dict, list)) else v for key, v in row.items()})
    return text.getvalue()
