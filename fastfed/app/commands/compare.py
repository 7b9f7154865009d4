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
    from ..report.page import Report
    from ..report.statistics import Estimate
    from ..report.summary import Summary

MetricOption = Annotated[str | None, typer.Option("--metric", help="A column of the rounds. Default: the runs' own.")]
LabelOption = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="RUN=NAME", help="Another name for a line: as in FedAvg=Baseline; repeatable."),
]
OrderOption = Annotated[
    str | None, typer.Option("--order", metavar="NAME,...", help="The names that come first. Default: the best first.")
]


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...|DIR", help="Runs, or directories that hold some.")],
    metric: MetricOption = None,
    target: Annotated[
        float | None, typer.Option(help="Count rounds and bytes to this value. Default: one that half of them reach.")
    ] = None,
    labels: LabelOption = None,
    order: OrderOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="Print the table of results as LaTeX (booktabs).")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the results as CSV, a row per line.")] = False,
) -> None:
    """Show runs side by side: what they came to, and the settings in which they differ.

    Runs that differ only in their seed are one row, with the 95% interval of the mean. The best comes first.

    Example: fastfed compare runs/fedavg runs/fedyogi --target 0.9
    """
    from ..report import Look, Unknown, export, gather, main_metric
    from ..report.page import compose

    if as_json + latex + as_csv > 1:
        raise typer.BadParameter("give one of --json, --latex and --csv")
    entries = gather(runs)
    look = Look(labels_of(labels), names_of(order), checked(metric, entries))
    try:
        report = compose(entries, None, target, look)
    except Unknown as error:
        raise typer.BadParameter(str(error)) from None
    chosen = look.metric or main_metric(entries)
    if as_json:
        print(json.dumps(_told(report.summaries, chosen, report.target), indent=1, default=str))
    elif latex or as_csv:
        print(export.as_latex(report.table) if latex else export.as_csv(report.summaries), end="")
    else:
        _show(report)


def labels_of(texts: list[str] | None) -> dict[str, str]:
    """The new names of lines by their old ones."""
    found = {}
    for text in texts or ():
        old, sign, new = text.rpartition("=")
        if not sign or not old.strip() or not new.strip():
            raise typer.BadParameter(
                f"must be a run and its name, as in FedAvg=Baseline, got {text!r}", param_hint="--label"
            )
        found[old.strip()] = new.strip()
    return found


def names_of(text: str | None) -> list[str]:
    """Names that stand between commas."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def checked(metric: str | None, entries: list[Entry]) -> str | None:
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


def _show(report: Report) -> None:
    from ..report import tables
    from ..report.grid import as_rich

    order = report.summaries
    show_table(as_rich(report.table))
    for sentence in report.notes:
        say(sentence)
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
