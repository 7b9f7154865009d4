"""Control variates (SCAFFOLD)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import kernels
from ..clients import SGD, Client
from ..servers import Server
from ..train import Outcome, RoundWork
from ..train.policy import policy_weights
from .protocol import Exchanger, MakeStore, VectorStore, make_store


@dataclass(frozen=True)
class ControlVariates:
    """SCAFFOLD, option II: gradients are corrected by c - c_i, where c_i follows the client's mean gradient of its last
    round and c the clients' mean. Clients run plain SGD. `store` makes what keeps the c_i (default: in memory)."""

    store: MakeStore | None = None

    down = 1
    up = 1
    kept = 1
    any_timing = False
    split = None

    def check(self, client: Client, server: Server) -> None:
        if not isinstance(client, SGD):
            raise ValueError(
                f"exchange: SCAFFOLD reads gradients off SGD's moves; client rule {client.rule!r} will not do"
            )
        for name in ("warmup", "clip", "prox", "weight_decay"):
            if getattr(client, name):
                raise ValueError(f"{name}: SCAFFOLD reads gradients off the clients' moves, which {name} would distort")

    def begin(self, x: Tensor, clients: int) -> Exchanger:
        return _Controlling(x, clients, self.store)


class _Controlling:
    keeps_deltas = True

    def __init__(self, x: Tensor, clients: int, store: MakeStore | None) -> None:
        self.clients = clients
        self.common = torch.zeros_like(x)
        self.own = make_store(store, x)

    def extras(self, cohort: Tensor, server_state: dict[str, Tensor]) -> dict[str, Any]:
        return {"corrections": self.common - self.own.get(cohort, self.common)}

    def absorb(self, work: RoundWork, outcome: Outcome) -> None:
        assert outcome.deltas is not None
        steps = outcome.scalars["steps"].long()
        lr = self._learning_rates(work)
        counts = (steps > 0) & ~outcome.refused & (lr > 0)  # a client that did not move shows no gradient
        weights = torch.where(counts, policy_weights(work, steps), 0.0)
        if not bool(weights.sum() > 0):
            return
        weights /= weights.sum()
        here = outcome.here[counts[outcome.here]]
        cohort, deltas = work.ids[here], outcome.deltas[counts[outcome.here]]
        before = self.own.get(cohort, self.common)
        gradients = deltas.mul_((-1 / (steps * lr)[here]).to(deltas)[:, None])  # the mean over local steps, corrected
        changes = gradients.sub_(self.common)
        self.own.put(cohort, before + changes)
        factors = (int(counts.sum()) / self.clients * weights[counts]).to(changes)
        self.common += outcome.peers.reduced(changes, counts, lambda rows: kernels.weighted_sum(rows, factors))

    @property
    def stores(self) -> tuple[VectorStore, ...]:
        return (self.own,)

    def _learning_rates(self, work: RoundWork) -> Tensor:
        own: float = work.optimizers[0].lr  # type: ignore[attr-defined]
        return torch.full((len(work),), own, dtype=torch.float64) if work.lr is None else work.lr

    def tensors(self) -> dict[str, Tensor]:
        return {"common": self.common, **self.own.tensors()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.common.copy_(tensors["common"])
        self.own.load(tensors)
