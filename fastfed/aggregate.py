"""The aggregate room: from the clients' deltas to the one vector that the server steps along."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from .plan import RoundPlan
from .train import DeltaPolicy, Outcome


@dataclass(frozen=True)
class Aggregate:
    """`delta` (d,): the weighted mean of the clients' deltas; `largest`: the largest magnitude in it, NaN or infinite
    if one is. `counted`, `refused`, `idle`: how many clients are in it, gave a non-finite delta, or took no step.
    `shares` (n,) float64: what each client counts. `noisy`: it holds noise even if no client is in it. `columns` are
    further entries of the round's row."""

    delta: Tensor
    largest: float
    counted: int
    refused: int
    idle: int
    shares: Tensor
    noisy: bool = False
    columns: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in it to step along."""
        return self.counted == 0 and not self.noisy


class Aggregator(Protocol):
    """Makes the round's aggregate. `keeps_deltas`: it wants to see every client's delta. `tensors` and `load` carry
    what it remembers through a checkpoint."""

    keeps_deltas: bool

    def policy(self, plan: RoundPlan, examples: Tensor) -> DeltaPolicy:
        """What the train room does to the deltas of clients with `examples` (n,) each, as they come."""

    def aggregate(self, plan: RoundPlan, outcome: Outcome) -> Aggregate:
        """The round's aggregate."""

    def nobody(self, plan: RoundPlan, x: Tensor) -> Aggregate:
        """The aggregate of a round without clients, for a model like `x` (d,)."""

    def tensors(self) -> dict[str, Tensor]: ...

    def load(self, tensors: dict[str, Tensor]) -> None: ...


@dataclass(frozen=True)
class Mean:
    """A weighted mean: `weights` "examples" (n_i), "uniform", or a number >= 0 for every client of the federation.

    `divide_by_steps` makes a delta the mean move per local step; `clip` then scales it down to that norm. Clients whose
    delta is not finite, and those without a step, count for nothing, and the others share their weight. A plan's
    `scale` multiplies deltas, not their shares.
    """

    weights: Literal["examples", "uniform"] | Sequence[float] | Tensor = "examples"
    clip: float | None = None
    divide_by_steps: bool = False

    keeps_deltas = False

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

    def policy(self, plan: RoundPlan, examples: Tensor) -> DeltaPolicy:
        """Given weights and scales become numbers here, others are the train room's to normalise."""
        weights: Any = self.weights
        if not isinstance(weights, str) or plan.scale is not None:
            weights = shares(self.raw_weights(plan, examples))
            weights = weights if plan.scale is None else weights * plan.scale
        return DeltaPolicy(weights=weights, clip=self.clip, divide_by_steps=self.divide_by_steps)

    def raw_weights(self, plan: RoundPlan, examples: Tensor) -> Tensor:
        """The weight of each client of the plan before they are made to sum to 1: (n,) float64."""
        if not isinstance(self.weights, str):
            return torch.as_tensor(self.weights, dtype=torch.float64, device="cpu")[plan.cohort]
        able = ((examples > 0) & (plan.steps > 0)).double()
        return able * (examples.double() if self.weights == "examples" else 1.0)

    def aggregate(self, plan: RoundPlan, outcome: Outcome) -> Aggregate:
        """The round's mean delta."""
        counts = counted(outcome)
        delta = outcome.delta
        share = shares(self.raw_weights(plan, outcome.scalars["examples"]))
        if not isinstance(self.weights, str) or plan.scale is not None:
            counts &= share > 0
            rest = float(share[counts].sum())  # the train room takes given weights as they are
            delta = delta / rest if 0 < rest < 1 and not bool(counts.all()) else delta
        return summary(delta, outcome, counts, shares(torch.where(counts, share, 0.0)))

    def nobody(self, plan: RoundPlan, x: Tensor) -> Aggregate:
        return Aggregate(torch.zeros_like(x), 0.0, 0, 0, 0, torch.zeros(0, dtype=torch.float64))

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Nothing to take over."""


def counted(outcome: Outcome) -> Tensor:
    """Which clients took a step and gave a finite delta: (n,) bool."""
    return (outcome.scalars["steps"] > 0) & ~outcome.refused


def shares(weights: Tensor) -> Tensor:
    """Weights (n,) >= 0 scaled to sum to 1; as they are if all are 0."""
    total = float(weights.sum())
    return weights / total if total > 0 else weights


def summary(delta: Tensor, outcome: Outcome, counts: Tensor, shares: Tensor, **more: Any) -> Aggregate:
    """The aggregate of an outcome in which the clients of `counts` (n,) bool are, with these shares (n,)."""
    idle = int((outcome.scalars["steps"] == 0).sum())
    known = outcome.largest if delta is outcome.delta else None
    top = largest(delta) if known is None else known  # to look again is to wait for a device again
    return Aggregate(delta, top, int(counts.sum()), int(outcome.refused.sum()), idle, shares, **more)


def largest(vector: Tensor) -> float:
    """The largest magnitude, in one pass; NaN if there is one."""
    low, high = torch.aminmax(vector)
    return float(torch.maximum(-low, high))
