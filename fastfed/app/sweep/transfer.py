"""Tuned on one task, run on the others: every method takes along the numbers that were chosen there (DSGD's point).

``[sweep] tune_on = { "data.alpha" = 0.1 }`` names the task by values on the sweep's axes of data or model. All points
of that task are run; of the other tasks only those with the numbers that each method was best with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..config import ConfigError
from .cells import cells, chosen, task_of
from .outcome import FAILED, UNTUNED, PointOutcome
from .points import Plan, Point

_NOTHING_CHOSEN = "sweep.tune_on: no run of this method on that task came to a value that settings are chosen by"


def tuned_points(plan: Plan) -> list[Point]:
    """The points of the task that settings are chosen on: all, where none is named."""
    wanted = plan.spec.tune_on
    found = [point for point in plan.points if _matches(point, wanted)]
    if not found:
        told = ", ".join(f"{key} = {value!r}" for key, value in wanted.items())
        raise ConfigError(f"sweep.tune_on: no point of the sweep has {told}; name values of its axes data.* or model.*")
    return found


def _matches(point: Point, wanted: Mapping[str, Any]) -> bool:
    return all(key in point.task and point.task[key] == value for key, value in wanted.items())


def other_points(plan: Plan, tuned: Iterable[PointOutcome]) -> list[Point]:
    """The points of the other tasks that have the numbers which their methods were `tuned` to."""
    done = list(tuned)
    names = {one.point.name for one in done}
    best = {method: _numbers(own) for method, own in _by_method(done).items()}
    rest = [point for point in plan.points if point.name not in names]
    return [point for point in rest if point.numbers == best.get(point.method)]


def untuned(plan: Plan, tuned: Iterable[PointOutcome]) -> list[PointOutcome]:
    """What became of the other tasks of methods for which nothing could be chosen: of each task and seed one point,
    which stands for all, as none is run. A method that failed fails there, too; one that diverged is not tuned."""
    done = list(tuned)
    names = {one.point.name for one in done}
    without = {method: own for method, own in _by_method(done).items() if _numbers(own) is None}
    found: dict[tuple[Any, ...], PointOutcome] = {}
    for point in plan.points:
        if point.method in without and point.name not in names:
            failed = any(one.status == FAILED for one in without[point.method])
            outcome = PointOutcome(point, FAILED if failed else UNTUNED, _NOTHING_CHOSEN)
            found.setdefault((point.method, task_of(point), point.seed), outcome)
    return list(found.values())


def _by_method(outcomes: Sequence[PointOutcome]) -> dict[str, list[PointOutcome]]:
    found: dict[str, list[PointOutcome]] = {}
    for one in outcomes:
        found.setdefault(one.point.method, []).append(one)
    return found


def _numbers(outcomes: Sequence[PointOutcome]) -> dict[str, float] | None:
    """What was chosen; None where nothing came out that could be."""
    first = chosen(cells(outcomes))[0]
    return None if first.choice is None else first.point.numbers
