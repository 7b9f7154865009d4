"""The weighted sum of a round's deltas, and what the server asks of it: how large its numbers are, and a step."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .. import kernels


class Total:
    """A sum that is there: one vector (d,).

    `known`: the largest magnitude in it, infinite or NaN if a number is; None if nobody has looked. An executor that
    has not added all up yet hands on a total of its own kind, which does so once somebody asks for `delta`.
    """

    def __init__(self, delta: Tensor, known: float | None = None) -> None:
        self._delta, self._known = delta, known

    @property
    def delta(self) -> Tensor:
        """The vector (d,)."""
        return self._delta

    @cached_property
    def largest(self) -> float:
        """The largest magnitude in it; infinite or NaN if a number is."""
        return largest(self.delta) if self._known is None else self._known  # to look is to wait for a device

    def is_below(self, limit: float) -> bool:
        """Whether all its numbers are finite, and smaller than the limit."""
        return self.largest < limit  # NaN is below nothing

    def step(self, rule: str, x: Tensor, state: dict[str, Tensor], **options: Any) -> None:
        """``kernels.server_step`` along it: moves `x` (d,) and `state`, in place."""
        kernels.server_step(rule, x, self.delta, state, **options)


def largest(vector: Tensor) -> float:
    """The largest magnitude, in one pass; NaN if there is one."""
    low, high = torch.aminmax(vector)
    return float(torch.maximum(-low, high))
