"""What clients count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from ..checks import check_weights
from ..plan.round import RoundPlan


class Weights(Protocol):
    """Gives every client of a round its weight. `normalised`: weights are made to sum to 1 over those that count."""

    normalised: bool

    def of(self, plan: RoundPlan, examples: Tensor) -> Tensor:
        """(n,) float64, for the clients of a plan, who have `examples` (n,)."""


class Relative:
    """By "examples" (n_i), "uniform", or a number >= 0 for every client of the federation: what one does not use is the
    others'."""

    normalised = True

    def __init__(self, weights: Literal["examples", "uniform"] | Sequence[float] | Tensor, clients: int) -> None:
        self.given: Tensor | None = None
        self.by_examples = isinstance(weights, str) and weights == "examples"
        if isinstance(weights, str) and weights in ("examples", "uniform"):
            return
        fits = isinstance(weights, (Sequence, Tensor)) and not isinstance(weights, str)
        given = torch.as_tensor(weights if fits else (), dtype=torch.float64, device="cpu")
        if given.shape != (clients,):
            raise ValueError(f"weights: must be 'examples', 'uniform' or {clients} finite numbers >= 0, one per client")
        check_weights("weights", given)
        if not bool((given > 0).any()):
            raise ValueError("weights: must be > 0 for at least one client")
        self.given = given

    def of(self, plan: RoundPlan, examples: Tensor) -> Tensor:
        able = ((examples > 0) & (plan.steps > 0)).double()
        if self.given is not None:
            return able * self.given[plan.cohort]
        return able * (examples.double() if self.by_examples else 1.0)


class Fixed:
    """The same number for every client, whoever else takes part."""

    normalised = False

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def of(self, plan: RoundPlan, examples: Tensor) -> Tensor:
        return torch.full((len(plan),), self.weight, dtype=torch.float64)
