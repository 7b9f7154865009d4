"""Whole rounds as tables on a terminal: contenders, promises, scaling."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from ..common.neighbours import TOLERABLE
from .rows import FASTFED, RoundRow, ScalingRow
from .targets import Verdict

_NONE = "-"
_CAPTION = (
    "updates/s: clients trained a second, server's step included; spread: 80th and 20th percentile of the time;\n"
    "GFLOP/s count useful products only; of sgemm: share of a 1024 x 1024 x 1024 product in the same turns;\n"
    "memory: what the process grows by in a round; differs: aggregate from fastfed's, relative;\n"
    "vmap: the cohort at once, as one writes it; chunked vmap: the fastest of several smaller numbers at once"
)
_SCALING_CAPTION = (
    "efficiency: speed-up over one thread, divided by the threads;\nbeyond 1,000 clients the examples are shared"
)


def _number(value: float) -> str:
    """Three digits at least, thousands marked."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _spread(row: RoundRow | ScalingRow) -> str:
    if row.median is None or row.p20 is None or row.p80 is None:
        return _NONE
    return f"{(row.median / row.p80 - 1):+.0%} {(row.median / row.p20 - 1):+.0%}"


def _times(ratio: float | None) -> str:
    return _NONE if ratio is None else f"{ratio:.2f}x"


def contenders(rows: Sequence[RoundRow]) -> Table:
    """One line per workload and contender."""
    table = Table(title="Whole rounds", caption=_CAPTION)
    for name in ("workload", "contender"):
        table.add_column(name, no_wrap=True)
    for name in (
        "clients timed",
        "updates/s",
        "spread",
        "GFLOP/s",
        "of sgemm",
        "memory",
        "to plain",
        "to vmap",
        "to chunked",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("differs", justify="right", no_wrap=True)
    shown = ""
    for row in rows:
        if shown not in ("", row.workload):
            table.add_section()
        table.add_row("" if shown == row.workload else row.workload, _name(row), *_cells(row))
        shown = row.workload
    return table


def _name(row: RoundRow) -> str:
    return f"{row.contender}, {row.chunk:,} at once" if row.chunk > 1 else row.contender


def _cells(row: RoundRow) -> tuple[str, ...]:
    if row.updates_per_second is None or row.gigaflops is None:
        return ("skipped",)
    return (
        f"{row.timed:,} of {row.clients:,}",
        _number(row.updates_per_second),
        _spread(row),
        _number(row.gigaflops),
        _NONE if row.of_peak is None else f"{row.of_peak:.0%}",
        _NONE if row.memory is None else f"{row.memory / 1e6:.1f} MB",
        _times(row.to_plain),
        _times(row.to_vmap),
        _times(row.to_chunked),
        _NONE if row.difference is None else f"{row.difference:.0e}",
    )


def skipped(rows: Sequence[RoundRow]) -> list[str]:
    """A sentence for every contender that did not run."""
    return [f"{row.workload}, {row.contender}: skipped, {row.skipped}" for row in rows if row.skipped]


def disturbed(rows: Sequence[RoundRow]) -> list[str]:
    """A sentence for every workload that was timed while others used the machine."""
    return [
        f"{row.workload}: others used {row.busy:.0%} of the machine, so these ratios say little"
        for row in rows
        if row.contender == FASTFED and row.busy is not None and row.busy > TOLERABLE
    ]


def verdicts(judged: Sequence[Verdict]) -> Table:
    """One line per target: what was promised, what was measured."""
    table = Table(title="Promised and measured")
    for name in ("workload", "promised"):
        table.add_column(name, no_wrap=True)
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("")
    for verdict in judged:
        met = {True: "[green]met[/]", False: "[red]missed[/]", None: "[dim]not measured[/]"}[verdict.met]
        table.add_row(verdict.target.workload, verdict.target.words, verdict.words, met, verdict.details)
    return table


def scaling(rows: Sequence[ScalingRow]) -> Table:
    """One line per cohort, the numbers of threads side by side."""
    ways = sorted({row.threads for row in rows})
    table = Table(title="Scaling: client updates/s of fastfed", caption=_SCALING_CAPTION)
    table.add_column("workload", no_wrap=True)
    table.add_column("clients", justify="right", no_wrap=True)
    for threads in ways:
        table.add_column(f"{threads} thread{'s' if threads > 1 else ''}", justify="right", no_wrap=True)
        table.add_column("spread", justify="right", no_wrap=True)
    table.add_column("efficiency", justify="right", no_wrap=True)
    for workload, clients in dict.fromkeys((row.workload, row.clients) for row in rows):
        those = sorted(
            (row for row in rows if (row.workload, row.clients) == (workload, clients)), key=lambda row: row.threads
        )
        cells = [cell for row in those for cell in (_number(row.updates_per_second), _spread(row))]
        table.add_row(workload, f"{clients:,}", *cells, f"{those[-1].efficiency:.0%}")
    return table
