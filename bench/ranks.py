"""`python -m fastfed.bench.ranks`: two ranks of one thread each beside one process of two threads.

Both run whole rounds of the same simulation (clients, server's step, records), and take turns: while one measures, the
other waits. A cohort has so many clients per core, whatever the number of cores (weak scaling).
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from .. import ranks
from ..app.doctor import machine
from ..clients import SGD
from ..data import Federated
from ..servers import FedAdam
from ..simulation import Simulation
from .common.neighbours import TOLERABLE, busy
from .rounds.workloads import LEARNING_RATE, SEED, WORKLOADS, Workload

PER_CORE = {"W1": 2000, "W2": 100, "W3": 4, "LSTM": 4, "AE": 10, "SO-LR": 50}  # clients: about a second a round
PROMISED = 0.95  # of the speed of threads

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@dataclass(frozen=True)
class RanksRow:
    """One workload: client updates a second, the median over turns of each, and their ratio turn by turn, with the 20th
    and 80th percentile; `moved`: vectors of the model's size that a rank sends in a round, the largest of all ranks."""

    workload: str
    clients: int
    parameters: int
    cores: int
    threads_rate: float
    ranks_rate: float
    ratio: float
    p20: float
    p80: float
    turns: int
    moved: float
    machine: str


def simulation_of(workload: Workload, clients: int, threads: int) -> Simulation:
    """FedAdam over SGD: every client takes part in every round. At most a thousand have examples of their own."""
    stored = min(clients, 1000)
    rows = torch.arange(clients * workload.examples) % (stored * workload.examples)
    examples = workload.data(stored * workload.examples)
    fed = Federated(workload.name, examples, rows, torch.arange(clients + 1) * workload.examples)
    return Simulation(
        workload.make_module(),
        fed,
        client=SGD(lr=LEARNING_RATE),
        server=FedAdam(lr=1e-3),
        cohort=clients,
        batch_size=workload.batch,
        loss=workload.loss,
        seed=SEED,
        threads=threads,
    )


# ---- those who run --------------------------------------------------------------------------------------------------


def serve(workload: Workload, clients: int, threads: int) -> None:
    """Runs so many rounds as each line of standard input says, and answers with the seconds; one of several ranks if
    the environment says so."""
    torch.set_num_threads(threads)
    with ranks.join() as joined:
        sim = simulation_of(workload, clients, threads)
        sim.step()  # memory that is asked for once
        before = 0 if joined is None else joined.moved
        sim.step()
        moved = 0 if joined is None else joined.moved - before
        print(json.dumps({"moved": moved / sim.packing.size, "parameters": sim.packing.parameters}), flush=True)
        for line in sys.stdin:
            start = time.perf_counter()
            for _ in range(int(line)):
                sim.step()
            print(time.perf_counter() - start, flush=True)


class Contender:
    """Processes that do one simulation: one with threads, or ranks of one thread each."""

    def __init__(self, workload: str, clients: int, processes: int, threads: int) -> None:
        port = _free_port()
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "fastfed.bench.ranks", "--serve", workload, str(clients), str(threads)],
                env={**os.environ, **_environment(rank, processes, port), "OMP_NUM_THREADS": str(threads)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(processes)
        ]
        self.told = [json.loads(_out(process).readline()) for process in self._processes]

    def seconds(self, rounds: int) -> float:
        """Of so many rounds, by the slowest process."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{rounds}\n")
            process.stdin.flush()
        return max(float(_out(process).readline()) for process in self._processes)

    def end(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            process.wait()


def _out(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _environment(rank: int, count: int, port: int) -> dict[str, str]:
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    return {**where, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}


# ---- who asks them --------------------------------------------------------------------------------------------------


def measured(name: str, cores: int, turns: int, per_core: int | None = None) -> RanksRow:
    """A workload's row: both take turns, in which each runs about as long."""
    clients = cores * (PER_CORE[name] if per_core is None else per_core)
    threads, several = (Contender(name, clients, *each) for each in ((1, cores), (cores, 1)))
    rounds = max(1, round(1.0 / threads.seconds(1)))
    several.seconds(1)
    pairs = [(threads.seconds(rounds), several.seconds(rounds)) for _ in range(turns)]
    threads.end()
    several.end()
    ratios = [with_threads / with_ranks for with_threads, with_ranks in pairs]
    p20, *_, p80 = statistics.quantiles(ratios, n=5, method="inclusive") if turns > 1 else ratios * 2
    updates = rounds * clients
    return RanksRow(
        workload=name,
        clients=clients,
        parameters=int(several.told[0]["parameters"]),
        cores=cores,
        threads_rate=updates / statistics.median(one for one, _ in pairs),
        ranks_rate=updates / statistics.median(one for _, one in pairs),
        ratio=statistics.median(ratios),
        p20=p20,
        p80=p80,
        turns=turns,
        moved=max(float(one["moved"]) for one in several.told),
        machine=machine().words,
    )


def table(rows: Sequence[RanksRow]) -> Table:
    """One line per workload."""
    cores = rows[0].cores
    shown = Table(
        title=f"{cores} ranks of one thread beside one process of {cores} threads",
        caption=f"ratio: of speeds, the median of {rows[0].turns} turns with the 20th and 80th percentile",
    )
    shown.add_column("workload", no_wrap=True)
    for name in ("clients", "parameters", "threads, updates/s", "ranks, updates/s", "ratio", "spread", "moved, d"):
        shown.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        rates = (f"{row.threads_rate:,.4g}", f"{row.ranks_rate:,.4g}", f"{row.ratio:.3f}x")
        spread = f"{row.p20:.3f} to {row.p80:.3f}"
        shown.add_row(row.workload, f"{row.clients:,}", f"{row.parameters:,}", *rates, spread, f"{row.moved:.2f}")
    return shown


@app.command()
def main(
    workloads: Annotated[str, typer.Option(help=f"Some of {', '.join(PER_CORE)}.")] = "W1,W2,W3",
    cores: Annotated[int, typer.Option(min=2, help="Ranks, and threads.")] = 2,
    turns: Annotated[int, typer.Option(min=1, help="Turns; in each both run for about a second.")] = 15,
    per_core: Annotated[int | None, typer.Option(min=1, help="Clients of a cohort per core.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all measurements as JSON rows.")] = None,
) -> None:
    """Measure what dealing a cohort to ranks costs, against threads of one process.

    Example: python -m fastfed.bench.ranks --workloads W2 --turns 15 --json out/ranks.json
    """
    names = workloads.split(",")
    for name in names:
        if name not in PER_CORE:
            raise typer.BadParameter(f"must be some of {', '.join(PER_CORE)}, got {name!r}", param_hint="--workloads")
    console = Console()
    console = console if console.is_terminal else Console(width=130)
    others = busy()
    rows = []
    for name in names:
        print(f"{name}: {WORKLOADS[name].words}", file=sys.stderr, flush=True)
        rows.append(measured(name, cores, turns, per_core))
    console.print(table(rows))
    console.print(rows[0].machine, highlight=False)
    for row in rows:
        verdict = "kept" if row.ratio >= PROMISED else "missed"
        console.print(f"{row.workload}: at least {PROMISED}x is promised, {row.ratio:.3f}x measured: {verdict}")
    if others is not None and others > TOLERABLE:
        console.print(f"Others used {others:.0%} of the machine: what was measured says little.")
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
        console.print(f"Rows: {json_file}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(WORKLOADS[sys.argv[2]], int(sys.argv[3]), int(sys.argv[4]))
    else:
        app()
