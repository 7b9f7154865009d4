"""What a sweep shows on a terminal when it ends."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from ..report.entries import MISSING
from ..report.words import digits, estimate_of, name_of
from .outcome import judged_by
from .points import label
from .results import GridCell, bests, cells, ranked
from .runner import SweepOutcome

MOST_ROWS = 30


def ranking(swept: SweepOutcome, most: int = MOST_ROWS) -> Table:
    """The cells, the best first; a caption tells how many are left out."""
    metric, found = judged_by(swept.outcomes), cells(swept.outcomes)
    order = ranked(found, metric)
    methods = len({cell.point.method for cell in found}) > 1 or bool(swept.plan.spec.variants)
    keys = [key for key in swept.plan.keys if any(_shown(cell, key, methods) for cell in found)]
    seeds = swept.plan.spec.seeds
    table = Table(caption=_caption(len(order), most), caption_justify="left")
    table.add_column("method" if methods else "", style="bold", overflow="fold")
    for key in keys:
        table.add_column(key, justify="right")
    if seeds > 1:
        table.add_column("seeds", justify="right")
    for name in (_heading(swept), "best", "rounds", "seconds"):
        table.add_column(name, justify="right")
    table.add_column("status", overflow="fold")
    for place, cell in enumerate(order[:most]):
        first = cell.point.method if methods else str(place + 1)
        settings = [label(cell.point.settings.get(key)) for key in keys]
        table.add_row(*map(escape, [first, *settings, *([str(seeds)] if seeds > 1 else []), *_numbers(cell, metric)]))
    return table


def _shown(cell: GridCell, key: str, methods: bool) -> bool:
    """Whether a setting has a column: those that are part of the method's name have none."""
    return key in cell.point.numbers or key in cell.point.task or (not methods and key in cell.point.settings)


def _heading(swept: SweepOutcome) -> str:
    metric, last = judged_by(swept.outcomes), swept.plan.spec.last
    name = name_of(metric) if metric else "metric"
    return f"final {name}" if last == 1 else f"{name}, mean of the last {last}"


def _numbers(cell: GridCell, metric: str | None) -> list[str]:
    rounds = sorted({one.rounds for one in cell.outcomes})
    seconds = sum(one.seconds for one in cell.outcomes) / len(cell.outcomes)
    return [
        estimate_of(metric or "", cell.value),
        estimate_of(metric or "", cell.best),
        f"{rounds[0]:,}" if len(rounds) == 1 else f"{rounds[0]:,}{MISSING}{rounds[-1]:,}",
        digits(seconds),
        cell.status,
    ]


def _caption(number: int, most: int) -> str | None:
    return f"and {number - most:,} more, all of them in results.csv" if number > most else None


def champions(swept: SweepOutcome) -> Table | None:
    """The best of each method for each task, as papers print it; None where that says no more than the ranking."""
    metric = judged_by(swept.outcomes)
    table = bests(cells(swept.outcomes), metric)
    tasks = list(dict.fromkeys(task for row in table.values() for task in row))
    if len(table) == 1 and len(tasks) == 1:
        return None
    tuned = any(len(_numbers_of(cell)) for row in table.values() for cell in row.values())
    shown = Table(title=f"Best {name_of(metric) if metric else 'metric'} of each method", title_justify="left")
    shown.add_column("method", style="bold", overflow="fold")
    for task in tasks:
        shown.add_column(escape(task) or (name_of(metric) if metric else "metric"), justify="right")
        if tuned and len(tasks) == 1:
            shown.add_column("with", overflow="fold")
    leaders = {task: _leader(table, task, metric) for task in tasks}
    for method, row in table.items():
        texts = [escape(method or "-")]
        for task in tasks:
            cell = row.get(task)
            text = MISSING if cell is None else estimate_of(metric or "", cell.value)
            texts.append(f"[bold green]{text}[/]" if cell is not None and cell is leaders[task] else text)
            if tuned and len(tasks) == 1:
                texts.append(escape("" if cell is None else ", ".join(_numbers_of(cell))))
        shown.add_row(*texts)
    return shown


def _leader(table: dict[str, dict[str, GridCell]], task: str, metric: str | None) -> GridCell | None:
    found: Sequence[GridCell] = [row[task] for row in table.values() if task in row]
    first = ranked(found, metric)[0]
    return first if first.value is not None and len(found) > 1 else None


def _numbers_of(cell: GridCell) -> list[str]:
    return [f"{key} {label(value)}" for key, value in cell.point.numbers.items()]
