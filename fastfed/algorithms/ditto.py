"""Ditto: every client keeps a model of its own beside the global one, and near it (Li et al., ICML 2021)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..clients import ClientRound
from ..servers import State


@dataclass(frozen=True)
class Ditto:
    """Local steps of SGD for the global model, x -= lr * g(x), and with every batch one of the client's own model,
    v_i -= lr * (g(v_i) + lam (v_i - start)), which it keeps; at first it is the global model.

    As in the authors' code both models step on the same batches. The global model is that of FedAvg with SGD; what is
    evaluated is the global model.
    """

    lr: float
    lam: float = 0.1
    rule: ClassVar[str] = "ditto"
    keeps: ClassVar[str] = "start"
    gradient_anywhere: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.lam < math.inf:
            raise ValueError(f"lam: must be a finite number >= 0, got {self.lam!r}")

    def client_init(self, start: Tensor, round: ClientRound) -> State:
        return {"start": start, "own": round.kept, "lr": round.lr}

    def client_step(
        self, state: State, params: Tensor, gradient: Callable[[Tensor], Tensor], step: int
    ) -> tuple[State, Tensor]:
        own, lr = state["own"], state["lr"]
        own = own - lr * (gradient(own) + self.lam * (own - state["start"]))
        return {**state, "own": own}, params - lr * gradient(params)

    def client_final(self, state: State, params: Tensor) -> dict[str, Tensor]:
        return {"params": params, "kept": state["own"]}
