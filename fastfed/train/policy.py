"""From client deltas to one sum: weights, the refusal of what is not finite, division, clipping. Nothing is kept of a
delta once it is added, unless the work asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import kernels
from ..data.resident import upload
from .total import Total
from .work import Outcome, RoundWork


def policy_weights(work: RoundWork, steps: Tensor) -> Tensor:
    """What each client counts, (clients,) float64, as if no delta were refused; 0 without steps."""
    policy = work.weighing
    assert isinstance(policy.weights, Tensor)
    weights = torch.where(steps > 0, policy.weights, 0.0)
    return shares(weights) if policy.normalised else weights


def multipliers(work: RoundWork, weights: Tensor) -> Tensor:
    """What deltas of clients that count so much are multiplied by: (clients,) float64."""
    scale = work.weighing.scale
    return weights if scale is None else weights * scale


def rest(work: RoundWork, weights: Tensor, refused: Tensor) -> float | None:
    """What the sum must be divided by because the clients of `refused` (clients,) bool leave their share to the others;
    None if they do not."""
    if not work.weighing.normalised or not bool(refused.any()):
        return None
    return float(weights[~refused].sum())


def divided(total: Tensor, by: float | None) -> Tensor:
    """A sum over its `rest`: of nobody it is zero."""
    if by is None:
        return total
    return total / by if by > 0 else torch.zeros_like(total)


def shares(weights: Tensor) -> Tensor:
    """Weights (n,) >= 0 scaled to sum to 1; as they are if all are 0."""
    total = float(weights.sum())
    return weights / total if total > 0 else weights


def fetch(numbers: Tensor) -> Tensor:
    """A round's numbers on the CPU: the one place where a round waits for its device."""
    return numbers.cpu()


class Portion(NamedTuple):
    """Clients that have trained, at these positions (k,): their `deltas` (k, d), the `statistics` (k, s) of their batch
    norms, if there are any, their scalars by name, a number each or (k,), and what algorithms in Python end with
    `besides`, by name, (k, d)."""

    clients: Tensor
    deltas: Tensor
    statistics: Tensor | None
    scalars: Mapping[str, Any]
    besides: Mapping[str, Tensor] | None = None

    def enter(self, total: DeltaSum, scalars: dict[str, Tensor]) -> None:
        """Adds the deltas, which are used up, to a sum, and puts the scalars among those of all clients (n,)."""
        where = upload(self.clients, next(iter(scalars.values())).device)
        for name, values in self.scalars.items():
            scalars[name][where] = values
        total.add(self.clients, self.deltas, self.statistics, self.besides)


class DeltaSum:
    """The weighted sum of a round's deltas: one client's after the other's, in the order in which they are given, so
    that the portions in which they come do not change a bit of it.

    `steps` (clients,) int64 are the steps really taken. Nothing waits for the `device` before the outcome.
    """

    def __init__(self, work: RoundWork, steps: Tensor, device: torch.device | str = "cpu") -> None:
        self.work, self.steps, self.device = work, steps, torch.device(device)
        dtype, d = work.start.dtype, work.start.shape[-1]
        self.weights = policy_weights(work, steps)
        self.norms = torch.zeros(len(work), dtype=torch.float64, device=device)
        self.sum = torch.zeros(d, dtype=dtype, device=device)
        self.deltas = torch.zeros((len(work), d), dtype=dtype, device=device) if work.keep_deltas else None
        self.own = None if work.own is None else torch.zeros((len(work), len(work.own)), dtype=dtype, device=device)
        self.statistics = None if work.statistics is None else _of_each(work.statistics, len(work)).to(device)
        names = [name for name, asked in (("kept", work.kept), ("sent", work.common)) if asked is not None]
        self.besides = {name: torch.zeros((len(work), d), dtype=dtype, device=device) for name in names}
        self._multipliers = upload(multipliers(work, self.weights).to(dtype), self.device)
        self._divisors = upload(steps.clamp(min=1).to(dtype), self.device) if work.policy.divide_by_steps else None

    def add(
        self,
        clients: Tensor,
        deltas: Tensor,
        statistics: Tensor | None = None,
        besides: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Adds the `deltas` (n, d) of the clients at these positions (n,), which it uses up as scratch space; their
        `statistics` (n, s) and what they have `besides` (n, d) are kept as they are."""
        there = upload(clients, self.device)
        for name, vectors in (besides or {}).items():
            self.besides[name][there] = vectors
        if self.own is not None and self.work.own is not None:
            places = upload(self.work.own, self.device)
            self.own[there] = deltas[:, places]
            deltas[:, places] = 0
        if self.statistics is not None and statistics is not None:
            self.statistics[there] = statistics
        if self.deltas is not None:
            self.deltas[there] = deltas
        norms = kernels.norms(deltas)
        self.norms[there] = norms
        refused = ~torch.isfinite(norms)
        if not refused.is_cpu or bool(refused.any()):  # elsewhere the answer would have to be waited for
            deltas.masked_fill_(refused[:, None], 0)
        if self._divisors is not None:
            deltas /= self._divisors[there][:, None]
        if self.work.policy.clip is not None:
            kernels.clip(deltas, self.work.policy.clip)
        self._fold(deltas, self._multipliers[there])

    def _fold(self, deltas: Tensor, weights: Tensor) -> None:
        """Goes on with the sum where it is: the first delta takes it along, as the first term of what follows."""
        carried = deltas[0].mul_(weights[0]).add_(self.sum)
        if len(deltas) == 1:
            self.sum.copy_(carried)
            return
        weights[0] = 1
        kernels.weighted_sum(deltas, weights, out=self.sum)

    def outcome(self, scalars: dict[str, Tensor]) -> Outcome:
        """The round's result; `scalars`, (clients,) float64 on any device, without examples, steps and delta_norm,
        which are known here. All numbers come from the device at once."""
        norms, *others = fetch(torch.stack([self.norms, *(values.to(self.device) for values in scalars.values())]))
        refused = ~torch.isfinite(norms)
        total = divided(self.sum, rest(self.work, self.weights, refused))
        own = {"examples": self.work.counts.double(), "steps": self.steps.double(), "delta_norm": norms}
        told = {**dict(zip(scalars, others, strict=True)), **own}
        kept = (self.deltas, self.statistics, self.own, self.besides or None)
        return Outcome(Total(total), told, refused, *kept)


def _of_each(statistics: Tensor, clients: int) -> Tensor:
    """A copy with a row for every client."""
    return statistics.repeat(clients, 1) if statistics.dim() == 1 else statistics.clone()
