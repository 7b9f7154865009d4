"""The pictures of a sweep as data: matrices, lines and ranks; `drawing` puts them on paper."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..report.charts import Chart, ChartAxis
from ..report.series import LEAST_FOR_BAND, Series, possible
from ..report.summary import is_share
from ..report.words import name_of
from .cells import GridCell, cells, chosen, ranked, task_of
from .grid import is_number
from .outcome import PointOutcome, better, chosen_by, judged_by
from .points import label
from .runner import SweepOutcome

_RATES = ("client.lr", "server.lr")  # across and up, as in the papers
_MOST_TASKS, _MOST_PAIRS, _MOST_LINES = 12, 6, 12


@dataclass(frozen=True)
class Matrix:
    """A metric by two settings, for one method: `values[i][j]` is at `up[i]`, `across[j]`; None where there is none,
    because the point failed, diverged, or was never run. Where there are more than two settings, the others are those
    that are chosen. `chosen` is the place (i, j) of the chosen point, None where there is none."""

    title: str
    across: list[float]
    up: list[float]
    values: list[list[float | None]]
    chosen: tuple[int, int] | None = None


@dataclass(frozen=True)
class HeatMap:
    """A matrix for each method, on the same scales."""

    id: str
    title: str
    metric: str
    across: str
    up: str
    panels: list[Matrix]


@dataclass(frozen=True)
class Curves:
    """All runs of each method by round, the best first: (label, [(title, [curve, ...]), ...])."""

    id: str
    title: str
    metric: str
    panels: list[tuple[str, list[list[tuple[int, float | None]]]]]


Picture = HeatMap | Curves | Chart


def pictures(swept: SweepOutcome) -> list[Picture]:
    """What there is to draw: heat maps of two numeric settings, a line chart for each, the ranks of all runs."""
    return of_outcomes(swept.outcomes)


def of_outcomes(outcomes: Sequence[PointOutcome]) -> list[Picture]:
    """As `pictures`, of what became of a sweep's points."""
    metric, found = judged_by(outcomes), cells(outcomes)
    if metric is None or all(cell.value is None for cell in found):
        return []
    maps = heat_maps(found, metric)
    select = chosen_by(outcomes)
    if select not in (metric, None) and any(cell.choice is not None for cell in found):
        maps += heat_maps(found, str(select), of_choice=True)
    return [*maps, *best_rates(found), *sensitivities(found, metric), *ranks(found, metric)]


def numeric_keys(found: Sequence[GridCell]) -> list[str]:
    """The settings with at least two values, all of them numbers; learning rates first."""
    seen: dict[str, list[Any]] = {}
    for cell in found:
        for key, value in cell.point.settings.items():
            seen.setdefault(key, []).append(value)
    keys = [key for key, values in seen.items() if all(map(is_number, values)) and len(set(values)) > 1]
    return sorted(keys, key=lambda key: _RATES.index(key) if key in _RATES else len(_RATES))


# ---- heat maps ------------------------------------------------------------------------------------------------------


def heat_maps(found: Sequence[GridCell], metric: str, *, of_choice: bool = False) -> list[HeatMap]:
    """One for every task and every two numeric settings that are tuned: AFO's Figures 5 to 11. `of_choice`: the metric
    is the column that settings are chosen by, not the one that is reported."""
    maps = []
    tasks = list(dict.fromkeys(task_of(cell.point) for cell in found))
    for task in tasks[:_MOST_TASKS]:
        own = [cell for cell in found if task_of(cell.point) == task]
        keys = [key for key in numeric_keys(own) if key not in own[0].point.task]
        for across, up in list(itertools.combinations(keys, 2))[:_MOST_PAIRS]:
            panels = [
                _matrix(method, cells_of, across, up, of_choice)
                for method, cells_of in _by_method(own).items()
                if all(across in cell.point.settings and up in cell.point.settings for cell in cells_of)
            ]
            if any(value is not None for panel in panels for row in panel.values for value in row):
                name = _id(
                    "heat_map", up, across, *([task] if len(tasks) > 1 else []), *([metric] if of_choice else [])
                )
                maps.append(HeatMap(name, task, metric, across, up, panels))
    return maps


def _matrix(title: str, found: Sequence[GridCell], across: str, up: str, of_choice: bool) -> Matrix:
    columns = sorted({cell.point.settings[across] for cell in found})
    lines = sorted({cell.point.settings[up] for cell in found})
    at: dict[tuple[float, float], list[GridCell]] = {}
    for cell in found:
        at.setdefault((cell.point.settings[up], cell.point.settings[across]), []).append(cell)
    values = [[_chosen_mean(at.get((line, column), []), of_choice) for column in columns] for line in lines]
    best = chosen(found)[0]
    place = (lines.index(best.point.settings[up]), columns.index(best.point.settings[across]))
    return Matrix(title, columns, lines, values, None if best.choice is None else place)


def _chosen_mean(found: Sequence[GridCell], of_choice: bool) -> float | None:
    if not found:
        return None
    estimate = chosen(found)[0].choice if of_choice else chosen(found)[0].value
    return None if estimate is None else estimate.mean


# ---- one rate by the other ------------------------------------------------------------------------------------------


def best_rates(found: Sequence[GridCell]) -> list[Chart]:
    """The server learning rate that is chosen for every client learning rate, a line per method: AFO's Figure 12, one
    for every task. Left out, as there, is where nothing was learnt: where the chosen value is within a tenth of the
    worst of all."""
    tasks = list(dict.fromkeys(task_of(cell.point) for cell in found))
    own = {task: [cell for cell in found if task_of(cell.point) == task] for task in tasks[:_MOST_TASKS]}
    charts = [_best_rate(task if len(tasks) > 1 else "", cells_of) for task, cells_of in own.items()]
    return [chart for chart in charts if chart is not None]


def _best_rate(task: str, found: Sequence[GridCell]) -> Chart | None:
    across, up = _RATES
    both = [cell for cell in found if across in cell.point.settings and up in cell.point.settings]
    xs, ys = (sorted({cell.point.settings[key] for cell in both}) for key in _RATES)
    if len(xs) < 2 or len(ys) < 2:
        return None
    learnt = _learnt(both)
    series = []
    for style, (method, cells_of) in enumerate(list(_by_method(both).items())[:_MOST_LINES]):
        best = {x: chosen([cell for cell in cells_of if cell.point.settings[across] == x]) for x in xs}
        y = [best[x][0].point.settings[up] if best[x] and best[x][0].point.cell in learnt else None for x in xs]
        series.append(Series(f"b{style}", method or "all runs", style, 1, list(xs), y))
    of_task = f", {task}" if task else ""
    return Chart(
        id=_id("best_server_lr", *([task] if task else [])),
        title=f"Best server learning rate by client learning rate{of_task}",
        x=ChartAxis(axis_name(across), log="on" if _is_log(xs) else "no"),
        y=ChartAxis(axis_name(up), log="on" if _is_log(ys) else "no"),
        series=series,
    )


def _learnt(found: Sequence[GridCell]) -> set[str]:
    """The cells whose choice is not within a tenth of the worst."""
    values = {cell.point.cell: cell.choice.mean for cell in found if cell.choice is not None}
    select = chosen_by(one for cell in found for one in cell.outcomes) or ""
    worst = max(values.values(), key=lambda value: better(select, value), default=0.0)
    return {name for name, value in values.items() if abs(value - worst) > 0.1 * abs(worst)}


# ---- sensitivity ----------------------------------------------------------------------------------------------------


def sensitivities(found: Sequence[GridCell], metric: str) -> list[Chart]:
    """The metric by each numeric setting, a line per method: CC's Figure 3. Other settings are at their best; where
    there is only one method and one other setting, each of its values has a line. A method without the setting is a
    level line, for reference."""
    keys = numeric_keys(found)
    return [chart for key in keys if (chart := _sensitivity(found, key, keys, metric)) is not None]


def _sensitivity(found: Sequence[GridCell], key: str, keys: Sequence[str], metric: str) -> Chart | None:
    others = [other for other in keys if other != key]
    lines: dict[str, list[GridCell]] = {}
    for cell in found:
        lines.setdefault(_line_of(cell, key, others, found), []).append(cell)
    values = sorted({cell.point.settings[key] for cell in found if key in cell.point.settings})
    series = [
        _series(name, style, cells_of, key, values, metric)
        for style, (name, cells_of) in enumerate(list(lines.items())[:_MOST_LINES])
    ]
    if not any(y is not None for one in series for y in one.y):
        return None
    whose = "its" if len(others) == 1 else "their"
    tuned = f", {' and '.join(map(axis_name, others))} at {whose} best" if others and len(_by_method(found)) > 1 else ""
    return Chart(
        id=_id("sensitivity", key),
        title=f"{_capital(name_of(metric))} by {axis_name(key)}{tuned}",
        x=ChartAxis(axis_name(key), log="on" if _is_log(values) else "no"),
        y=_metric_axis(metric),
        series=series,
    )


def _line_of(cell: GridCell, key: str, others: Sequence[str], found: Sequence[GridCell]) -> str:
    task = {k: v for k, v in cell.point.task.items() if k != key}
    words = [cell.point.method, *(f"{k} {label(v)}" for k, v in task.items())]
    own = [other for other in others if other in cell.point.numbers]
    if len(own) == 1 and len(_by_method(found)) == 1:
        words.append(f"{own[0]} {label(cell.point.settings[own[0]])}")
    return ", ".join(word for word in words if word) or name_of("all runs")


def _series(name: str, style: int, found: Sequence[GridCell], key: str, values: Sequence[float], metric: str) -> Series:
    """The best cell at every value of the setting; one that has no such setting is level."""
    y: list[float | None] = []
    low: list[float | None] = []
    high: list[float | None] = []
    n = max(len(cell.outcomes) for cell in found)
    for value in values:
        here = [cell for cell in found if cell.point.settings.get(key, value) == value]
        best = chosen(here)[0].value if here else None
        y.append(None if best is None else best.mean)
        low.append(None if best is None else possible(best.mean - (best.half or 0.0), metric))
        high.append(None if best is None else possible(best.mean + (best.half or 0.0), metric))
    banded = n >= LEAST_FOR_BAND
    return Series(f"s{style}", name, style, n, list(values), y, low if banded else None, high if banded else None)


def _is_log(values: Sequence[float]) -> bool:
    """Whether values are spread over orders of magnitude."""
    return min(values) > 0 and max(values) >= 20 * min(values)


# ---- ranks ----------------------------------------------------------------------------------------------------------


def ranks(found: Sequence[GridCell], metric: str) -> list[Chart | Curves]:
    """How much each method depends on its settings: all its runs from the best to the worst, as final values by rank,
    and as curves by round that fade with their rank (FedAda2's Figure 3)."""
    methods = {name: ranked(own, metric) for name, own in _by_line(found).items()}
    if max(len(own) for own in methods.values()) < 3:
        return []
    series = [
        Series(f"r{style}", name, style, 1, [float(i + 1) for i in range(len(own))], [cell.mean for cell in own])
        for style, (name, own) in enumerate(list(methods.items())[:_MOST_LINES])
    ]
    by_rank = Chart(
        id="ranks",
        title=f"{_capital(name_of(metric))} of all settings, the best first",
        x=ChartAxis("rank of the setting", "whole"),
        y=_metric_axis(metric),
        series=series,
    )
    panels = [(name, [cell.outcomes[0].curve for cell in own]) for name, own in methods.items()]
    title = f"{_capital(name_of(metric))} by round, the best settings darkest"
    curves = Curves("ranked_curves", title, metric, panels[:_MOST_LINES])
    several = any(len(curve) > 1 for _, own in panels for curve in own)
    return [by_rank, curves] if several else [by_rank]


def _by_method(found: Sequence[GridCell]) -> dict[str, list[GridCell]]:
    methods: dict[str, list[GridCell]] = {}
    for cell in found:
        methods.setdefault(cell.point.method, []).append(cell)
    return methods


def _by_line(found: Sequence[GridCell]) -> dict[str, list[GridCell]]:
    """By method and task."""
    lines: dict[str, list[GridCell]] = {}
    for cell in found:
        name = ", ".join(word for word in (cell.point.method, task_of(cell.point)) if word)
        lines.setdefault(name or "all runs", []).append(cell)
    return lines


def _metric_axis(metric: str) -> ChartAxis:
    return ChartAxis(name_of(metric), "percent" if is_share(metric) else "number")


def axis_name(key: str) -> str:
    """A setting as axes name it."""
    return {"client.lr": "client learning rate", "server.lr": "server learning rate"}.get(key, key)


def _capital(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def _id(*parts: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", "_".join(parts).lower()).strip("_")
