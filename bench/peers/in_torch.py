"""PyTorch alone in `bench peers`: the plain loop over clients, or torch.func.vmap over `chunk` of them at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch  # before FastFed: threads wait as torch has it by itself

from fastfed.bench.peers.rounds import PlainLoop, Vmap
from fastfed.bench.rounds.rows import PLAIN
from fastfed.bench.rounds.workloads import PEERED, Peer
from fastfed.data import Examples
from fastfed.packing import Packing

from .serving import Task, serve


class InTorch:
    """The contenders of `bench rounds`; a chunk of 0 is the loop."""

    def __init__(self, task: Task) -> None:
        torch.set_num_threads(task.threads)
        self.task, self.workload = task, PEERED[task.told["workload"]]
        self.examples = Examples(torch.from_numpy(task.inputs), torch.from_numpy(task.targets))
        module = self.workload.make_module()
        self.packing = Packing.of(module)
        self.start = self.packing.pack(module)

    def begin(self, steps: int | None) -> None:
        task = self.task
        work = self.workload.work(self.start, task.clients, task.clients, task.steps(steps))
        peer = Peer() if task.chunk else self.workload.peers[PLAIN]
        make = Vmap if task.chunk else PlainLoop
        self.contender = make(self.workload, peer, self.examples, work, task.chunk)
        self.x = self.start.clone()

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            self.x += self.contender.aggregate(self.x)

    def model(self) -> Sequence[np.ndarray]:
        return [view.numpy() for view in self.packing.views(self.x).values()]


if __name__ == "__main__":
    serve(InTorch, {"torch": torch.__version__})
