"""Compressed deltas in the aggregate room: what clients send is what the server can read of it, and is counted so."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from . import kernels
from .aggregate import Aggregate, Mean, counted, shares
from .compression import Compressor
from .plan import RoundPlan
from .private_mean import PrivateMean
from .train import DeltaPolicy, Outcome


class CompressedMean:
    """Any other aggregate, of deltas that were sent compressed.

    A delta is divided by its steps where that is asked for, the client's error of earlier rounds added, and compressed;
    the server reads it, clips it, and averages. Clients without a step or with a delta that is not finite send nothing.
    """

    keeps_deltas = True

    def __init__(self, inner: Mean | PrivateMean, compressor: Compressor, seed: int) -> None:
        self.inner, self.compressor, self.seed = inner, compressor, seed

    def policy(self, plan: RoundPlan, examples: Tensor) -> DeltaPolicy:
        return self.inner.policy(plan, examples)

    def aggregate(self, plan: RoundPlan, outcome: Outcome) -> Aggregate:
        assert outcome.deltas is not None
        policy = self.policy(plan, outcome.scalars["examples"])
        counts = counted(outcome)
        deltas = outcome.deltas[counts]
        if policy.divide_by_steps:
            deltas /= outcome.scalars["steps"][counts].to(deltas)[:, None]
        encoded = self.compressor.send(plan.cohort[counts], deltas, self.seed, plan.round)
        read, delta = encoded.decoded, torch.zeros_like(outcome.delta)
        if len(read) and policy.clip is not None:
            kernels.clip(read, policy.clip)
        if len(read):
            delta = kernels.weighted_sum(read, self._weights(plan, policy, outcome, counts)[counts].to(read))
        made = self.inner.aggregate(plan, replace(outcome, delta=delta, largest=None))
        sent = int(counts.sum()) + plan.late_uploads
        return replace(made, columns={**made.columns, "bytes_up": encoded.bytes * sent})

    def _weights(self, plan: RoundPlan, policy: DeltaPolicy, outcome: Outcome, counts: Tensor) -> Tensor:
        """(n,) float64: as the train room would have taken them."""
        if isinstance(policy.weights, Tensor):
            return policy.weights
        assert isinstance(self.inner, Mean)
        return shares(torch.where(counts, self.inner.raw_weights(plan, outcome.scalars["examples"]), 0.0))

    def nobody(self, plan: RoundPlan, x: Tensor) -> Aggregate:
        made = self.inner.nobody(plan, x)
        return replace(made, columns={**made.columns, "bytes_up": 0})

    def tensors(self) -> dict[str, Tensor]:
        return {**self.inner.tensors(), **{f"error.{name}": t for name, t in self.compressor.tensors().items()}}

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.inner.load(tensors)
        self.compressor.load({n.removeprefix("error."): t for n, t in tensors.items() if n.startswith("error.")})
