"""Reductions: from many deltas to one."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from .. import kernels


@runtime_checkable
class Reduction(Protocol):
    """Makes one vector of the deltas of a round.

    More attributes are asked for if they are there. `in_passing`: it is the weighted sum, which the train room adds
    up while clients train, so that no delta is kept (default False). `alike`: all clients count alike, so that weights
    other than "uniform" are refused (default False). `by_column`: it looks at one parameter at a time, so that several
    ranks may each reduce some of them (default False: every rank is sent all deltas).
    """

    def reduce(self, deltas: Tensor, weights: Tensor) -> Tensor:
        """From finite `deltas` (n, d), n >= 1, which it may use up, and `weights` (n,) float64 on the CPU, which sum to
        1: (d,) on the device of the deltas."""


@dataclass(frozen=True)
class Mean:
    """The weighted mean."""

    in_passing = True
    alike = False
    by_column = True

    def reduce(self, deltas: Tensor, weights: Tensor) -> Tensor:
        return kernels.weighted_sum(deltas, weights.to(deltas))


@dataclass(frozen=True)
class TrimmedMean:
    """For every parameter, the mean without the `trim` largest share and the `trim` smallest share of the clients,
    0 <= trim < 1/2, rounded down to whole clients (Yin et al. 2018)."""

    trim: float = 0.1

    in_passing = False
    alike = True
    by_column = True

    def __post_init__(self) -> None:
        real = isinstance(self.trim, numbers.Real) and not isinstance(self.trim, bool)
        if not real or not 0 <= self.trim < 0.5:
            raise ValueError(f"trim: must be a number in [0, 0.5), got {self.trim!r}")

    def reduce(self, deltas: Tensor, weights: Tensor) -> Tensor:
        # 0.1 of 30 clients are 3, though 0.1 * 30 is less than that in floating point.
        return kernels.trimmed_mean(deltas, math.floor(self.trim * len(deltas) + 1e-9))


@dataclass(frozen=True)
class Median:
    """For every parameter, the median over the clients: of an even number of them, the mean of the middle two."""

    in_passing = False
    alike = True
    by_column = True

    def reduce(self, deltas: Tensor, weights: Tensor) -> Tensor:
        return kernels.trimmed_mean(deltas, (len(deltas) - 1) // 2)
