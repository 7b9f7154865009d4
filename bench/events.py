"""`python -m fastfed.bench.events`: how many events a second the clock of asynchronous rounds handles.

An event is the end of one participation, with the start that follows it and its share of the commits.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from ..app.doctor import machine
from ..fleet import Fleet, Windows
from ..plan.events import EventQueue
from .common.neighbours import TOLERABLE, busy

STEPS = 100  # of every client; a second each, but for the spread
OPEN = 0.1  # share of the time that a client is available in the case with windows
SHARE = 10  # the buffer holds so many times fewer updates than clients are in flight
_WINDOWS = Windows(period=86400.0, length=OPEN * 86400.0)
CASES = {
    "plain": Fleet(spread=1.0),
    "drop-outs": Fleet(spread=1.0, dropout=0.1),
    "windows": Fleet(spread=1.0, windows=_WINDOWS),
}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@dataclass(frozen=True)
class EventRow:
    """One case: events a second, the median over turns with the 20th and 80th percentile."""

    case: str
    clients: int
    concurrency: int
    buffer: int
    median: float
    p20: float
    p80: float
    turns: int
    events: int
    in_flight: int
    machine: str


def run(
    clients: int, concurrencies: Sequence[int], turns: int, events: int, tell: Callable[[str], None]
) -> list[EventRow]:
    """The rows of all cases, which take turns; every turn handles at least so many events."""
    rows = []
    for concurrency in concurrencies:
        tell(f"{clients:,} clients, {concurrency:,} in flight")
        queues = {case: queue_of(fleet, clients, concurrency) for case, fleet in CASES.items()}
        rates: dict[str, list[float]] = {case: [] for case in CASES}
        for queue in queues.values():
            _rate(queue, max(events, 2 * concurrency))  # compiles, and leaves the moment at which all have just started
        for _ in range(turns):
            for case, queue in queues.items():
                rates[case].append(_rate(queue, events))
        rows += [_row(case, queues[case], clients, concurrency, rates[case], events) for case in CASES]
    return rows


def queue_of(fleet: Fleet, clients: int, concurrency: int) -> EventQueue:
    """The clock of a fleet whose clients all have the same work."""
    begins = fleet.begins(clients, seed=0)
    return EventQueue(
        fleet.seconds(torch.full((clients,), STEPS), 0, seed=0),
        concurrency=concurrency,
        buffer=_buffer(concurrency),
        dropout=fleet.dropout,
        windows=None if begins is None else (begins, _WINDOWS.length, _WINDOWS.period),
        seed=0,
    )


def _buffer(concurrency: int) -> int:
    return max(1, concurrency // SHARE)


def _rate(queue: EventQueue, events: int) -> float:
    before, start = queue.events, time.perf_counter()
    while queue.events - before < events:
        queue.advance()
        queue.commit()
    return (queue.events - before) / (time.perf_counter() - start)


def _row(case: str, queue: EventQueue, clients: int, concurrency: int, rates: Sequence[float], events: int) -> EventRow:
    p20, p80 = (rates[0], rates[0]) if len(rates) == 1 else _percentiles(rates)
    return EventRow(
        case=case,
        clients=clients,
        concurrency=concurrency,
        buffer=_buffer(concurrency),
        median=statistics.median(rates),
        p20=p20,
        p80=p80,
        turns=len(rates),
        events=events,
        in_flight=queue.in_flight,
        machine=machine().words,
    )


def _percentiles(rates: Sequence[float]) -> tuple[float, float]:
    p20, *_, p80 = statistics.quantiles(rates, n=5, method="inclusive")
    return p20, p80


def table(rows: Sequence[EventRow]) -> Table:
    """One line per case and concurrency."""
    shown = Table(
        title=f"Events of {rows[0].clients:,} registered clients",
        caption=f"spread: 20th and 80th percentile of {rows[0].turns} turns; windows: open {OPEN:.0%} of the time",
    )
    shown.add_column("case", no_wrap=True)
    for name in ("concurrency", "buffer", "in flight", "events a second", "spread"):
        shown.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        spread = f"{row.p20 / row.median - 1:+.0%} {row.p80 / row.median - 1:+.0%}"
        numbers = (row.concurrency, row.buffer, row.in_flight, round(row.median))
        shown.add_row(row.case, *(f"{number:,}" for number in numbers), spread)
    return shown


def save(rows: Sequence[EventRow], path: Path) -> None:
    """Writes the rows as a JSON list of flat objects."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def _parse(text: str, clients: int) -> tuple[int, ...]:
    def bad(why: str) -> Any:
        return typer.BadParameter(f"{why}, got {text!r}", param_hint="--concurrency")

    try:
        numbers = tuple(int(float(part)) for part in text.split(","))
    except (ValueError, OverflowError):
        raise bad("must be numbers like 1000,1e4") from None
    if min(numbers) < 1 or max(numbers) > clients:
        raise bad(f"must be from 1 to the number of clients, {clients}")
    return numbers


@app.command()
def main(
    clients: Annotated[int, typer.Option(min=1, help="Registered clients.")] = 1_000_000,
    concurrency: Annotated[str, typer.Option(help="Clients in flight, separated by commas.")] = "1000,10000,100000",
    turns: Annotated[int, typer.Option(min=1, help="Turns; each measures every case once.")] = 7,
    events: Annotated[int, typer.Option(min=1, help="Events that a case handles in a turn, at least.")] = 300_000,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all measurements as JSON rows.")] = None,
) -> None:
    """Measure the clock of asynchronous rounds: plain, with drop-outs, with windows of availability.

    Example: python -m fastfed.bench.events --clients 1000000 --concurrency 1e3,1e4 --json out/events.json
    """
    chosen = _parse(concurrency, clients)
    console = Console()
    console = console if console.is_terminal else Console(width=120)
    others = busy()
    rows = run(clients, chosen, turns, events, lambda line: print(line, file=sys.stderr, flush=True))
    console.print(table(rows))
    console.print(rows[0].machine, highlight=False)
    if others is not None and others > TOLERABLE:
        console.print(f"Others used {others:.0%} of the machine: alone it is faster.")
    if json_file is not None:
        save(rows, json_file)
        console.print(f"Rows: {json_file}")


if __name__ == "__main__":
    app()
