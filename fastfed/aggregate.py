"""The aggregate room: from the clients' deltas to the one vector that the server steps along."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .plan import RoundPlan
from .train import DeltaPolicy, Outcome


@dataclass(frozen=True)
class Aggregate:
    """`delta` (d,): the weighted mean of the clients' deltas; `largest`: the largest magnitude in it, NaN or infinite
    if one is. `counted`, `refused`, `idle`: how many clients are in it, gave a non-finite delta, or took no step."""

    delta: Tensor
    largest: float
    counted: int
    refused: int
    idle: int


@dataclass(frozen=True)
class Mean:
    """A weighted mean: `weights` "examples" (n_i), "uniform", or a number >= 0 for every client of the federation.

    `divide_by_steps` makes a delta the mean move per local step; `clip` then scales it down to that norm. Clients whose
    delta is not finite, and those without a step, count for nothing, and the others share their weight.
    """

    weights: Literal["examples", "uniform"] | Sequence[float] | Tensor = "examples"
    clip: float | None = None
    divide_by_steps: bool = False

    def __post_init__(self) -> None:
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ValueError(f"delta_clip: must be a finite number > 0, or None, got {self.clip!r}")

    def check(self, clients: int) -> None:
        """Weights given are given for every client; the rest is checked where it is used."""
        named = isinstance(self.weights, str)
        if named and self.weights in ("examples", "uniform"):
            return
        fits = isinstance(self.weights, (Sequence, Tensor)) and not named
        given = torch.as_tensor(self.weights if fits else (), dtype=torch.float64)
        if given.shape != (clients,) or not bool((torch.isfinite(given) & (given >= 0)).all()):
            raise ValueError(f"weights: must be 'examples', 'uniform' or {clients} finite numbers >= 0, one per client")

    def policy(self, plan: RoundPlan) -> DeltaPolicy:
        """What the train room does to the deltas as they come."""
        weights = self.weights
        if not isinstance(weights, str):
            given = torch.as_tensor(weights, dtype=torch.float64)[plan.cohort]
            total = float(given.sum())
            weights = given / total if total > 0 else given
        return DeltaPolicy(weights=weights, clip=self.clip, divide_by_steps=self.divide_by_steps)

    def aggregate(self, policy: DeltaPolicy, outcome: Outcome) -> Aggregate:
        """The round's mean delta."""
        steps, refused = outcome.scalars["steps"], outcome.refused
        counts = (steps > 0) & ~refused
        delta = outcome.delta
        if isinstance(policy.weights, Tensor):
            counts &= policy.weights > 0
        if isinstance(policy.weights, Tensor) and not bool(counts.all()):
            share = float(policy.weights[counts].sum())  # the train room takes given weights as they are
            delta = delta / share if share > 0 else delta
        idle = int((steps == 0).sum())
        return Aggregate(delta, _largest(delta), int(counts.sum()), int(refused.sum()), idle)


def _largest(vector: Tensor) -> float:
    """The largest magnitude, in one pass; NaN if there is one."""
    low, high = torch.aminmax(vector)
    return float(torch.maximum(-low, high))
