"""A sweep that is on disk: what became of its points, without its file."""

from __future__ import annotations

import json
from pathlib import Path

from .. import runs
from .outcome import PointOutcome, look
from .points import Point
from .runner import POINTS, SWEEP
from .spec import Spec, Window


def outcomes_of(home: Path) -> list[PointOutcome]:
    """What became of the points of the sweep in a directory, as it was asked for last."""
    try:
        told = json.loads((home / SWEEP).read_text())
        spec = Spec(
            metric=told["metric"], select=told["select"], window=Window(told.get("last"), told.get("last_rounds"))
        )
        points = [Point(one["name"], one["variant"], one["settings"], one["seed"], {}) for one in told["points"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise runs.DamagedRun(f"{home / SWEEP}: is damaged: {error}") from error
    return [look(point, home / POINTS / point.name, spec) for point in points]
