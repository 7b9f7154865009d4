"""Fashion-MNIST, client-centric: CC's defaults, with the server learning rate of its grid that suits each rule best.

100 clients, Dirichlet 0.5 over the classes, LeNet; the server steps after 5 updates from clients that started from one
of the newest 6 models and trained for 1 to 6 epochs. The paper leaves the clients' learning rate and batch size open:
0.1 and 64 here. Every rate of the grid runs for `--trial` server steps, and the best for `--rounds`.

    python experiments/client_centric.py ../shared/data/fmnist
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from common import Result, Setting, chosen_methods, report, run

import fastfed as ff

CLIENT_LR = 0.1
RATES = tuple(10 ** (power / 2) for power in range(-6, 3))  # 1e-3, 1e-2.5, ..., 10
SERVERS = {"CC-FedSGD": "sgd", "CC-FedAdagrad": "adagrad", "CC-FedAdam": "adam", "CC-FedAMS": "ams"}
METRIC = "test_accuracy"


def make(root: str) -> Setting:
    """The data of a directory with the four files, and the model."""
    fed = ff.data.dirichlet(ff.data.fashion_mnist(root), clients=100, alpha=0.5, seed=0)
    return Setting(fed, ff.models.lenet, cohort=None, epochs=1, batch_size=64)


def settings(server: str, server_lr: float) -> dict[str, Any]:
    """A rule with a learning rate."""
    return ff.methods.client_centric(server, client_lr=CLIENT_LR, server_lr=server_lr)


def best_rate(name: str, setting: Setting, rounds: int, seed: int) -> float:
    """The rate with the best mean accuracy over the last three evaluations of a trial."""
    means = {}
    for rate in RATES:
        result = run(f"{name}, {rate:.3g}", setting, settings(SERVERS[name], rate), rounds, max(1, rounds // 10), seed)
        last = result.history.column(METRIC)[-3:]
        means[rate] = sum(last) / len(last)
        print(f"{name}, server lr {rate:.3g}: {100 * means[rate]:.2f}%", file=sys.stderr, flush=True)
    return max(means, key=means.__getitem__)


def command(
    data: Annotated[Path, typer.Argument(help="The directory of Fashion-MNIST.")],
    rounds: Annotated[int, typer.Option(min=1, help="Server steps with the best rate.")] = 300,
    trial: Annotated[int, typer.Option(min=1, help="Server steps of every rate.")] = 60,
    only: Annotated[str | None, typer.Option(help="Methods to run, separated by commas.")] = None,
    evaluate_every: Annotated[int, typer.Option(min=1, help="Server steps between evaluations.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Of cohorts, batches and initial weights.")] = 0,
    out: Annotated[Path, typer.Option(help="Where the rows and the picture go.")] = Path("out"),
) -> None:
    chosen = chosen_methods(SERVERS, only)
    setting = make(str(data))
    results: dict[str, Result] = {}
    for name, server in chosen.items():
        rate = best_rate(name, setting, trial, seed)
        results[f"{name}, {rate:.3g}"] = run(name, setting, settings(server, rate), rounds, evaluate_every, seed)
    report(results, METRIC, f"{setting.fed.name}: {len(setting.fed)} clients, {rounds} server steps", out)


command.__doc__ = __doc__

if __name__ == "__main__":
    typer.run(command)
