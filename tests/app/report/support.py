"""Run directories for the tests of reports: written by hand, or from short real simulations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import fastfed as ff
from fastfed.app import runs
from fastfed.record import costs
from fastfed.record.history import History


def write_run(
    place: Path,
    rows: list[dict[str, Any]],
    *,
    method: str = "fedavg",
    seed: int = 0,
    settings: str = "",
    info: Mapping[str, Any] | None = None,
    clients: Mapping[str, Any] | None = None,
    cost: Mapping[str, Any] | None = None,
) -> Path:
    """A run directory as `fastfed run` leaves it. `settings`: lines of TOML after seed and method."""
    place.mkdir(parents=True)
    told: dict[str, Any] = {
        "name": place.name,
        "method": method,
        "status": "done",
        "seed": seed,
        "metric": "test_accuracy",
        "executor": "native",
        "threads": 2,
        "clients": 30,
        "parameters": 4810,
        "started": "2031-05-01T10:00:00",
        "finished": "2031-05-01T10:00:09",
        "seconds": 9.0,
        "fastfed": ff.__version__,
        "torch": torch.__version__,
        "machine": {"cpu": "a processor", "cores": 2},
    }
    (place / "run.json").write_text(json.dumps({**told, **(info or {})}))
    (place / "config.toml").write_text(f'seed = {seed}\nmethod = "{method}"\n{settings}')
    (place / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, content in (("clients", clients), ("costs", cost)):
        if content is not None:
            (place / f"{name}.json").write_text(json.dumps(content))
    return place


def rows(accuracies: list[float | None], **columns: Any) -> list[dict[str, Any]]:
    """A history with these accuracies; `columns` are added to every row."""
    return [
        {
            "round": i + 1,
            "clients": 10,
            "counted": 10,
            "skipped": 0,
            "idle": 0,
            "train_loss": None if value is None else 1 - value,
            "test_loss": None if value is None else 1.2 * (1 - value),
            "test_accuracy": value,
            "step_size": 0.1,
            "step_size_min": 0.1,
            "step_size_max": 0.1,
            "bytes_down": 1_000_000,
            "bytes_up": 500_000,
            "seconds_train": 0.2,
            "seconds_plan": 0.01,
            **columns,
        }
        for i, value in enumerate(accuracies)
    ]


FLEET = ff.fleet.Fleet(step_seconds=0.1, spread=1.0, network_seconds=0.5, dropout=0.05)
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {**ff.methods.fedavg(0.1), "cohort": 8},
    "fedyogi": {**ff.methods.fedyogi(0.1, 0.03), "cohort": 8},
    "fedada2": {  # with a server that begins too fast: "zoom" has something to leave out
        **ff.methods.fedada2("adam", "adagrad", client_lr=0.03, server_lr=0.03),
        "server": ff.servers.FedAdam(lr=0.03, second_moment_of="delta"),
        "cohort": 8,
    },
    "delta_sgd": {**ff.methods.delta_sgd(), "cohort": 8},
    "fathom": {**ff.methods.fathom(0.05, epochs=2, batch_size=10), "cohort": 8},
    "fedbuff": ff.methods.fedbuff(0.1, concurrency=16, buffer=5, fleet=FLEET),
    "private": {
        "client": ff.clients.SGD(lr=0.1),
        "cohort": ff.plan.Poisson(0.3),
        "weights": "uniform",
        "privacy": ff.privacy.Privacy(clip=0.5, noise=0.6, delta=1e-3),
    },
}


def simulate(place: Path, method: str, seed: int, rounds: int) -> Path:
    """A short real run on the embedded digits, in a run directory."""
    fed = ff.data.dirichlet(ff.data.digits(), clients=40, alpha=0.3, seed=0)
    torch.manual_seed(seed)
    settings = {"epochs": 2, "batch_size": 10, **METHODS[method]}
    sim = ff.Simulation(ff.models.mlp(64, 64, 10), fed, seed=seed, **settings)
    history = sim.run(rounds=rounds, evaluate_every=2, progress=False)
    cost = costs.of(method, settings, sim.packing)
    told = {"seconds": _seconds(history), "clients": len(fed), "parameters": sim.packing.parameters}
    return write_run(
        place,
        history.rounds,
        method=method,
        seed=seed,
        settings=_toml(settings),
        info=told,
        clients=runs.who_has_what(fed),
        cost={"bytes_down": cost.bytes_down, "bytes_up": cost.bytes_up, "optimizer_bytes": cost.optimizer_bytes},
    )


def _seconds(history: History) -> float:
    return sum(value for row in history for name, value in row.items() if name.startswith("seconds"))


def _toml(settings: Mapping[str, Any]) -> str:
    """Enough of the settings to tell runs apart."""
    client, server = settings["client"], settings.get("server")
    lines = [f"epochs = {settings['epochs']}", f"batch_size = {settings['batch_size']}", "[client]"]
    lines += [f'rule = "{client.rule}"', *([f"lr = {client.lr}"] if isinstance(client.lr, float) else [])]
    if server is not None:
        lines += ["[server]", f'rule = "{type(server).__name__}"', f"lr = {server.lr}"]
    return "\n".join([*lines, "[data]", 'name = "digits"', "alpha = 0.3", "seed = 0"]) + "\n"
