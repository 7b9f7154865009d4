"""FedLion: clients step along signs, from a momentum that all share (Tang and Chang, ICASSP 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..clients import ClientRound
from ..servers import State


@dataclass(frozen=True)
class FedLion:
    """Local steps x -= lr * sign(beta1 m + (1 - beta1) g); m = beta2 m + (1 - beta2) g. Clients send their last m; the
    mean of what was sent is what all begin the next round with, 0 in the first.

    It belongs to `ff.servers.FedAvg`, whose lr is 1 in the paper. That deltas are whole multiples of lr, and could be
    sent as small integers, is not counted in the costs.
    """

    lr: float
    beta1: float = 0.9
    beta2: float = 0.99
    rule: ClassVar[str] = "fedlion"
    sends: ClassVar[bool] = True
    vectorised: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}: must be a number in [0, 1), got {getattr(self, name)!r}")

    def client_init(self, start: Tensor, round: ClientRound) -> State:
        return {"m": round.common, "lr": round.lr}

    def client_step(self, state: State, params: Tensor, gradient: Tensor, step: int) -> tuple[State, Tensor]:
        m = state["m"]
        sign = (self.beta1 * m + (1 - self.beta1) * gradient).sign()
        return {**state, "m": self.beta2 * m + (1 - self.beta2) * gradient}, params - state["lr"] * sign

    def client_final(self, state: State, params: Tensor) -> dict[str, Tensor]:
        return {"params": params, "sent": state["m"]}
