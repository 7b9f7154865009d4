"""What clients of an algorithm of one's own keep from round to round, and send besides their deltas."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import kernels
from ..clients import Algorithm, Client, algorithm_of
from ..train import Outcome, RoundWork
from ..train.policy import policy_weights
from .client_store import ClientStore
from .protocol import Exchange, Exchanger, VectorStore


class OfAlgorithm:
    """A vector that each client keeps, where the algorithm `keeps` one; the mean of those that clients sent in the last
    round, 0 at first, which is `common` to all in the next, where it `sends` one."""

    any_timing = True
    split = None

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm, self.name = algorithm, algorithm.rule
        self.down = self.up = int(algorithm.sends)
        self.kept = int(algorithm.keeps is not None)

    def check(self, client: Client, server: Any) -> None:
        """The algorithm has been checked."""

    def begin(self, x: Tensor, clients: int) -> Exchanger:
        return _Besides(self.algorithm, x)


def exchange_of(client: Any, exchange: Exchange | None) -> Exchange | None:
    """What is exchanged in a run: what the setting says, or what the client algorithm asks for."""
    algorithm = algorithm_of(client)
    if algorithm is None or not (algorithm.keeps or algorithm.sends):
        return exchange
    if exchange is not None:
        raise ValueError(
            f"exchange: {algorithm.rule} says itself what its clients keep and send; "
            f"leave {type(exchange).__name__} out"
        )
    return OfAlgorithm(algorithm)


class _Besides:
    keeps_deltas = False

    def __init__(self, algorithm: Algorithm, x: Tensor) -> None:
        self.common = torch.zeros_like(x) if algorithm.sends else None
        self.own = None if algorithm.keeps is None else ClientStore(x.numel(), x.dtype, x.device)
        self.first = x if algorithm.keeps == "start" else torch.zeros_like(x)  # x is the global model as it goes on

    def extras(self, cohort: Tensor, server_state: dict[str, Tensor]) -> dict[str, Any]:
        found = {} if self.common is None else {"common": self.common}
        return found if self.own is None else {**found, "kept": self.own.get(cohort, self.first)}

    def absorb(self, work: RoundWork, outcome: Outcome) -> None:
        assert outcome.besides is not None
        counts = (outcome.scalars["steps"] > 0) & ~outcome.refused
        here = outcome.here[counts[outcome.here]]
        if self.own is not None:
            self.own.put(work.ids[here], outcome.besides["kept"][counts[outcome.here]])
        if self.common is None:
            return
        weights = torch.where(counts, policy_weights(work, outcome.scalars["steps"].long()), 0.0)
        if bool(weights.sum() > 0):
            sent = outcome.besides["sent"][counts[outcome.here]]
            shares = (weights / weights.sum())[counts].to(sent)
            self.common.copy_(outcome.peers.reduced(sent, counts, lambda rows: kernels.weighted_sum(rows, shares)))

    @property
    def stores(self) -> tuple[VectorStore, ...]:
        return () if self.own is None else (self.own,)

    def tensors(self) -> dict[str, Tensor]:
        found = {} if self.common is None else {"common": self.common}
        return found if self.own is None else {**found, **self.own.tensors()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        if self.common is not None:
            self.common.copy_(tensors["common"])
        if self.own is not None:
            self.own.load(tensors)
