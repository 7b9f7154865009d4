"""The rows as tables on a terminal: speed, latency, and what was promised."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from .rows import Row
from .targets import Verdict

_NONE = "-"


def seconds(value: float) -> str:
    """A time with three digits and its unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e6:.3g} us"


def _spread(row: Row) -> str:
    return f"{(row.p20 / row.median - 1):+.0%} {(row.p80 / row.median - 1):+.0%}"


def _against(row: Row) -> tuple[str, str]:
    if row.ratio is None or row.best is None:
        return _NONE, _NONE
    return f"{row.ratio:.2f}x", row.best


def speed(rows: Sequence[Row], latency_size: int) -> Table:
    """One line per op and size of ours: time, GB/s, share of the bound, ratio to the best alternative."""
    table = Table(title="Kernels", caption="spread: 20th and 80th percentile; of bound: streaming bound's time / ours")
    table.add_column("op", no_wrap=True)
    for name in ("d", "median", "spread", "B/elem", "GB/s", "of bound", "ratio"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("to the best alternative", no_wrap=True)
    shown: int | None = None
    for row in rows:
        if row.kind != "fastfed" or row.size == latency_size:
            continue
        if shown not in (None, row.size):
            table.add_section()
        shown = row.size
        share = _NONE if row.of_bound is None else f"{row.of_bound:.0%}"
        table.add_row(
            row.op,
            f"{row.d:,}",
            seconds(row.median),
            _spread(row),
            str(row.bytes_per_element),
            f"{row.gigabytes_per_second:.1f}",
            share,
            *_against(row),
        )
    return table


def latency(rows: Sequence[Row], latency_size: int) -> Table:
    """One line per op at the small size: a whole call from Python."""
    table = Table(title=f"A whole call from Python, checks included, at d = {latency_size:,}")
    table.add_column("op", no_wrap=True)
    for name in ("median", "spread", "ratio"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("to the best alternative", no_wrap=True)
    for row in rows:
        if row.kind == "fastfed" and row.size == latency_size:
            table.add_row(row.op, f"{row.median * 1e6:.2f} us", _spread(row), *_against(row))
    return table


def verdicts(judged: Sequence[Verdict]) -> Table:
    """One line per target: what was promised, what was measured."""
    table = Table(title="Promised and measured")
    table.add_column("op", no_wrap=True)
    table.add_column("d", justify="right", no_wrap=True)
    table.add_column("promised", no_wrap=True)
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for verdict in judged:
        met = {True: "[green]met[/]", False: "[red]missed[/]", None: "[dim]not measured[/]"}[verdict.met]
        table.add_row(verdict.op, f"{verdict.target.size:,}", verdict.target.words, _measured(verdict), met)
    return table


def _measured(verdict: Verdict) -> str:
    if verdict.measured is None:
        return _NONE
    if verdict.target.measure == "latency":
        return f"{verdict.measured * 1e6:.2f} us"
    if verdict.target.measure == "bound":
        return f"{verdict.measured:.0%}"
    return f"{verdict.measured:.2f}x"
