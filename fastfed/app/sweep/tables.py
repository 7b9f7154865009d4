"""What a sweep shows on a terminal when it ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.markup import escape
from rich.table import Table

from ..report.entries import MISSING
from ..report.words import digits, estimate_of, name_of, prior_name, value_of
from .cells import GridCell, bests, cells, chosen, ranked
from .outcome import chosen_by, judged_by
from .points import label
from .runner import SweepOutcome

MOST_ROWS = 30


def ranking(swept: SweepOutcome, most: int = MOST_ROWS) -> Table:
    """The cells, the best first; a caption tells how many are left out."""
    metric, select, found = judged_by(swept.outcomes), chosen_by(swept.outcomes), cells(swept.outcomes)
    order = chosen(found)
    methods = len({cell.point.method for cell in found}) > 1 or bool(swept.plan.spec.variants)
    keys = [key for key in swept.plan.keys if any(_shown(cell, key, methods) for cell in found)]
    seeds = swept.plan.spec.seeds
    table = Table(caption=_caption(len(order), most), caption_justify="left")
    table.add_column("method" if methods else "", style="bold", overflow="fold")
    for key in keys:
        table.add_column(key, justify="right")
    if seeds > 1:
        table.add_column("seeds", justify="right")
    window = swept.plan.spec.window
    headings = [window.words(metric, name_of(metric)) if metric else "metric", "best", "rounds", "seconds"]
    if select != metric and select is not None:
        headings.insert(0, f"chosen by {window.words(select, name_of(select))}")
    for name in headings:
        table.add_column(name, justify="right")
    table.add_column("status", overflow="fold")
    for place, cell in enumerate(order[:most]):
        first = cell.point.method if methods else str(place + 1)
        settings = [label(cell.point.settings.get(key)) for key in keys]
        table.add_row(
            *map(escape, [first, *settings, *([str(seeds)] if seeds > 1 else []), *_numbers(cell, metric, select)])
        )
    return table


def _shown(cell: GridCell, key: str, methods: bool) -> bool:
    """Whether a setting has a column: those that are part of the method's name have none."""
    return key in cell.point.numbers or key in cell.point.task or (not methods and key in cell.point.settings)


def _numbers(cell: GridCell, metric: str | None, select: str | None) -> list[str]:
    rounds = sorted({one.rounds for one in cell.outcomes})
    seconds = sum(one.seconds for one in cell.outcomes) / len(cell.outcomes)
    choice = [] if select in (metric, None) else [estimate_of(str(select), cell.choice)]
    return [
        *choice,
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
    metric, select = judged_by(swept.outcomes), chosen_by(swept.outcomes)
    table = bests(cells(swept.outcomes))
    tasks = list(dict.fromkeys(task for row in table.values() for task in row))
    if len(table) == 1 and len(tasks) == 1:
        return None
    tuned = any(len(_numbers_of(cell)) for row in table.values() for cell in row.values())
    by = f", settings chosen by {name_of(select)}" if tuned and select not in (metric, None) else ""
    shown = Table(title=f"Best {name_of(metric) if metric else 'metric'} of each method{by}", title_justify="left")
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
    priors = {task: _prior_of(cell for row in table.values() if (cell := row.get(task))) for task in tasks}
    if metric is not None and any(prior is not None for prior in priors.values()):
        told = [MISSING if prior is None else value_of(metric, prior) for prior in priors.values()]
        shown.add_row(prior_name(metric), *told, *([""] if tuned and len(tasks) == 1 else []), style="dim")
    return shown


def _prior_of(found: Iterable[GridCell]) -> float | None:
    """What a task's metric is without learning; None where runs do not say, or not the same."""
    values = {one.prior for cell in found for one in cell.outcomes}
    return values.pop() if len(values) == 1 else None


def _leader(table: dict[str, dict[str, GridCell]], task: str, metric: str | None) -> GridCell | None:
    found: Sequence[GridCell] = [row[task] for row in table.values() if task in row]
    first = ranked(found, metric)[0]
    return first if first.value is not None and len(found) > 1 else None


def _numbers_of(cell: GridCell) -> list[str]:
    return [f"{key} {label(value)}" for key, value in cell.point.numbers.items()]
