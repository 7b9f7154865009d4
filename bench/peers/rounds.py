"""Who trains a round: FastFed, the client loop that people write in PyTorch, and torch.func.vmap over many clients.

All see the same batches, which the peers are given as ready-made indices (FastFed shuffles inside the round).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from ... import kernels
from ...data import Examples
from ...packing import Packing
from ...train import RoundWork
from ...train.batches import Batches
from ...train.executors import Executor
from ..common.place import CPU
from ..common.timing import Call
from ..rounds.rows import CHUNKED, PLAIN, VMAP
from ..rounds.workloads import LEARNING_RATE, Peer, Workload

SERVER_LEARNING_RATE, TAU = 1e-3, 1e-3  # of FedAdam


class Contender(Protocol):
    """Trains the clients of its round."""

    def aggregate(self, x: Tensor) -> Tensor:
        """The weighted sum (d,) of the deltas of all clients, trained from the packed `x` (d,)."""


def whole_round(contender: Contender, start: Tensor) -> Call:
    """A call that trains a round and takes FedAdam's step; the model goes on from call to call."""
    x = start.clone()
    state = kernels.server_state("adam", x, tau=TAU)

    def call() -> None:
        kernels.server_step("adam", x, contender.aggregate(x), state, lr=SERVER_LEARNING_RATE, tau=TAU)

    return call


@dataclass(frozen=True)
class FastFed:
    """One of FastFed's executors."""

    executor: Executor
    work: RoundWork

    def aggregate(self, x: Tensor) -> Tensor:
        return self.executor.run(replace(self.work, start=x)).delta


class PlainLoop:
    """Client after client: copy the parameters, a fresh torch.optim.SGD, backward and step, add up the deltas."""

    def __init__(
        self,
        workload: Workload,
        peer: Peer,
        examples: Examples,
        work: RoundWork,
        chunk: int = 1,
        device: torch.device = CPU,
    ) -> None:
        self.module = module_of(workload, peer).to(device)
        self.packing = Packing.of(self.module)
        self.loss = LOSSES[workload.loss]
        self.inputs, self.targets = (side.to(device) for side in _dense(examples, work))
        self.batches = [_batches(work, position, device) for position in range(len(work))]
        self.weights = _weights(work).tolist()

    def aggregate(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        start, sums = self.packing.views(x), self.packing.views(total)
        parameters = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        for batches, weight in zip(self.batches, self.weights, strict=True):
            with torch.no_grad():
                for name, parameter in parameters.items():
                    parameter.copy_(start[name])
            self._train(batches)
            with torch.no_grad():
                for name, parameter in parameters.items():
                    sums[name].add_(parameter - start[name], alpha=weight)
        return total

    def _train(self, batches: list[Tensor]) -> None:
        optimizer = torch.optim.SGD(self.module.parameters(), lr=LEARNING_RATE)
        for rows in batches:
            optimizer.zero_grad()
            loss = self.loss(self.module(self.inputs[rows]), self.targets[rows])
            loss.backward()
            optimizer.step()


class Vmap:
    """Chunks of clients with stacked parameters (chunk, ...), all of a chunk differentiated at once."""

    def __init__(
        self,
        workload: Workload,
        peer: Peer,
        examples: Examples,
        work: RoundWork,
        chunk: int,
        device: torch.device = CPU,
    ) -> None:
        self.module = module_of(workload, peer).to(device)
        self.packing = Packing.of(self.module)
        self.inputs, self.targets = (side.to(device) for side in _dense(examples, work))
        self.chunks = [_Chunk.of(work, part, device) for part in torch.arange(len(work)).split(chunk)]
        loss = LOSSES[workload.loss]

        def loss_of(parameters: Mapping[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
            return loss(functional_call(self.module, dict(parameters), (inputs,)), targets)

        self.gradients: Callable[..., dict[str, Tensor]] = vmap(grad(loss_of))

    def aggregate(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        start, sums = self.packing.views(x), self.packing.views(total)
        for chunk in self.chunks:
            stacked = {name: view.repeat(len(chunk.weights), *[1] * view.dim()) for name, view in start.items()}
            for rows in chunk.batches:
                gradients = self.gradients(stacked, _gather(self.inputs, rows), _gather(self.targets, rows))
                for name, parameter in stacked.items():
                    parameter.sub_(gradients[name], alpha=LEARNING_RATE)
            for name, parameter in stacked.items():
                sums[name].add_(torch.tensordot(chunk.weights, parameter.sub_(start[name]), 1))
        return total


@dataclass(frozen=True)
class _Chunk:
    """Clients trained at once: the rows (clients, batch) of every step, and their weights (clients,)."""

    batches: list[Tensor]
    weights: Tensor

    @classmethod
    def of(cls, work: RoundWork, clients: Tensor, device: torch.device) -> _Chunk:
        of_clients = [_batches(work, int(position), device) for position in clients]
        weights = _weights(work)[clients].to(device)
        return cls([torch.stack(step) for step in zip(*of_clients, strict=True)], weights)


PEERS: dict[str, Callable[[Workload, Peer, Examples, RoundWork, int, torch.device], Contender]] = {
    PLAIN: PlainLoop,
    VMAP: Vmap,
    CHUNKED: Vmap,
}


def _sequence_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of labels (n,), or of every position of sequences (n, length)."""
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": _sequence_cross_entropy,
    "binary_cross_entropy": F.binary_cross_entropy_with_logits,
    "mse": F.mse_loss,
}


def module_of(workload: Workload, peer: Peer) -> nn.Module:
    """What a peer trains: its own module where it has one, else the workload's."""
    return workload.make_module() if peer.module is None else peer.module()


def _batches(work: RoundWork, position: int, device: torch.device) -> list[Tensor]:
    """The example rows of every local step of one client, where they are looked up."""
    own = Batches(work, position)
    return [own.at(step).to(device) for step in range(int(work.steps[position]))]


def _gather(store: Tensor, rows: Tensor) -> Tensor:
    """``store[rows]`` for rows (clients, batch); for many rows this is the faster way."""
    return store.index_select(0, rows.flatten()).unflatten(0, rows.shape)


def _weights(work: RoundWork) -> Tensor:
    """Each client's share of the round's examples."""
    return (work.counts / work.counts.sum()).float()


def _dense(examples: Examples, work: RoundWork) -> tuple[Tensor, Tensor]:
    """The examples up to the last that the work needs as ordinary tensors: made once, outside all timing."""
    count = int(work.rows.max()) + 1
    stores = examples.inputs, examples.targets
    inputs, targets = (
        store[:count] if isinstance(store, Tensor) else store.dense(torch.arange(count)) for store in stores
    )
    return inputs, targets
