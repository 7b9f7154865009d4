"""`fastfed compare`: runs side by side in the terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .terminal import say, show_table

if TYPE_CHECKING:
    from ..report import Entry
    from ..report.grid import Grid
    from ..report.statistics import Estimate
    from ..report.summary import Summary


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...|DIR", help="Runs, or directories that hold some.")],
    metric: Annotated[str | None, typer.Option(help="A column of the rounds. Default: the runs' own.")] = None,
    target: Annotated[
        float | None, typer.Option(help="Count rounds and bytes to this value. Default: one that half of them reach.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Show runs side by side: what they came to, and the settings in which they differ.

    Runs that differ only in their seed are one row, with the 95% interval of the mean. The best comes first.

    Example: fastfed compare runs/fedavg runs/fedyogi --target 0.9
    """
    from ..report import gather, group, main_metric
    from ..report.summary import choose_target, ranked, summarise

    entries = gather(runs)
    chosen = _checked(metric, entries) or main_metric(entries)
    groups = group(entries)
    goal = choose_target(groups, chosen) if target is None else target
    order = ranked(summarise(groups, chosen, goal), chosen)
    if as_json:
        print(json.dumps(_told(order, chosen, goal), indent=1, default=str))
    else:
        _show(order, chosen, goal)


def _checked(metric: str | None, entries: list[Entry]) -> str | None:
    """A metric that no run has is refused, with those that there are."""
    if metric is None or any(entry.has(metric) for entry in entries):
        return metric
    columns = dict.fromkeys(name for entry in entries for row in entry.history for name in row)
    known = [
        name
        for name in columns
        if name.startswith(("test_", "validation_", "trainset_", "client_")) or name == "train_loss"
    ]
    measured = f"there are {', '.join(known)}" if known else "they have no rounds yet"
    raise typer.BadParameter(f"no run has a column {metric!r}; {measured}", param_hint="--metric")


def _show(order: list[Summary], metric: str | None, target: float | None) -> None:
    from ..report import tables
    from ..report.grid import as_rich

    show_table(as_rich(tables.results(order, metric, target)))
    differences = tables.differences([one.group for one in order])
    if differences is not None:
        show_table(as_rich(_readable(differences), "Settings in which they differ"))
    elif len(order) > 1:
        say("Their configurations do not differ.")


def _readable(differences: Grid) -> Grid:
    """Many runs in rows: a terminal is longer than it is wide."""
    from ..report.grid import Cell

    runs, keys = len(differences.heads) - 1, len(differences.rows)
    if runs <= max(4, keys):
        return differences
    columns = list(zip(*differences.rows, strict=True))
    heads = [differences.heads[0], *(cell.text for cell in columns[0])]
    rows = [[Cell(name), *column] for name, column in zip(differences.heads[1:], columns[1:], strict=True)]
    return replace(differences, heads=["run", *heads[1:]], rows=rows)


# ---- JSON -----------------------------------------------------------------------------------------------------------


def _told(order: list[Summary], metric: str | None, target: float | None) -> dict[str, Any]:
    from ..report import differing
    from ..report.entries import own_metrics, tells_apart

    firsts = [one.group.entries[0] for one in order]
    found = {key: values for key, values in differing(firsts).items() if tells_apart(key)}
    own = own_metrics([one.group for one in order], metric)
    rows = [_row(one, own) for one in order]
    return {"metric": metric, "target": target, "runs": rows, "differences": found}


def _row(one: Summary, own: Sequence[str]) -> dict[str, Any]:
    from ..report.summary import final_of

    return {
        "label": one.group.label,
        "names": [entry.name for entry in one.group.entries],
        "seeds": [entry.seed for entry in one.group.entries],
        "status": one.status,
        "final": _estimate(one.final),
        "best": _estimate(one.best),
        **({"metrics": {column: _estimate(final_of(one.group, column)) for column in own}} if own else {}),
        "rounds": one.rounds,
        "rounds_to_target": one.reached,
        "bytes_to_target": _estimate(one.bytes_to_target),
        "gradients_to_target": _estimate(one.gradients_to_target),
        "bytes": _estimate(one.bytes),
        "seconds": _estimate(one.seconds),
    }


def _estimate(one: Estimate | None) -> dict[str, Any] | None:
    return None if one is None else {"mean": one.mean, "half_width_95": one.half, "n": one.n}
