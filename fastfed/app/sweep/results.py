"""The numbers of a sweep: a row per run for other programs, a cell per setting for tables and pictures."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ...files import write_whole
from ..report.statistics import Estimate, estimate
from .outcome import PointOutcome, better, judged_by
from .points import Point, label
from .runner import SweepOutcome

CSV, JSON = "results.csv", "results.json"


@dataclass(frozen=True)
class GridCell:
    """The points that differ only in their seed, and what they came to."""

    point: Point
    outcomes: tuple[PointOutcome, ...]

    @cached_property
    def value(self) -> Estimate | None:
        """The mean over seeds; None unless every seed has a value, as a mean over those that are left would flatter."""
        return self._over_seeds([one.value for one in self.outcomes])

    @property
    def best(self) -> Estimate | None:
        return self._over_seeds([one.best for one in self.outcomes])

    def _over_seeds(self, values: Sequence[float | None]) -> Estimate | None:
        found = [value for value in values if value is not None]
        return estimate(found) if len(found) == len(values) else None

    @property
    def mean(self) -> float | None:
        return None if self.value is None else self.value.mean

    @property
    def status(self) -> str:
        """What became of the runs: "done", or "2 done, 1 diverged at round 7"."""
        words = Counter(one.status for one in self.outcomes)
        if len(words) == 1:
            return next(iter(words))
        return ", ".join(f"{number} {word}" for word, number in words.items())


def cells(outcomes: Sequence[PointOutcome]) -> list[GridCell]:
    """Outcomes by their settings, in the order of the first seed of each."""
    found: dict[str, list[PointOutcome]] = {}
    for one in outcomes:
        found.setdefault(one.point.cell, []).append(one)
    return [GridCell(seeds[0].point, tuple(seeds)) for seeds in found.values()]


def ranked(found: Sequence[GridCell], metric: str | None) -> list[GridCell]:
    """The best first, those without a value last."""
    return sorted(found, key=lambda cell: better(metric or "", cell.mean))


def task_of(point: Point) -> str:
    """What is learnt, in words; "" where all points learn the same."""
    return ", ".join(f"{key.partition('.')[2]} {label(value)}" for key, value in point.task.items())


def bests(found: Sequence[GridCell], metric: str | None) -> dict[str, dict[str, GridCell]]:
    """The best cell of each method for each task: method -> task -> cell. What tables of papers show."""
    table: dict[str, dict[str, GridCell]] = {}
    for cell in ranked(found, metric):
        table.setdefault(cell.point.method, {}).setdefault(task_of(cell.point), cell)
    order = list(dict.fromkeys(cell.point.method for cell in found))
    return {method: table[method] for method in order}


# ---- files ----------------------------------------------------------------------------------------------------------


def rows(swept: SweepOutcome) -> list[dict[str, Any]]:
    """A row per run, in the plan's order: its settings, its seed, and what came out."""
    return [_row(swept, one) for one in swept.outcomes]


def _row(swept: SweepOutcome, one: PointOutcome) -> dict[str, Any]:
    point = one.point
    return {
        "point": point.name,
        **({"variant": point.variant} if swept.plan.spec.variants else {}),
        **{key: point.settings.get(key) for key in swept.plan.keys},
        "seed": point.seed,
        "status": one.status,
        "metric": one.metric,
        "value": one.value,
        "best": one.best,
        "rounds": one.rounds,
        "bytes": one.bytes,
        "seconds": one.seconds,
        "error": one.error,
    }


def write(swept: SweepOutcome) -> list[Path]:
    """Writes results.csv and results.json into the sweep's directory; each whole or not at all."""
    table = rows(swept)
    told = {
        "metric": judged_by(swept.outcomes),
        "last": swept.plan.spec.last,
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
