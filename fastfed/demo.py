"""The methods of the papers on the digits that come with FastFed: what `make run` shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich.table import Table

from . import data, methods, models
from .record import History
from .simulation import Simulation

CLIENTS, COHORT, ALPHA, TARGET = 100, 10, 0.3, 0.9
EVALUATE_EVERY = 5

# Learning rates that do well here; nobody has searched for the best.
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": methods.fedavg(0.1),
    "FedAvgM": methods.fedavgm(0.1, 0.3),
    "FedAdagrad": methods.fedadagrad(0.1, 0.1),
    "FedAdam": methods.fedadam(0.1, 0.03),
    "FedYogi": methods.fedyogi(0.1, 0.03),
    "SCAFFOLD": methods.scaffold(0.1),
    "FedAda2": methods.fedada2("adam", "adagrad", client_lr=0.03, server_lr=0.03),
    "Delta-SGD": methods.delta_sgd(),
}


@dataclass(frozen=True)
class Run:
    """One method's run: its history, and clients trained per second."""

    name: str
    history: History
    clients_per_second: float


def run(rounds: int, say: Callable[[str], None] = lambda name: None) -> list[Run]:
    """Every method from the same start on the same data; `say` hears each name before its run."""
    fed = data.dirichlet(data.digits(), clients=CLIENTS, alpha=ALPHA, seed=0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = models.mlp(64, 64, 10)
    runs = []
    for name, settings in METHODS.items():
        say(name)
        sim = Simulation(model, fed, cohort=COHORT, epochs=2, batch_size=10, seed=0, **settings)
        history = sim.run(rounds=rounds, evaluate_every=EVALUATE_EVERY, progress=False)
        seconds = sum(history.column("seconds_train"))
        runs.append(Run(name, history, COHORT * rounds / seconds))
    return runs


def table(runs: list[Run]) -> Table:
    """Accuracy, rounds to 90%, transmitted bytes, memory and speed."""
    rounds = len(runs[0].history)
    shown = Table(
        title=f"Digits, {COHORT} of {CLIENTS} clients a round, Dirichlet {ALPHA}, {rounds} rounds",
        caption="bytes: sent up and down until that round, or in all rounds; memory: of a client's optimizer",
    )
    shown.add_column("method")
    headings = ("test accuracy", "best", f"rounds to {TARGET:.0%}", "MB sent", "optimizer bytes", "clients/s")
    for heading in headings:
        shown.add_column(heading, justify="right")
    for one in runs:
        shown.add_row(one.name, *_cells(one))
    return shown


def _cells(one: Run) -> list[str]:
    history = one.history
    reached = history.rounds_to("test_accuracy", TARGET)
    until = history.rounds[:reached]
    sent = sum(row["bytes_down"] + row["bytes_up"] for row in until)
    return [
        f"{history.last('test_accuracy'):.1%}",
        f"{history.best('test_accuracy'):.1%}",
        "-" if reached is None else str(reached),
        f"{sent / 1e6:.1f}",
        f"{history.rounds[-1]['client_optimizer_bytes']:,}",
        f"{one.clients_per_second:,.0f}",
    ]
