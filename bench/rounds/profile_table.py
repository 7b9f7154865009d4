"""Profiles of whole rounds as tables on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from ...train.profile import DUTIES
from ..common.neighbours import TOLERABLE
from .profile import LayerRow, ProfileRow

FEW = 0.01  # of the threads' time: layers below are told together
_CAPTION = (
    "milliseconds of all threads in a round; of its bound: its products as multiply-adds in registers,\n"
    "and reading at the memory's speed; backward has plain SGD's update in it"
)
_BOUNDS_CAPTION = (
    "bound: the longer of products, as quick as multiply-adds in registers,\n"
    "and memory, what must come from there as a long vector is added up;\n"
    "sgemm: products as quick as a large one of torch's; asked: while it tells all this"
)


def bounds(rows: Sequence[ProfileRow]) -> Table:
    """One line per workload: a round, and the bound that it has."""
    table = Table(title="Rounds and their bounds, ms", caption=_BOUNDS_CAPTION)
    table.add_column("workload", no_wrap=True)
    for name in ("clients", "a round", "asked", "sgemm", "products", "memory", "bound by", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        times = (row.seconds, row.asked, row.bound.sgemm, row.bound.products, row.bound.memory)
        cells = (f"{row.clients:,}", *map(_milliseconds, times), row.bound.words, f"{row.of_bound:.0%}")
        table.add_row(row.workload, *cells)
    return table


def layers(row: ProfileRow) -> Table:
    """Where the seconds of the threads go."""
    table = Table(title=f"{row.workload}: {row.words}, {row.clients:,} clients", caption=_CAPTION)
    table.add_column("", no_wrap=True)
    table.add_column("shapes")
    for name in ("forward", "backward", "together", "of all", "of its bound"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in _told(row):
        table.add_row(
            f"{one.name} {one.op}",
            one.shapes,
            _milliseconds(one.forward),
            _milliseconds(one.backward),
            *_ends(row, one.seconds, one.of_bound),
        )
    table.add_section()
    for name, seconds in row.duties.items():
        table.add_row(
            DUTIES[name],
            "",
            "",
            "",
            *_ends(row, seconds, row.reading / seconds if name == "read" and seconds else None),
        )
    table.add_row("Python, the server's step", "", "", "", *_ends(row, row.around, None))
    return table


def _told(row: ProfileRow) -> Iterator[LayerRow]:
    """The layers that take long, and all others as one."""
    short = [one for one in row.layers if one.seconds < FEW * row.of_threads]
    yield from (one for one in row.layers if one not in short)
    if short:
        forward, backward = sum(one.forward for one in short), sum(one.backward for one in short)
        yield LayerRow(f"{len(short)}", "others", "", forward, backward, None)


def _ends(row: ProfileRow, seconds: float, of_bound: float | None) -> tuple[str, str, str]:
    return (
        _milliseconds(seconds),
        f"{seconds / row.of_threads:.1%}",
        "-" if of_bound is None else f"{of_bound:.0%}",
    )


def rooms(rows: Sequence[ProfileRow]) -> Table:
    """One line per workload: a whole simulation's round, room by room."""
    names = list(rows[0].rooms.rooms)
    caption = "as a run does by default: evaluated and saved every ten rounds; run: rows written, checkpoints"
    table = Table(title="Rooms of a whole simulation's round, ms", caption=caption)
    table.add_column("workload", no_wrap=True)
    for name in ("clients", "a round", *names, "not training"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        one = row.rooms
        cells = (one.seconds, *(one.rooms[name] for name in names))
        share = 1 - one.rooms["train"] / one.seconds
        table.add_row(row.workload, f"{row.clients:,}", *map(_milliseconds, cells), f"{share:.1%}")
    return table


def disturbed(rows: Sequence[ProfileRow]) -> list[str]:
    """A sentence for every workload that was timed while others used the machine."""
    return [
        f"{row.workload}: others used {row.busy:.0%} of the machine, so these figures say little"
        for row in rows
        if row.busy is not None and row.busy > TOLERABLE
    ]


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f}" if seconds >= 0.1 else f"{1e3 * seconds:.3g}"
