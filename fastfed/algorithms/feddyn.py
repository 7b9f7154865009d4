"""FedDyn: clients' losses get a linear term that makes their minima agree (Acar et al., ICLR 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ..aggregate import Aggregate
from ..clients import ClientRound
from ..servers import State


@dataclass(frozen=True)
class FedDyn:
    """Local steps x -= lr * (g - h_i + alpha (x - start)); afterwards h_i -= alpha (x - start), which the client keeps.
    It belongs to `FedDynServer`, and to clients that all count alike."""

    lr: float
    alpha: float = 0.1
    rule: ClassVar[str] = "feddyn"
    keeps: ClassVar[str] = "zeros"
    vectorised: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.alpha < math.inf:
            raise ValueError(f"alpha: must be a finite number > 0, got {self.alpha!r}")

    def client_init(self, start: Tensor, round: ClientRound) -> State:
        return {"start": start, "h": round.kept, "lr": round.lr}

    def client_step(self, state: State, params: Tensor, gradient: Tensor, step: int) -> tuple[State, Tensor]:
        direction = gradient - state["h"] + self.alpha * (params - state["start"])
        return state, params - state["lr"] * direction

    def client_final(self, state: State, params: Tensor) -> dict[str, Tensor]:
        return {"params": params, "kept": state["h"] - self.alpha * (params - state["start"])}


@dataclass(frozen=True)
class FedDynServer:
    """s += (sum_i D_i) / clients; x += D + s, where D is the mean delta of those who took part. The paper's h is
    -alpha s, so that the server needs no alpha. A server schedule may move lr, which is 1."""

    rule: ClassVar[str] = "feddyn"

    def check(self, client: Any) -> None:
        """Refuses clients that keep no h_i."""
        if not isinstance(client, FedDyn):
            raise ValueError(f"server: FedDynServer belongs to clients that run FedDyn, got {client!r}")

    def begin(self, x: Tensor, clients: int) -> State:
        return {"s": x.new_zeros(x.shape), "clients": x.new_tensor(clients)}

    def step(self, state: State, x: Tensor, aggregate: Aggregate, lr: float) -> tuple[State, Tensor]:
        state["s"] += aggregate.counted / state["clients"] * aggregate.delta
        return state, x + lr * (aggregate.delta + state["s"])
