"""`python -m fastfed.bench.memory`: how much memory a round takes, beside the plain loop and pfl.

Each contender of `fastfed bench peers` trains in processes of its own: libraries, data and model are there before; what
the process grows by in two rounds, at its peak, is the round's.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from ..app.doctor import machine
from .peers.contender import ContenderFailed
from .peers.handing import hand_over
from .peers.line_up import ENTRANTS, OURS, PFL, Entrant, Variant, home_of_environments
from .rounds.rows import FASTFED, PLAIN
from .rounds.workloads import PEERED

CLIENTS = {"W2": 100, "ResNet10": 10, "ViT": 20}  # a round's; what is taken hardly depends on it
ROUNDS = 2  # the second one would show what the first leaves behind
WAKING = "W1"  # a small workload, trained before
CONTENDERS: dict[str, Entrant] = {FASTFED: OURS, PLAIN: ENTRANTS[PLAIN], PFL: ENTRANTS[PFL]}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@dataclass(frozen=True)
class MemoryRow:
    """Bytes that the processes have `before` the rounds, with libraries, data and model, and at the `peak`; None where
    the contender was `skipped`, for the reason given there. `threads` in all; pfl has a process for each."""

    workload: str
    contender: str
    clients: int
    parameters: int
    threads: int
    before: int | None
    peak: int | None
    skipped: str
    machine: str

    @property
    def of_round(self) -> int | None:
        return None if self.peak is None or self.before is None else self.peak - self.before


def measure(workload: str, clients: int, threads: Sequence[int], environments: Path) -> list[MemoryRow]:
    """Every contender with each number of threads."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        task, wake = Path(folder) / "task", Path(folder) / "wake"
        parameters = hand_over(PEERED[workload], clients, task).parameters
        hand_over(PEERED[WAKING], max(threads), wake)
        for count in threads:
            for name, entrant in CONTENDERS.items():
                before, peak, skipped = _of(entrant, clients, count, (task, wake), environments)
                rows.append(
                    MemoryRow(workload, name, clients, parameters, count, before, peak, skipped, machine().words)
                )
    return rows


def _of(
    entrant: Entrant, clients: int, threads: int, tasks: tuple[Path, Path], environments: Path
) -> tuple[int | None, int | None, str]:
    """The bytes before and at the peak, or why there are none."""
    task, wake = tasks
    missing = entrant.missing(environments)
    if missing:
        return None, None, missing
    try:
        contender = entrant.start(Variant(clients, threads if entrant.ranks else 0), task, threads, environments)
    except ContenderFailed as error:
        return None, None, str(error)
    try:
        before = contender.watch(wake)
        contender.begin(None)
        contender.run(ROUNDS)
        return before, contender.peak(), ""
    except ContenderFailed as error:
        return None, None, str(error)
    finally:
        contender.end()


def table(rows: Sequence[MemoryRow]) -> list[str]:
    """A line per contender and number of threads, in megabytes; and how many times FastFed's that is."""
    ours = {(row.workload, row.threads): row.of_round for row in rows if row.contender == FASTFED}
    lines = [f"{'':10}{'threads':>8}  {'':8}{'before':>8}{'a round':>9}{'a thread':>9}{'models':>8}{'to ours':>9}"]
    for row in rows:
        words = f"{row.workload:10}{row.threads:8}  {row.contender:8}"
        if row.of_round is None or row.before is None:
            lines.append(f"{words}{row.skipped}")
            continue
        megabytes = (row.before, row.of_round, row.of_round / row.threads)
        cells = "".join(f"{one / 1e6:{width}.1f}" for one, width in zip(megabytes, (8, 9, 9), strict=True))
        models = row.of_round / row.threads / (4 * row.parameters)
        own = ours.get((row.workload, row.threads))
        lines.append(f"{words}{cells}{models:8.1f}" + (f"{row.of_round / own:8.2f}x" if own else ""))
    return lines


@app.command()
def main(
    workloads: Annotated[str, typer.Option(help="Some of those of `fastfed bench peers`.")] = ",".join(CLIENTS),
    threads: Annotated[str, typer.Option(help="Numbers of threads.")] = "1,2",
    scale: Annotated[float, typer.Option(min=0.001, help="Of the rounds' clients.")] = 1.0,
    environments: Annotated[
        Path | None, typer.Option(help="Where .venv-pfl is. Default: where make bench-peers puts it.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all measurements as JSON rows.")] = None,
) -> None:
    """Measure what memory a round takes, per thread, beside the plain loop and pfl."""
    names = workloads.split(",")
    unknown = [name for name in names if name not in PEERED]
    if unknown:
        raise typer.BadParameter(f"workloads: must be some of {', '.join(PEERED)}, got {unknown[0]!r}")
    counts = [int(count) for count in threads.split(",")]
    place = home_of_environments() if environments is None else environments
    rows: list[MemoryRow] = []
    for name in names:
        clients = max(1, round(scale * CLIENTS.get(name, PEERED[name].clients)))
        rows += measure(name, clients, counts, place)
    print("Megabytes: resident before, grown by in a round, and that of a thread, also as a multiple of the model")
    for line in table(rows):
        print(line)
    print(rows[0].machine)
    if json_file is not None:
        told = [{**asdict(row), "of_round": row.of_round} for row in rows]
        json_file.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    app()
