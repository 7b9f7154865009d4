"""FastFed in `bench peers`: whole rounds of a Simulation, records included, batches shuffled on the way."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

import fastfed as ff
from fastfed.bench.rounds.workloads import PEERED, SEED

from .serving import Task, serve


class InFastFed:
    """All clients in every round, with executor `native`."""

    def __init__(self, task: Task) -> None:
        torch.set_num_threads(task.threads)
        self.task, self.workload = task, PEERED[task.told["workload"]]
        held = self.workload.examples * task.clients
        examples = ff.data.Examples(torch.from_numpy(task.inputs[:held]), torch.from_numpy(task.targets[:held]))
        offsets = torch.arange(task.clients + 1) * self.workload.examples
        self.fed = ff.data.Federated(self.workload.name, examples, torch.arange(held), offsets)

    def begin(self, steps: int | None) -> None:
        self.sim = ff.Simulation(
            self.workload.make_module(),
            self.fed,
            client=ff.clients.SGD(lr=self.task.told["lr"]),
            server=ff.servers.FedAvg(),
            cohort=self.task.clients,
            steps=self.task.steps(steps),
            batch_size=self.workload.batch,
            loss=self.workload.loss,
            seed=SEED,
            executor="native",
            threads=self.task.threads,
        )

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            self.sim.step()

    def model(self) -> Sequence[np.ndarray]:
        return [view.numpy() for view in self.sim.packing.views(self.sim.params).values()]


if __name__ == "__main__":
    serve(InFastFed, {"fastfed": ff.__version__, "torch": torch.__version__})
