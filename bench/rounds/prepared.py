"""A workload made ready to run: its data, a start model, FastFed's executor for it, and its peers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from ...data import Examples
from ...packing import Packing
from ...program import trace
from ...train import executors
from ...train.executors import Executor
from ..common.place import HOST, Place
from ..common.timing import Call
from ..peers.rounds import PEERS, Contender, FastFed, whole_round
from . import flops
from .rows import BATCHED
from .workloads import Peer, Workload

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
    place: Place = HOST

    @classmethod
    def of(cls, workload: Workload, stored: int, threads: int, executor: str, place: Place = HOST) -> Prepared:
        examples = workload.data(stored * workload.examples)
        module = workload.make_module()
        packing = Packing.of(module)
        given = None if place.on_card else threads  # executors of a card have no use for them
        ours = executors.make(executor, module, workload.loss, examples, threads=given, device=place.device)
        return cls(workload, examples, packing.pack(module).to(place.device), packing, ours, stored, place)

    @property
    def peers(self) -> Mapping[str, Peer]:
        """Who is timed beside FastFed there."""
        return self.workload.peers_on(self.place.on_card)

    @cached_property
    def batched(self) -> Executor:
        """FastFed's executor of that name."""
        module = self.workload.make_module()
        return executors.make("batched", module, self.workload.loss, self.examples, device=self.place.device)

    def ours(self, clients: int, steps: int | None = None) -> Contender:
        """FastFed on the first so many clients, with so many local steps (default: all epochs)."""
        return FastFed(self.executor, self.workload.work(self.start, clients, self.stored, steps))

    def our_round(self, clients: int) -> Call:
        """A whole round of FastFed on them."""
        return whole_round(self.ours(clients), self.start)

    def peer(self, name: str, chunk: int, clients: int, steps: int | None = None) -> Contender:
        """A peer on the same, `chunk` clients at a time."""
        work = self.workload.work(self.start, clients, self.stored, steps)
        if name == BATCHED:
            return FastFed(self.batched, work)
        return PEERS[name](self.workload, self.peers[name], self.examples, work, chunk, self.place.device)

    def flops(self) -> float:
        """Floating-point operations of one client's training."""
        program = trace(self.workload.make_module(), self.examples.inputs, self.workload.loss)
        return self.workload.epochs * self.workload.examples * flops.per_example(program, self.examples.inputs)
