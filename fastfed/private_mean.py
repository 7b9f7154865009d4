"""Differential privacy in the aggregate room: clipped deltas over the expected cohort, and Gaussian noise."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .aggregate import Aggregate, counted, largest, summary
from .kernels import Stream, normal
from .packing import Packing
from .plan import RoundPlan
from .privacy import Privacy, next_clip, noise_std
from .purposes import Purpose
from .train import DeltaPolicy, Outcome

_OF_DELTAS, _OF_COUNT = 0, 1  # the steps of the noise's stream


class PrivateMean:
    """The sum of deltas clipped to a norm c over the `expected` cohort size, plus N(0, (sigma c / expected)^2) for
    every parameter. A client more or less, whatever it sends, moves the sum by at most c.

    With adaptive clipping, c follows a quantile of the norms.
    """

    keeps_deltas = False

    def __init__(
        self,
        privacy: Privacy,
        expected: float,
        packing: Packing,
        seed: int,
        divide_by_steps: bool,
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        self.privacy, self.expected, self.seed, self.divide_by_steps = privacy, expected, seed, divide_by_steps
        self.clip = privacy.clip
        noise_std(privacy, privacy.clip, expected)  # refuses noise that cannot be had now, not in the first round
        self._is_parameter = packing.zeros(device=device)  # the gaps of the packed vector stay empty
        for view in packing.views(self._is_parameter).values():
            view.fill_(1)

    def policy(self, plan: RoundPlan, examples: Tensor) -> DeltaPolicy:
        weights = torch.full((len(plan),), 1 / self.expected, dtype=torch.float64)
        return DeltaPolicy(weights=weights, clip=self.clip, divide_by_steps=self.divide_by_steps)

    def aggregate(self, plan: RoundPlan, outcome: Outcome) -> Aggregate:
        counts = counted(outcome)
        delta, columns = self._noised(plan.round, outcome.delta)
        norms = outcome.scalars["delta_norm"][counts]
        if self.divide_by_steps:
            norms = norms / outcome.scalars["steps"][counts]
        self._adapt(plan.round, norms)
        share = counts.double() / self.expected
        return summary(delta, outcome, counts, share, noisy=self.privacy.noise > 0, columns=columns)

    def nobody(self, plan: RoundPlan, x: Tensor) -> Aggregate:
        """Noise alone: that nobody took part is not to be told from what is released."""
        delta, columns = self._noised(plan.round, torch.zeros_like(x))
        self._adapt(plan.round, torch.zeros(0, dtype=torch.float64))
        nobody = torch.zeros(0, dtype=torch.float64)
        return Aggregate(delta, largest(delta), 0, 0, 0, nobody, noisy=self.privacy.noise > 0, columns=columns)

    def _noised(self, round: int, delta: Tensor) -> tuple[Tensor, dict[str, Any]]:
        if self.clip is None:
            return delta, {}
        std = noise_std(self.privacy, self.clip, self.expected)
        columns = {"clip": self.clip, "noise_std": std}
        if std == 0:
            return delta, columns
        stream = Stream(self.seed, Purpose.NOISE, round, step=_OF_DELTAS)
        noise = normal(delta.numel(), stream, device=delta.device).to(delta.dtype)
        return torch.addcmul(delta, noise, self._is_parameter.to(delta.dtype), value=std), columns

    def _adapt(self, round: int, norms: Tensor) -> None:
        """Moves the bound towards the quantile of the norms (n,) of the clients that count."""
        if self.privacy.adaptive is None or self.clip is None:
            return
        noise = float(normal(1, Stream(self.seed, Purpose.NOISE, round, step=_OF_COUNT)))
        self.clip = next_clip(self.privacy.adaptive, self.clip, norms, self.expected, noise)

    def tensors(self) -> dict[str, Tensor]:
        return {} if self.clip is None else {"clip": torch.tensor([self.clip], dtype=torch.float64)}

    def load(self, tensors: dict[str, Tensor]) -> None:
        if "clip" in tensors:
            self.clip = float(tensors["clip"])
