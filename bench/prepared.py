"""A workload made ready to run: its data, a start model, FastFed's executor for it, and its peers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..data import Examples
from ..packing import Packing
from ..program import trace
from ..train import executors
from ..train.executors import Executor
from . import flops
from .contenders import PEERS, Contender, FastFed, whole_round
from .timing import Call
from .workloads import Workload

SLICE = 0.1  # seconds: rounds shorter than this are repeated


@dataclass(frozen=True)
class Prepared:
    """A workload with the data of `stored` clients, a start model (d,) and FastFed's executor for it."""

    workload: Workload
    examples: Examples
    start: Tensor
    packing: Packing
    executor: Executor
    stored: int

    @classmethod
    def of(cls, workload: Workload, stored: int, threads: int, executor: str) -> Prepared:
        examples = workload.data(stored * workload.examples)
        module = workload.make_module()
        packing = Packing.of(module)
        ours = executors.make(executor, module, workload.loss, examples, threads=threads)
        return cls(workload, examples, packing.pack(module), packing, ours, stored)

    def ours(self, clients: int, steps: int | None = None) -> Contender:
        """FastFed on the first so many clients, with so many local steps (default: an epoch)."""
        return FastFed(self.executor, self.workload.work(self.start, clients, self.stored, steps))

    def our_round(self, clients: int) -> Call:
        """A whole round of FastFed on them."""
        return whole_round(self.ours(clients), self.start)

    def peer(self, name: str, chunk: int, clients: int, steps: int | None = None) -> Contender:
        """A peer on the same, `chunk` clients at a time."""
        work = self.workload.work(self.start, clients, self.stored, steps)
        return PEERS[name](self.workload, self.workload.peers[name], self.examples, work, chunk)

    def flops(self) -> float:
        """Floating-point operations of one client's training."""
        program = trace(self.workload.make_module(), self.examples.inputs, self.workload.loss)
        return self.workload.examples * flops.per_example(program, self.examples.inputs)
