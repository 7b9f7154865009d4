"""`bench peers` as a table on a terminal, and the sentences below it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from ..common.neighbours import TOLERABLE
from ..rounds.rows import FASTFED
from .rows import PeerRow, WholeRow

_NONE = "-"
_CAPTION = (
    "updates/s: clients trained a second in whole rounds of FedAvg; spread: 80th and 20th percentile of the time;\n"
    "first: seconds that the first round took longer than later ones, compiling included; ratio: fastfed's updates/s\n"
    "over these; differs: model after a round from fastfed's, relative, at the parameter where that is most"
)


def frameworks(rows: Sequence[PeerRow]) -> Table:
    """One line per workload and framework, those that did not run with them."""
    table = Table(title="Whole rounds beside other frameworks", caption=_CAPTION)
    for name in ("workload", "framework"):
        table.add_column(name, no_wrap=True)
    for name in ("clients timed", "updates/s", "spread", "first", "ratio", "differs"):
        table.add_column(name, justify="right", no_wrap=True)
    shown = ""
    for row in rows:
        if shown not in ("", row.workload):
            table.add_section()
        table.add_row("" if shown == row.workload else row.workload, _name(row), *_cells(row))
        shown = row.workload
    return table


def _name(row: PeerRow) -> str:
    return f"{row.peer}, {row.side_by_side}" if row.side_by_side else row.peer


def _cells(row: PeerRow) -> tuple[str, ...]:
    if row.updates_per_second is None or row.median is None or row.p20 is None or row.p80 is None:
        return ("disagrees" if row.disagrees else "not run",)
    return (
        f"{row.timed:,} of {row.clients:,}",
        f"{row.updates_per_second:,.0f}" if row.updates_per_second >= 100 else f"{row.updates_per_second:.3g}",
        f"{row.median / row.p80 - 1:+.0%} {row.median / row.p20 - 1:+.0%}",
        _NONE if row.compiling is None else f"{row.compiling:.2f} s",
        _NONE if row.ratio is None or row.peer == FASTFED else f"{row.ratio:.2f}x",
        _NONE if row.difference is None or row.peer == FASTFED else f"{row.difference:.0e}",
    )


def whole(rows: Sequence[WholeRow]) -> Table:
    """One line per whole task and framework."""
    table = Table(title="Whole tasks", caption="seconds from a process's start until the test accuracy is there")
    for name in ("task", "framework"):
        table.add_column(name, no_wrap=True)
    for name in ("seconds", "spread", "rounds", "accuracy", "ratio"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row.task, row.peer, *_whole_cells(row))
    return table


def _whole_cells(row: WholeRow) -> tuple[str, ...]:
    if row.median is None or row.p20 is None or row.p80 is None:
        return ("not run",)
    ratio = _NONE if row.ratio is None or row.peer == FASTFED else f"{row.ratio:.2f}x"
    return (f"{row.median:.2f}", f"{row.p20:.2f} to {row.p80:.2f}", f"{row.rounds}", f"{row.accuracy:.4f}", ratio)


def skipped(rows: Sequence[PeerRow], whole: Sequence[WholeRow] = ()) -> list[str]:
    """A sentence for everybody who did not run."""
    of = [(row.workload, row.peer, row.skipped) for row in rows] + [(row.task, row.peer, row.skipped) for row in whole]
    return [f"{what}, {peer}: not run, {reason}" for what, peer, reason in of if reason]


def disturbed(rows: Sequence[PeerRow]) -> list[str]:
    """A sentence for every workload that was timed while others used the machine."""
    return [
        f"{row.workload}: others used {row.busy:.0%} of the machine, so these ratios say little"
        for row in rows
        if row.peer == FASTFED and row.busy is not None and row.busy > TOLERABLE
    ]


def place(rows: Sequence[PeerRow], whole: Sequence[WholeRow]) -> str:
    """The machine, the threads, and what was timed."""
    where = [(row.machine, row.threads) for row in rows] + [(row.machine, row.threads) for row in whole]
    machine, threads = where[0]
    return "; ".join(part for part in (machine, f"{threads} threads", versions(rows)) if part)


def versions(rows: Sequence[PeerRow]) -> str:
    """What was timed, once each."""
    found = dict.fromkeys(part for row in rows for part in row.versions.split(", ") if part)
    return ", ".join(found)
