"""The stages of aggregation, in their order: divide, encode, clip, reduce, noise. Any of them may be missing but one.

Where the reduction is a sum and nothing is encoded, the train room does all but the noise while clients train, and no
delta is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .. import kernels
from ..clients import Client
from ..compression import Compressor
from ..exchange.client_store import ClientStore
from ..plan.round import RoundPlan
from ..train import DeltaPolicy, Outcome, Total
from ..train.batches import examples_seen
from ..train.policy import shares
from .noise import Noise
from .reduce import Reduction
from .result import Aggregate, counted, summary
from .weights import Weights

Multipliers = Callable[[Tensor, Client], Tensor]  # steps (n,) and their clients' optimizer -> (n,)


@dataclass(frozen=True)
class Chain:
    """An `Aggregator`. `divide_by_steps` makes a delta the mean move per local step, `divide_by_epochs` per pass over
    the client's examples; what is sent is encoded by the `compressor`; the server reads it, scales it down to the norm
    `clip` (with `noise`: to its bound), and reduces.

    Clients whose delta is not finite, and those without a step, send nothing; where weights are relative, the others
    share theirs. A plan's `scale` multiplies deltas, not their shares. Of nobody, a noisy sum is noise alone: that
    nobody took part is not to be told from what is released.
    """

    reduction: Reduction
    weights: Weights
    seed: int
    divide_by_steps: bool = False
    divide_by_epochs: bool = False
    clip: float | None = None
    compressor: Compressor | None = None
    noise: Noise | None = None
    multipliers: Multipliers | None = None  # of deltas: a server's own

    def __post_init__(self) -> None:
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ValueError(f"delta_clip: must be a finite number > 0, or None, got {self.clip!r}")

    @property
    def stores(self) -> tuple[ClientStore, ...]:
        """What clients keep."""
        return () if self.compressor is None else self.compressor.stores

    @property
    def keeps_deltas(self) -> bool:
        return self.compressor is not None or not getattr(self.reduction, "in_passing", False)

    def policy(self, plan: RoundPlan, examples: Tensor) -> DeltaPolicy:
        return DeltaPolicy(
            weights=self.weights.of(plan, examples),
            clip=self.clip if self.noise is None else self.noise.clip,
            divide_by_steps=self.divide_by_steps or self.divide_by_epochs,
            normalised=self.weights.normalised,
            scale=self._scale(plan, examples),
        )

    def _scale(self, plan: RoundPlan, examples: Tensor) -> Tensor | None:
        """What multiplies deltas (n,), which are moves per step where they are to be moves per epoch."""
        if self.multipliers is not None:
            own = self._multipliers(plan)
            return own if plan.scale is None else own * plan.scale
        if not self.divide_by_epochs:
            return plan.scale
        seen = examples_seen(plan.steps, examples.long(), plan.batch_size, plan.seen)
        steps_an_epoch = plan.steps * examples.double() / seen.clamp(min=1)
        return steps_an_epoch if plan.scale is None else steps_an_epoch * plan.scale

    def aggregate(self, plan: RoundPlan, outcome: Outcome) -> Aggregate:
        policy, counts = self.policy(plan, outcome.scalars["examples"]), counted(outcome)
        assert isinstance(policy.weights, Tensor)
        counts &= policy.weights > 0
        share = torch.where(counts, policy.weights, 0.0)
        share = shares(share) if self.weights.normalised else share
        total, columns = outcome.total, dict[str, Any]()
        if self.keeps_deltas:
            delta, columns = self._by_stages(plan, outcome, policy, share)
            total = Total(delta)
        total, told = self._with_noise(plan.round, total, self._norms(outcome)[counts])
        of_each = {"multipliers": self._multipliers(plan), "norms": self._reduced_norms(outcome, policy, counts)}
        return summary(total, outcome, counts, share, **of_each, noisy=self._is_noisy, columns=columns | told)

    def _multipliers(self, plan: RoundPlan) -> Tensor:
        """What a server of one's own asks deltas to be multiplied by: (n,) float64."""
        if self.multipliers is None:
            return torch.ones(len(plan), dtype=torch.float64)
        return self.multipliers(plan.steps, plan.optimizers[0]).to("cpu", torch.float64)

    @staticmethod
    def _reduced_norms(outcome: Outcome, policy: DeltaPolicy, counts: Tensor) -> Tensor:
        """Of the deltas as they are reduced, (n,) float64, but for what compression has changed; 0 where none is."""
        norms = outcome.scalars["delta_norm"]
        if policy.divide_by_steps:
            norms = norms / outcome.scalars["steps"].clamp(min=1)
        if policy.clip is not None:
            norms = norms.clamp(max=policy.clip)
        norms = norms if policy.scale is None else norms * policy.scale
        return torch.where(counts, norms, 0.0)

    def _by_stages(
        self, plan: RoundPlan, outcome: Outcome, policy: DeltaPolicy, share: Tensor
    ) -> tuple[Tensor, dict[str, Any]]:
        """What the train room does in passing, delta by delta: the sum, and what a row tells of it."""
        assert outcome.deltas is not None
        columns, sent = dict[str, Any](), counted(outcome)
        here = outcome.here[sent[outcome.here]]
        deltas = outcome.deltas[sent[outcome.here]]
        if policy.divide_by_steps:
            deltas /= outcome.scalars["steps"][here].to(deltas)[:, None]
        if self.compressor is not None:
            encoded = self.compressor.send(plan.stream_ids[here], deltas, self.seed, plan.round)
            deltas = encoded.decoded
            columns["bytes_up"] = encoded.bytes * (int(sent.sum()) + plan.late_uploads)
        counts = sent & (share > 0)
        if bool((share[here] == 0).any()):
            deltas = deltas[share[here] > 0]
        if not bool(counts.any()):
            return torch.zeros_like(outcome.delta), columns
        if policy.clip is not None and len(deltas):
            kernels.clip(deltas, policy.clip)
        scale = None if policy.scale is None else policy.scale[counts]
        reduce = partial(self._reduced, weights=share[counts], scale=scale)
        by_column = getattr(self.reduction, "by_column", False)
        return outcome.peers.reduced(deltas, counts, reduce, by_column=by_column), columns

    def _reduced(self, deltas: Tensor, weights: Tensor, scale: Tensor | None) -> Tensor:
        """What is of deltas alone, as a median, sees them scaled; a sum can have the scale in its weights."""
        if scale is None:
            return self.reduction.reduce(deltas, weights)
        if getattr(self.reduction, "in_passing", False):
            return self.reduction.reduce(deltas, weights * scale)
        return self.reduction.reduce(deltas.mul_(scale.to(deltas)[:, None]), weights)

    def _with_noise(self, round: int, total: Total, norms: Tensor) -> tuple[Total, dict[str, Any]]:
        """The sum with noise, if any, and what a row tells of it; `norms` (n,) of who counts move the bound."""
        if self.noise is None:
            return total, {}
        noisy, told = self.noise.added(round, total.delta)
        self.noise.adapt(round, norms)
        return total if noisy is total.delta else Total(noisy), told

    def _norms(self, outcome: Outcome) -> Tensor:
        """Of the deltas as they are clipped, (n,) float64."""
        norms = outcome.scalars["delta_norm"]
        return norms / outcome.scalars["steps"] if self.divide_by_steps else norms

    @property
    def _is_noisy(self) -> bool:
        return self.noise is not None and self.noise.is_there

    def tensors(self) -> dict[str, Tensor]:
        own = {} if self.noise is None else self.noise.tensors()
        errors = {} if self.compressor is None else self.compressor.tensors()
        return own | {f"error.{name}": tensor for name, tensor in errors.items()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        if self.noise is not None:
            self.noise.load(tensors)
        if self.compressor is not None:
            errors = {name.removeprefix("error."): t for name, t in tensors.items() if name.startswith("error.")}
            self.compressor.load(errors)
