"""SGD whose momentum a client keeps from one of its rounds to the next, instead of beginning at zero every time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..clients import ClientRound
from ..servers import State


@dataclass(frozen=True)
class KeptMomentum:
    """Local steps m = momentum m + g; x -= lr m, where m is 0 at a client's first round and afterwards what it had at
    the end of its last one. `ff.clients.Momentum` begins every round with 0."""

    lr: float
    momentum: float = 0.9
    rule: ClassVar[str] = "kept_momentum"
    keeps: ClassVar[str] = "zeros"
    vectorised: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum: must be a number in [0, 1), got {self.momentum!r}")

    def client_init(self, start: Tensor, round: ClientRound) -> State:
        return {"m": round.kept, "lr": round.lr}

    def client_step(self, state: State, params: Tensor, gradient: Tensor, step: int) -> tuple[State, Tensor]:
        m = self.momentum * state["m"] + gradient
        return {**state, "m": m}, params - state["lr"] * m

    def client_final(self, state: State, params: Tensor) -> dict[str, Tensor]:
        return {"params": params, "kept": state["m"]}
