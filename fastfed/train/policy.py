"""From client deltas to one sum: weights, the refusal of what is not finite, division, clipping. Nothing is kept of a
delta once it is added, unless the work asks for it."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import kernels
from .work import Outcome, RoundWork


def policy_weights(work: RoundWork, steps: Tensor) -> Tensor:
    """The weight of each client, (clients,) float64, as if no delta were refused; 0 without steps."""
    given, counts = work.policy.weights, steps > 0
    if isinstance(given, Tensor):
        return torch.where(counts, given.to("cpu", torch.float64), 0.0)
    raw = work.counts.double() if given == "examples" else torch.ones(len(work), dtype=torch.float64)
    weights = torch.where(counts, raw, 0.0)
    return weights / weights.sum() if bool(counts.any()) else weights


class DeltaSum:
    """The weighted sum of a round's deltas, given in any order and in any portions.

    `steps` (clients,) int64 are the steps really taken.
    """

    def __init__(self, work: RoundWork, steps: Tensor, device: torch.device | str = "cpu") -> None:
        self.work, self.steps, self.device = work, steps, device
        self.weights = policy_weights(work, steps)
        self.refused = torch.zeros(len(work), dtype=torch.bool)
        self.norms = torch.zeros(len(work), dtype=torch.float64)
        self.sum = torch.zeros(work.start.shape[-1], dtype=work.start.dtype, device=device)
        kept = (len(work), work.start.shape[-1])
        self.deltas = torch.zeros(kept, dtype=work.start.dtype, device=device) if work.keep_deltas else None

    def add(self, clients: Tensor, deltas: Tensor) -> None:
        """Adds the `deltas` (n, d) of the clients at these positions (n,), which it uses up as scratch space."""
        if self.deltas is not None:
            self.deltas[clients.to(self.device)] = deltas
        norms = kernels.norms(deltas).cpu()
        self.norms[clients] = norms
        self.refused[clients] = ~torch.isfinite(norms)
        if bool(self.refused[clients].any()):
            deltas[self.refused[clients].to(self.device)] = 0
        if self.work.policy.divide_by_steps:
            deltas /= self.steps[clients].clamp(min=1).to(deltas)[:, None]
        if self.work.policy.clip is not None:
            kernels.clip(deltas, self.work.policy.clip)
        self.sum += kernels.weighted_sum(deltas, self.weights[clients].to(deltas))

    def outcome(self, scalars: dict[str, Tensor]) -> Outcome:
        """The round's result; `scalars` without examples, steps and delta_norm, which are known here."""
        if not isinstance(self.work.policy.weights, Tensor) and bool(self.refused.any()):
            counted = float(self.weights[~self.refused].sum())  # the refused leave their share to the others
            self.sum = self.sum / counted if counted > 0 else torch.zeros_like(self.sum)
        own = {"examples": self.work.counts.double(), "steps": self.steps.double(), "delta_norm": self.norms}
        return Outcome(self.sum, {**scalars, **own}, self.refused, self.deltas)
