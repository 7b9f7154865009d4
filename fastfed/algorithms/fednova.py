"""FedNova: clients that take more steps do not count more than their examples (Wang et al., NeurIPS 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ..aggregate import Aggregate
from ..clients import SGD, Momentum
from ..servers import State


@dataclass(frozen=True)
class FedNova:
    """x += lr * (sum_i p_i |a_i|) * sum_i p_i D_i / |a_i|, where |a_i| is how often a gradient of client i is in its
    delta D_i: its local steps, or with clients' momentum the sum of (1 - momentum^k) / (1 - momentum) over them.

    Clients run `ff.clients.SGD` or `ff.clients.Momentum`, on any executor.
    """

    lr: float = 1.0
    rule: ClassVar[str] = "fednova"

    def __post_init__(self) -> None:
        if not 0 <= self.lr < math.inf:
            raise ValueError(f"lr: must be a finite number >= 0, got {self.lr!r}")

    def check(self, client: Any) -> None:
        """Refuses clients whose deltas weigh gradients otherwise."""
        if type(client) not in (SGD, Momentum):
            raise ValueError(f"server: FedNova counts gradients in deltas of SGD, with momentum or not, got {client!r}")
        for name in ("prox", "clip", "warmup"):
            if getattr(client, name):
                raise ValueError(f"{name}: FedNova counts the gradients in a delta, which {name} would weigh otherwise")

    def begin(self, x: Tensor, clients: int) -> State:
        return {}

    def multipliers(self, steps: Tensor, client: Any) -> Tensor:
        steps, rho = steps.double().clamp(min=1), getattr(client, "momentum", 0.0)
        return (1 - rho) / (steps - rho * (1 - rho**steps) / (1 - rho))

    def step(self, state: State, x: Tensor, aggregate: Aggregate, lr: float) -> tuple[State, Tensor]:
        effective = float((aggregate.shares / aggregate.multipliers).sum())
        return state, x + lr * effective * aggregate.delta
