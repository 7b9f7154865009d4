"""`python -m fastfed.bench.checkpoints`: what checkpoints add to a run, on the digits that come with FastFed.

The same run with checkpoints and without takes turns, and each turn is a ratio of its own: others that use the machine
or its disk hit both halves of it. Seconds are those of the wall and those of the processor, which others hit less.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from .. import clients, data, models, servers
from ..app.doctor import machine
from ..simulation import Simulation
from .common.neighbours import TOLERABLE, busy

BAR = 1.3  # a run with checkpoints takes at most so many times as long
_WARM_UP = 50  # rounds

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@dataclass(frozen=True)
class CheckpointsRow:
    """One turn: seconds of the wall and of the processor, of a run without checkpoints and of one with them."""

    rounds: int
    every: int
    wall_without: float
    wall_with: float
    processor_without: float
    processor_with: float
    machine: str

    @property
    def wall(self) -> float:
        """How many times as long the run with checkpoints took."""
        return self.wall_with / self.wall_without

    @property
    def processor(self) -> float:
        """How many times as much work it was for the processor."""
        return self.processor_with / self.processor_without


def run(rounds: int, every: int, turns: int, folder: Path, tell: Callable[[str], None]) -> list[CheckpointsRow]:
    """A row for each turn; checkpoints go to the `folder`, so that it says which disk is measured."""
    _seconds(_WARM_UP, every, None)
    rows = []
    for turn in range(1, turns + 1):
        wall_without, processor_without = _seconds(rounds, every, None)
        with tempfile.TemporaryDirectory(dir=folder) as home:
            wall_with, processor_with = _seconds(rounds, every, Path(home))
        seconds = (wall_without, wall_with, processor_without, processor_with)
        rows.append(CheckpointsRow(rounds, every, *seconds, machine().words))
        tell(f"turn {turn} of {turns}: {rows[-1].wall:.2f}x, {rows[-1].processor:.2f}x of the processor")
    return rows


def _seconds(rounds: int, every: int, home: Path | None) -> tuple[float, float]:
    """Seconds of the wall and of the processor that a run of its own takes, the first checkpoint's recipes included."""
    sim = simulation()
    before, began = os.times(), time.perf_counter()
    sim.run(rounds=rounds, checkpoint=home, checkpoint_every=every, progress=False)
    wall, after = time.perf_counter() - began, os.times()
    return wall, after.user + after.system - before.user - before.system


def simulation() -> Simulation:
    """What `fastfed init` begins with: FedYogi, 10 of 100 clients, two epochs."""
    torch.manual_seed(0)
    return Simulation(
        models.mlp(64, 64, 10),
        data.dirichlet(data.digits(), clients=100, alpha=0.3, seed=0),
        client=clients.SGD(lr=0.1),
        server=servers.FedYogi(lr=0.03),
        cohort=10,
        epochs=2,
        batch_size=10,
    )


def table(rows: Sequence[CheckpointsRow]) -> Table:
    """Medians over turns, and the least and the most of the ratios."""
    shown = Table(title=f"{rows[0].rounds:,} rounds of digits, a checkpoint every {rows[0].every}: {len(rows)} turns")
    shown.add_column("seconds of the", no_wrap=True)
    for name in ("without", "with", "ratio", "least", "most"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_row("wall", *_columns([(row.wall_without, row.wall_with) for row in rows]))
    shown.add_row("processor", *_columns([(row.processor_without, row.processor_with) for row in rows]))
    return shown


def _columns(pairs: Sequence[tuple[float, float]]) -> list[str]:
    seconds = [f"{statistics.median(column):.2f}" for column in zip(*pairs, strict=True)]
    ratios = [of_with / without for without, of_with in pairs]
    return seconds + [f"{ratio:.2f}" for ratio in (statistics.median(ratios), min(ratios), max(ratios))]


def save(rows: Sequence[CheckpointsRow], path: Path) -> None:
    """Writes the rows as a JSON list of flat objects."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


@app.command()
def main(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each run.")] = 4000,
    every: Annotated[int, typer.Option(min=1, help="Rounds between checkpoints.")] = 10,
    turns: Annotated[int, typer.Option(min=1, help="Turns: a run without checkpoints, a run with them.")] = 5,
    folder: Annotated[Path | None, typer.Option(help="Where checkpoints go; else where temporary files do.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all measurements as JSON rows.")] = None,
) -> None:
    """Measure what checkpoints add to a run.

    Example: python -m fastfed.bench.checkpoints --rounds 4000 --turns 5 --folder . --json out/checkpoints.json
    """
    if folder is not None and not folder.is_dir():
        raise typer.BadParameter(f"must be a directory, got {str(folder)!r}", param_hint="--folder")
    console = Console()
    console = console if console.is_terminal else Console(width=120)
    others = busy()
    place = folder or Path(tempfile.gettempdir())
    rows = run(rounds, every, turns, place, lambda line: print(line, file=sys.stderr, flush=True))
    console.print(table(rows))
    console.print(rows[0].machine, highlight=False)
    ratio = statistics.median(row.wall for row in rows)
    console.print(f"The bar is {BAR}: {'met' if ratio <= BAR else 'missed'} with {ratio:.2f}.", highlight=False)
    if others is not None and others > TOLERABLE:
        console.print(f"Others used {others:.0%} of the machine: alone it is faster.")
    if json_file is not None:
        save(rows, json_file)
        console.print(f"Rows: {json_file}")


if __name__ == "__main__":
    app()
