"""What the aggregate room is (`Aggregator`) and what it hands on (`Aggregate`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from ..plan.round import RoundPlan
from ..train import DeltaPolicy, Outcome, Total


@dataclass(frozen=True)
class Aggregate:
    """`total`: the weighted mean of the clients' deltas, `delta` (d,). `counted`, `refused`, `idle`: how many clients
    are in it, gave a non-finite delta, or took no step.

    Of each client, (n,) float64 on the CPU: `shares`, what it counts; `steps`, how many it took; `multipliers` of its
    delta that a server of one's own has asked for, else 1; `norms` of the deltas as they are reduced, divided, clipped
    and multiplied (but not compressed), 0 of those that do not count. `noisy`: it holds noise even if no client is in
    it. `columns` are further entries of the round's row.
    """

    total: Total
    counted: int
    refused: int
    idle: int
    shares: Tensor
    steps: Tensor
    multipliers: Tensor
    norms: Tensor
    noisy: bool = False
    columns: Mapping[str, Any] = field(default_factory=dict)

    @property
    def delta(self) -> Tensor:
        """The vector (d,) to step along."""
        return self.total.delta

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in it to step along."""
        return self.counted == 0 and not self.noisy


class Aggregator(Protocol):
    """Makes the round's aggregate. `keeps_deltas`: it wants to see every client's delta. `tensors` and `load` carry
    what it remembers through a checkpoint."""

    @property
    def keeps_deltas(self) -> bool: ...

    def policy(self, plan: RoundPlan, examples: Tensor) -> DeltaPolicy:
        """What the train room does to the deltas of clients with `examples` (n,) each, as they come."""

    def aggregate(self, plan: RoundPlan, outcome: Outcome) -> Aggregate:
        """The round's aggregate, even of nobody."""

    def tensors(self) -> dict[str, Tensor]: ...

    def load(self, tensors: dict[str, Tensor]) -> None: ...


def counted(outcome: Outcome) -> Tensor:
    """Which clients took a step and gave a finite delta: (n,) bool."""
    return (outcome.scalars["steps"] > 0) & ~outcome.refused


def summary(total: Total, outcome: Outcome, counts: Tensor, shares: Tensor, **more: Any) -> Aggregate:
    """The aggregate of an outcome in which the clients of `counts` (n,) bool are, with these shares (n,)."""
    steps = outcome.scalars["steps"]
    idle = int((steps == 0).sum())
    return Aggregate(total, int(counts.sum()), int(outcome.refused.sum()), idle, shares, steps, **more)
