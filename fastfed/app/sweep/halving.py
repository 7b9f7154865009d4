"""Successive halving: all points run a few rounds, the better part of them more, the best to the end.

Points compete with those that learn the same task by the same method, and differ in numbers only, so that every method
keeps its best. Of each such contest one in `eta` goes on after each rung; a rung has `eta` times the rounds of the one
before. Points go on from their checkpoints, so that no round is run twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..config import ConfigError
from ..report.entries import plain
from .outcome import PointOutcome, better, chosen_by
from .points import Plan, Point


def contest(point: Point) -> tuple[str, str]:
    """Whom a point competes with: its task and its method."""
    return ", ".join(f"{key} {plain(value)}" for key, value in point.task.items()), point.method


def rungs(plan: Plan, eta: int) -> list[int]:
    """After how many rounds points are dropped, and at last the rounds of a whole run.

    Rungs fall on rounds that are evaluated anyway, where there are enough of them.
    """
    if eta < 2:
        raise ConfigError(f"--eta: must be a whole number >= 2, got {eta}")
    rounds, every = _rounds(plan)
    cells: dict[tuple[str, str], set[str]] = {}
    for point in plan.points:
        cells.setdefault(contest(point), set()).add(point.cell)
    most = max(map(len, cells.values()))
    steps = 0
    while eta ** (steps + 1) <= most:
        steps += 1
    found = [_evaluated(rounds / eta ** (steps - i), every) for i in range(steps)]
    return [*dict.fromkeys(r for r in found if r < rounds), rounds]


def _rounds(plan: Plan) -> tuple[int, int]:
    """The rounds of every run, and how often it is evaluated."""
    tables: list[Mapping[str, Any]] = [config.resolved()["run"] for config in plan.configs.values()]
    all_rounds = {table["rounds"] for table in tables}
    if len(all_rounds) != 1 or None in all_rounds:
        told = ", ".join(sorted(map(str, all_rounds)))
        raise ConfigError(f"--halve: all points must have the same run.rounds, got {told}")
    return int(all_rounds.pop()), max(int(table["evaluate_every"]) for table in tables)


def _evaluated(rounds: float, every: int) -> int:
    return math.ceil(rounds / every) * every if every else max(1, math.ceil(rounds))


def survivors(outcomes: Iterable[PointOutcome], eta: int) -> set[str]:
    """The cells that go on: of every contest one in `eta`, at least one, by their means over seeds."""
    contests: dict[tuple[str, str], dict[str, list[PointOutcome]]] = {}
    for one in outcomes:
        contests.setdefault(contest(one.point), {}).setdefault(one.point.cell, []).append(one)
    kept: set[str] = set()
    for cells in contests.values():
        ranked = sorted(cells, key=lambda cell: _rank(cells[cell]))
        kept |= set(ranked[: max(1, len(ranked) // eta)])
    return kept


def _rank(seeds: Sequence[PointOutcome]) -> float:
    """By the mean over seeds; a cell with a seed that has no value comes last."""
    select = chosen_by(seeds)
    values = [one.choice for one in seeds if one.choice is not None]
    if select is None or len(values) < len(seeds):
        return math.inf
    return better(select, math.fsum(values) / len(values))
