"""What bound Delta-SGD's step sizes: in how many local steps their growth, in how many what was measured."""

from __future__ import annotations

import torch
from torch import Tensor

from ..clients import DeltaSGD
from ..kernels.torch_rules import rules
from .algorithm import LocalAlgorithm
from .optimizer import LocalOptimizer

_ROUNDINGS = 16


class BoundCounts:
    """Counts beside an optimizer of Delta-SGD, for one client or a batch of them. A first step that does not grow has
    no choice, and counts for neither."""

    def __init__(self, optimizer: LocalOptimizer, client: DeltaSGD) -> None:
        self.optimizer, self.client = optimizer, client
        self.grown = torch.zeros_like(optimizer.state["lr"], dtype=torch.float64)
        self.measured = torch.zeros_like(self.grown)

    @classmethod
    def beside(cls, optimizer: LocalOptimizer | LocalAlgorithm) -> BoundCounts | None:
        """None for all other rules, which choose no step size between two bounds."""
        if isinstance(optimizer, LocalAlgorithm) or not isinstance(optimizer.client, DeltaSGD):
            return None
        return cls(optimizer, optimizer.client)

    def growth(self, step: int) -> Tensor | None:
        """What the step size may grow to in local step `step` (from 1), asked before it; None if it has no choice."""
        n, lr, theta = self.client, self.optimizer.state["lr"], self.optimizer.state["theta"]
        if step == 1:
            if not n.grow_first:
                return None
            lr = torch.zeros_like(lr) + self.optimizer.learning_rate(step)
            theta = torch.full_like(lr, n.theta)
        nothing = torch.zeros_like(lr)  # without a measurement it only grows
        grown: Tensor = rules.delta_sgd_step_size(nothing, nothing, lr, theta, n.gamma, n.delta, n.lr_eps)[0]
        return grown

    def count(self, grown: Tensor | None, active: Tensor | None = None) -> None:
        """The step is taken, by all or by those `active` (clients,), whose step sizes might have `grown` so far."""
        if grown is None:
            return
        lr = self.optimizer.state["lr"]
        grew = lr >= grown * (1 - _ROUNDINGS * torch.finfo(lr.dtype).eps)  # which a kernel may round otherwise
        taken = torch.ones_like(grew) if active is None else active
        self.grown += grew & taken
        self.measured += ~grew & taken

    def scalars(self) -> dict[str, Tensor]:
        """The round's numbers by name."""
        return {"grown_steps": self.grown, "measured_steps": self.measured}
