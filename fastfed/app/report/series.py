"""From histories to the points of a line: places on an axis, means over seeds, bands, fewer points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from ...record.history import Row
from .entries import Entry, Group
from .statistics import estimate
from .summary import is_share

LEAST_FOR_BAND = 3  # seeds: the interval of two is twelve times as wide as what it says anything of
MOST_POINTS = 600  # of one line: a screen has no more columns
Numbers = list[float | None]


@dataclass(frozen=True)
class Series:
    """One line or one set of bars. None in `y` is a gap: no finite number there."""

    key: str
    label: str
    style: int
    n: int
    x: list[float]
    y: Numbers
    low: Numbers | None = None
    high: Numbers | None = None


def by_round(rows: Sequence[Row]) -> Numbers:
    return [float(row["round"]) for row in rows]


def by_bits(rows: Sequence[Row]) -> Numbers:
    """Sent down and up by all until then."""
    return list(accumulate(8.0 * ((row.get("bytes_down") or 0) + (row.get("bytes_up") or 0)) for row in rows))


def by_clock(rows: Sequence[Row]) -> Numbers:
    return [row.get("clock") for row in rows]


def by_epsilon(rows: Sequence[Row]) -> Numbers:
    return [row.get("epsilon") for row in rows]


Abscissa = Callable[[Sequence[Row]], Numbers]


def line(group: Group, column: str, abscissa: Abscissa = by_round, scale: float = 1.0) -> Series | None:
    """A column of a group: the mean over its seeds, with the 95% band where they are three or more, at the rounds that
    all of them have.

    Where any seed has no finite number there is a gap: a mean over those that are left would flatter. Seeds that never
    have the column are left out. None if no seed has it. `scale` divides abscissas, to the axis' unit.
    """
    whole = _line(group, column, abscissa, scale)
    return None if whole is None else thin(whole)


def _line(group: Group, column: str, abscissa: Abscissa, scale: float = 1.0) -> Series | None:
    curves = [_curve(entry, column, abscissa) for entry in group.entries if entry.has(column)]
    curves = [curve for curve in curves if curve]
    if not curves:
        return None
    rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
    x = [sum(curve[r][0] for curve in curves) / len(curves) / scale for r in rounds]
    y: Numbers = []
    low: Numbers = []
    high: Numbers = []
    for r in rounds:
        values = [value for curve in curves if (value := curve[r][1]) is not None]
        if len(values) < len(curves):
            y.append(None)
            low.append(None)
            high.append(None)
            continue
        mean = estimate(values)
        y.append(mean.mean)
        low.append(possible(mean.mean - (mean.half or 0), column))
        high.append(possible(mean.mean + (mean.half or 0), column))
    banded = len(curves) >= LEAST_FOR_BAND
    return Series(
        group.key, group.label, group.style, len(curves), x, y, low if banded else None, high if banded else None
    )


def possible(value: float, column: str) -> float:
    """An end of a band: no share is below 0 or above 1, no loss or error below 0."""
    if is_share(column):
        return min(1.0, max(0.0, value))
    return max(0.0, value) if column.endswith(("loss", "mse")) else value


def spread(group: Group, column: str, least: str, most: str) -> Series | None:
    """A column with a band between two others, each the mean over seeds: what lies between clients, not seeds."""
    middle, low, high = (_line(group, name, by_round) for name in (column, least, most))
    if middle is None:
        return None
    fits = low is not None and high is not None and low.x == high.x == middle.x
    return thin(replace(middle, low=low.y if low and fits else None, high=high.y if high and fits else None))


def thin(series: Series, most: int = MOST_POINTS) -> Series:
    """At most about `most` points: of each stretch the lowest and the highest, so that no spike is lost."""
    if len(series.x) <= most:
        return series
    length = -(-2 * len(series.x) // most)
    kept = {0, len(series.x) - 1}
    for start in range(0, len(series.x), length):
        stretch = range(start, min(start + length, len(series.x)))
        gaps = [i for i in stretch if series.y[i] is None]
        there = [i for i in stretch if series.y[i] is not None]
        kept |= {gaps[0]} if gaps else set()
        if there:
            kept |= {min(there, key=lambda i: series.y[i] or 0.0), max(there, key=lambda i: series.y[i] or 0.0)}
    chosen = sorted(kept)
    low, high = ([band[i] for i in chosen] if band is not None else None for band in (series.low, series.high))
    return replace(series, x=[series.x[i] for i in chosen], y=[series.y[i] for i in chosen], low=low, high=high)


def _curve(entry: Entry, column: str, abscissa: Abscissa) -> dict[int, tuple[float, float | None]]:
    """Round -> abscissa and value, of the rows that have the column and a abscissa."""
    rows = entry.history.rounds
    return {
        int(row["round"]): (x, row[column])
        for row, x in zip(rows, abscissa(rows), strict=True)
        if column in row and x is not None
    }
