"""`python -m fastfed.bench.epochs`: what further epochs cost, with first layers as ever and in Gram form.

The round of a workload of `fastfed bench rounds`, its clients going through their examples once and more often, in
turns; what an epoch more costs is told as a multiple of one epoch without the Gram form.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from ..app.doctor import machine
from ..packing import Packing
from ..train.executors import make
from .common.neighbours import busy
from .rounds.workloads import WORKLOADS, Workload

PROMISED = {("W1", 5): 1.8, ("W2", 5): 2.6}  # at most so many times the round of one epoch
WAYS: dict[str, bool | None] = {"as ever": False, "Gram form": True, "by itself": None}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@dataclass(frozen=True)
class EpochsRow:
    """Rounds of one number of epochs in one way: milliseconds, the median over turns; and `ratio` to one epoch as ever,
    the median over turns, with the 20th and 80th percentile."""

    workload: str
    clients: int
    epochs: int
    way: str
    milliseconds: float
    ratio: float
    p20: float
    p80: float
    turns: int
    threads: int
    machine: str


def measure(workload: Workload, clients: int, epochs: Sequence[int], turns: int, threads: int) -> list[EpochsRow]:
    """All numbers of epochs in all ways, taking turns; the first turn only warms up."""
    module = workload.make_module()
    engine: Any = make("native", module, workload.loss, workload.data(clients * workload.examples), threads=threads)
    start, batches = Packing.of(module).pack(module), -(-workload.examples // workload.batch)
    works = {number: workload.work(start, clients, clients, number * batches) for number in {1, *epochs}}
    taken: dict[tuple[int, str], list[float]] = {(number, way): [] for number in works for way in WAYS}
    for _ in range(turns + 1):
        for (number, way), seconds in taken.items():
            engine.gram = WAYS[way]
            begun = time.perf_counter()
            engine.run(works[number])
            seconds.append(time.perf_counter() - begun)
    once = taken[1, "as ever"][1:]
    rows = []
    for (number, way), seconds in sorted(taken.items()):
        ratios = sorted(one / other for one, other in zip(seconds[1:], once, strict=True))
        low, middle, high = (ratios[round(share * (turns - 1))] for share in (0.2, 0.5, 0.8))
        median = 1e3 * statistics.median(seconds[1:])
        rows.append(
            EpochsRow(workload.name, clients, number, way, median, middle, low, high, turns, threads, machine().words)
        )
    return rows


def promises(rows: Sequence[EpochsRow]) -> list[str]:
    """What is promised and what was measured, misses included."""
    lines = []
    for row in rows:
        most = PROMISED.get((row.workload, row.epochs))
        if most is not None and row.way == "by itself":
            verdict = "kept" if row.ratio <= most else "missed"
            lines.append(
                f"{row.workload}, {row.epochs} epochs: at most {most}x of one is promised, "
                f"{row.ratio:.2f}x measured: {verdict}"
            )
    return lines


@app.command()
def main(
    workloads: Annotated[str, typer.Option(help="Some of the workloads whose first layer is dense.")] = "W1,W2",
    epochs: Annotated[str, typer.Option(help="Numbers of epochs beside one.")] = "2,5,20",
    scale: Annotated[float, typer.Option(min=0.001, help="Of the workload's clients.")] = 0.2,
    turns: Annotated[int, typer.Option(min=1, help="Turns of every round.")] = 7,
    threads: Annotated[int, typer.Option(min=1, help="Threads.")] = torch.get_num_threads(),
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all measurements as JSON rows.")] = None,
) -> None:
    """Measure what further epochs cost, with and without the Gram form of first layers."""
    unknown = [name for name in workloads.split(",") if name not in WORKLOADS]
    if unknown:
        raise typer.BadParameter(f"workloads: must be some of {', '.join(WORKLOADS)}, got {unknown[0]!r}")
    load, rows = busy(), []
    for name in workloads.split(","):
        workload = WORKLOADS[name]
        found = measure(workload, workload.scaled(scale), [int(one) for one in epochs.split(",")], turns, threads)
        print(f"{name}: {found[0].clients} clients, {threads} threads; ms a round, ratio to one epoch as ever")
        for row in found:
            print(
                f"  {row.epochs:3} epochs {row.way:10} {row.milliseconds:9.1f} {row.ratio:7.2f}x "
                f"({row.p20:.2f} to {row.p80:.2f})"
            )
        rows += found
    print(rows[0].machine + ("" if load is None else f"; others used {load:.0%} of it when this began"))
    for line in promises(rows):
        print(line)
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    app()
