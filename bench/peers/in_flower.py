"""Flower in `bench peers`: its FedAvg strategy on its simulation engine, with as many Ray actors as cores."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

from . import torch_tasks
from .serving import Task, serve

client_app = ClientApp()


@cache
def _held(folder: str, clients: int) -> tuple[Task, nn.Module]:
    """A task and its module, read once in every actor."""
    torch.set_num_threads(1)
    held = Task(Path(folder), clients, threads=1, chunk=0)
    return held, torch_tasks.module(held)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """One client's training: its node has the client's number."""
    config: Any = message.content["config"]
    task, module = _held(config["folder"], config["clients"])
    torch_tasks.put(module, _arrays(message.content["arrays"]))
    torch_tasks.train(module, task, int(context.node_config["partition-id"]), config["steps"])
    metrics = MetricRecord({"num-examples": config["steps"] * int(task.told["batch"])})
    return Message(RecordDict({"arrays": _record(torch_tasks.taken(module)), "metrics": metrics}), reply_to=message)


def _record(arrays: Sequence[np.ndarray]) -> ArrayRecord:
    return ArrayRecord({str(place): Array(array) for place, array in enumerate(arrays)})


def _arrays(record: Any) -> list[np.ndarray]:
    return [record[str(place)].numpy() for place in range(len(record))]


class InFlower:
    """All nodes in every round; nothing is evaluated."""

    def __init__(self, task: Task, grid: Grid) -> None:
        self.task, self.grid = task, grid

    def begin(self, steps: int | None) -> None:
        self.steps = self.task.steps(steps)
        self.arrays = _record(self.task.start)

    def run(self, rounds: int) -> None:
        clients = self.task.clients
        strategy = FedAvg(
            fraction_train=1.0,
            fraction_evaluate=0.0,
            min_train_nodes=clients,
            min_evaluate_nodes=0,
            min_available_nodes=clients,
        )
        told = ConfigRecord({"folder": str(self.task.folder), "clients": clients, "steps": self.steps})
        self.arrays = strategy.start(self.grid, self.arrays, num_rounds=rounds, train_config=told).arrays
        if not len(self.arrays):
            raise RuntimeError("clients failed in Flower's actors: standard error has their reasons")

    def model(self) -> Sequence[np.ndarray]:
        return _arrays(self.arrays)


def main() -> None:
    """Serves from within the server app, which is where a grid is."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    server_app = ServerApp()
    threads, clients = Task.of_command().threads, Task.of_command().clients

    @server_app.main()
    def serving(grid: Grid, context: Context) -> None:
        versions = {"flower": version("flwr"), "ray": version("ray"), "torch": torch.__version__}
        serve(lambda task: InFlower(task, grid), versions)

    resources = {"num_cpus": 1, "num_gpus": 0.0}
    run_simulation(
        server_app,
        client_app,
        num_supernodes=clients,
        backend_config={"client_resources": resources, "init_args": {"num_cpus": threads}},
    )


if __name__ == "__main__":  # actors must find what they run by a name, which `__main__` is not
    importlib.import_module(f"{__package__}.in_flower").main()
