"""FedExP: the server's step size from how far the clients' deltas cancel (Jhunjhunwala et al., ICLR 2023)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..aggregate import Aggregate
from ..servers import State


@dataclass(frozen=True)
class FedExP:
    """x += lr * max(1, sum_i p_i |D_i|^2 / (2 (|D|^2 + eps))) * D, where D is the mean delta.

    The paper counts all clients alike and evaluates the mean of the last two models; here p_i are the run's weights and
    the model is the newest. A server schedule may move lr, which is 1.
    """

    eps: float = 1e-3
    rule: ClassVar[str] = "fedexp"

    def __post_init__(self) -> None:
        if not 0 <= self.eps < math.inf:
            raise ValueError(f"eps: must be a finite number >= 0, got {self.eps!r}")

    def begin(self, x: Tensor, clients: int) -> State:
        return {}

    def step(self, state: State, x: Tensor, aggregate: Aggregate, lr: float) -> tuple[State, Tensor]:
        apart = float((aggregate.shares * aggregate.norms**2).sum())
        norm = torch.linalg.vector_norm(aggregate.delta, dtype=torch.float64)
        together = 2 * (float(norm) ** 2 + self.eps)
        size = max(1.0, apart / together) if together else 1.0
        return state, x + lr * size * aggregate.delta
