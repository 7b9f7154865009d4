"""`python -m fastfed.bench.rooms`: seconds of a whole simulation's rounds, room by room, for cohorts of any size.

A run as ``fastfed run`` does it by default: everybody takes part, the test set is evaluated every tenth round, rows go
to a file, and every tenth round leaves a checkpoint.
"""

from __future__ import annotations

import inspect
import json
import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from ..app.doctor import machine
from ..clients import SGD
from ..data import Federated
from ..record.history import ROOMS
from ..servers import FedAdam
from ..simulation import Simulation
from .common.neighbours import TOLERABLE, busy
from .rounds.workloads import LEARNING_RATE, PEERED, SEED, WORKLOADS, Workload

STORED = 1_000  # clients with examples of their own; a larger cohort shares them
TESTED = 10_000  # examples of the test set, as many as MNIST has
SLICE = 0.5  # seconds that a turn takes at least
LONG = 5.0  # seconds of a turn from which on one that is asked for need not be the second
GROWTH, SHARE = 10.5, 0.10  # promised: of a round with ten times the clients, at most; of what is not training
EVERY: int = inspect.signature(Simulation.run).parameters["evaluate_every"].default

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@dataclass(frozen=True)
class RoomsRow:
    """A round of `clients` clients: its seconds, the median over turns of so many rounds each, and in the same turn
    the seconds of each room; `evaluate` is a round's share of the evaluations, `run` what is left: rows written,
    checkpoints saved."""

    workload: str
    clients: int
    tested: int
    seconds: float
    rooms: dict[str, float]
    rounds: int
    turns: int
    threads: int
    busy: float | None
    machine: str

    @property
    def besides(self) -> float:
        """The share of evaluation and records, files included."""
        return sum(self.rooms[name] for name in ("record", "evaluate", "run")) / self.seconds

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "besides": self.besides, "per_client": self.seconds / self.clients}


def simulation(workload: Workload, clients: int, tested: int, threads: int) -> Simulation:
    """All clients of the workload take part; its examples are those of `STORED` clients at most."""
    stored = min(clients, STORED) * workload.examples
    test = workload.data(tested) if tested else None
    rows = torch.arange(clients * workload.examples) % stored
    offsets = torch.arange(clients + 1) * workload.examples
    return Simulation(
        workload.make_module(),
        Federated(workload.name, workload.data(stored), rows, offsets, test=test),
        client=SGD(lr=LEARNING_RATE),
        server=FedAdam(lr=1e-3, tau=1e-3),
        cohort=clients,
        epochs=workload.epochs,
        batch_size=workload.batch,
        loss=workload.loss,
        seed=SEED,
        executor="native",
        threads=threads,
    )


def turn(sim: Simulation, rounds: int, folder: Path | None) -> tuple[float, dict[str, float]]:
    """So many rounds: seconds of one, in all and room by room. `folder`: for rows and checkpoints, as of a run."""
    files: dict[str, Any] = {} if folder is None else {"log": folder / "rounds.jsonl", "checkpoint": folder / "saved"}
    began = time.perf_counter()
    sim.run(rounds, progress=False, **files)
    whole = (time.perf_counter() - began) / rounds
    rows = sim.history.rounds[-rounds:]
    rooms = {name: sum(row.get(f"seconds_{name}", 0.0) for row in rows) / rounds for name in (*ROOMS, "evaluate")}
    return whole, {**rooms, "run": whole - sum(rooms.values())}


def measure(workload: Workload, clients: int, tested: int, turns: int, threads: int) -> RoomsRow:
    """The rooms of one cohort; the first turn only warms up."""
    sim, before = simulation(workload, clients, tested, threads), busy()
    with tempfile.TemporaryDirectory() as folder:
        first = turn(sim, EVERY, Path(folder))
        rounds = EVERY * max(1, math.ceil(SLICE / first[0] / EVERY))
        is_long = turns == 1 and first[0] * EVERY > LONG  # then what is warm matters little
        turned = [first] if is_long else [turn(sim, rounds, Path(folder)) for _ in range(turns)]
    found = sorted(turned, key=lambda one: one[0])
    whole, rooms = found[(turns - 1) // 2]
    others = max((share for share in (before, busy()) if share is not None), default=None)
    return RoomsRow(workload.name, clients, tested, whole, rooms, rounds, turns, threads, others, machine().words)


def promises(rows: Sequence[RoomsRow]) -> list[str]:
    """What is promised and what was measured, misses included."""
    by_size = {(row.workload, row.clients): row for row in rows}
    lines = []
    for (workload, clients), row in by_size.items():
        few = by_size.get((workload, clients // 10))
        if few is not None and few.clients * 10 == clients and few.clients >= 100:
            growth = row.seconds / few.seconds
            lines.append(
                f"{workload}, {few.clients:,} to {clients:,} clients: at most {GROWTH}x the time is promised, "
                f"{growth:.2f}x measured: {_verdict(growth <= GROWTH)}"
            )
    for row in rows:
        lines.append(
            f"{row.workload}, {row.clients:,} clients: evaluation and records in less than {SHARE:.0%} of a round are "
            f"promised, {row.besides:.1%} measured: {_verdict(row.besides < SHARE)}"
        )
    return lines


def _verdict(kept: bool) -> str:
    return "kept" if kept else "missed"


def table(rows: Sequence[RoomsRow]) -> list[str]:
    """A line per cohort, in milliseconds a round."""
    names = list(rows[0].rooms)
    head = f"{'':8}{'clients':>8}{'a round':>10}" + "".join(f"{name:>10}" for name in names) + f"{'us/client':>11}"
    lines = [head]
    for row in rows:
        rooms = "".join(f"{1e3 * row.rooms[name]:10.3f}" for name in names)
        per_client = 1e6 * row.seconds / row.clients
        lines.append(f"{row.workload:8}{row.clients:8,}{1e3 * row.seconds:10.3f}{rooms}{per_client:11.2f}")
    return lines


@app.command()
def main(
    workloads: Annotated[str, typer.Option(help="Some of the workloads of `fastfed bench rounds`.")] = "W1,W2",
    clients: Annotated[str, typer.Option(help="Sizes of cohorts.")] = "10,100,1000,10000",
    tested: Annotated[int, typer.Option(min=0, help="Examples of the test set.")] = TESTED,
    turns: Annotated[int, typer.Option(min=1, help="Turns of every cohort.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="Threads.")] = torch.get_num_threads(),
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all measurements as JSON rows.")] = None,
) -> None:
    """Measure whole simulations room by room: what is not training, and how rounds grow with their cohorts."""
    known = {**WORKLOADS, **PEERED}
    unknown = [name for name in workloads.split(",") if name not in known]
    if unknown:
        raise typer.BadParameter(f"workloads: must be some of {', '.join(known)}, got {unknown[0]!r}")
    torch.set_num_threads(threads)
    sizes = [int(size) for size in clients.split(",")]
    rows = [measure(known[name], size, tested, turns, threads) for name in workloads.split(",") for size in sizes]
    print(f"Milliseconds of a round, {threads} threads; evaluated and saved every {EVERY} rounds; {tested:,} tested")
    for line in (*table(rows), *promises(rows)):
        print(line)
    load = statistics.median(row.busy or 0.0 for row in rows)
    print(rows[0].machine + (f"; others used {load:.0%} of it: measure again" if load > TOLERABLE else ""))
    if json_file is not None:
        json_file.write_text(json.dumps([row.as_dict() for row in rows], indent=1))


if __name__ == "__main__":
    app()
