"""Points that differ only in their seed, as one: what tables and pictures show, and what settings are chosen from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ..report.statistics import Estimate, estimate
from .outcome import PointOutcome, better, chosen_by
from .points import Point, label


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

    @cached_property
    def choice(self) -> Estimate | None:
        """As `value`, of the column that settings are chosen by."""
        return self._over_seeds([one.choice for one in self.outcomes])

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
    """The best by the metric that is reported first, those without a value last."""
    return sorted(found, key=lambda cell: better(metric or "", cell.mean))


def chosen(found: Sequence[GridCell]) -> list[GridCell]:
    """The one that is chosen first, then those that would be chosen without it; those without a value last."""
    select = chosen_by(one for cell in found for one in cell.outcomes) or ""
    return sorted(found, key=lambda cell: better(select, None if cell.choice is None else cell.choice.mean))


def task_of(point: Point) -> str:
    """What is learnt, in words; "" where all points learn the same."""
    return ", ".join(f"{key.partition('.')[2]} {label(value)}" for key, value in point.task.items())


def bests(found: Sequence[GridCell]) -> dict[str, dict[str, GridCell]]:
    """The chosen cell of each method for each task: method -> task -> cell. What tables of papers show."""
    table: dict[str, dict[str, GridCell]] = {}
    for cell in chosen(found):
        table.setdefault(cell.point.method, {}).setdefault(task_of(cell.point), cell)
    order = list(dict.fromkeys(cell.point.method for cell in found))
    return {method: table[method] for method in order}
