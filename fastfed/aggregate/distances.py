"""Reductions that look at deltas as points: how long they are, and how far from one another.

All of that is in the products of every two deltas, so these are made once, in float64, in which the square of any
float32 is finite; what follows takes (n, n) numbers and one weighted sum.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import kernels
from ..train.threads import in_order, one_thread_per_operation

BLOCK = 1 << 21  # numbers of a block of columns: 16 MiB in float64
STILL = 1e-9  # relative change of a weight that no longer matters


def products(deltas: Tensor) -> Tensor:
    """The inner products of every two of `deltas` (n, d): (n, n) float64 on the CPU, the same bits for any number of
    threads."""
    threads = torch.get_num_threads() if deltas.device.type == "cpu" else 1
    blocks = deltas.split(max(1, BLOCK // len(deltas)), dim=1)
    total = torch.zeros(len(deltas), len(deltas), dtype=torch.float64, device=deltas.device)
    with one_thread_per_operation():
        for product in in_order(_of_block, blocks, threads):
            total += product
    return total.cpu()


def _of_block(columns: Tensor) -> Tensor:
    wide = columns.double()
    return wide @ wide.T


def _squares(products: Tensor) -> Tensor:
    """Squared distances of every two points (n, n); rounding leaves none negative."""
    lengths = products.diagonal()
    return (lengths[:, None] + lengths - 2 * products).clamp(min=0)


def _is(kind: type, value: object) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _weighted(deltas: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum, without those of no weight: what they hold may be of any size."""
    counts = weights > 0
    return kernels.weighted_sum(deltas[counts.to(deltas.device)].contiguous(), weights[counts].to(deltas))


@dataclass(frozen=True)
class Krum:
    """The mean of the `keep` deltas that have the smallest squared distances to their n - f - 2 nearest ones, where
    f = `hostile` n clients, rounded down, may send anything, 0 <= hostile < 1/2 (Blanchard et al. 2017; with keep > 1,
    their multi-Krum). Their proof wants n > 2f + 2."""

    hostile: float = 0.2
    keep: int = 1

    in_passing = False
    alike = True
    by_column = False

    def __post_init__(self) -> None:
        if not _is(numbers.Real, self.hostile) or not 0 <= self.hostile < 0.5:
            raise ValueError(f"hostile: must be a number in [0, 0.5), got {self.hostile!r}")
        if not _is(numbers.Integral, self.keep) or self.keep < 1:
            raise ValueError(f"keep: must be a whole number >= 1, got {self.keep!r}")

    def reduce(self, deltas: Tensor, weights: Tensor) -> Tensor:
        clients = len(deltas)
        hostile = math.floor(self.hostile * clients + 1e-9)
        near = max(1, clients - hostile - 2)
        # A delta is no neighbour of its own, but where it is alone.
        others = _squares(products(deltas)).fill_diagonal_(math.inf if clients > 1 else 0.0)
        scores = others.sort(dim=1).values[:, :near].sum(dim=1)
        kept = scores.argsort(stable=True)[: self.keep]
        share = torch.zeros(clients, dtype=torch.float64)
        share[kept] = 1 / len(kept)
        return _weighted(deltas, share)


@dataclass(frozen=True)
class GeometricMedian:
    """The point whose weighted sum of distances to the deltas is smallest, by at most `iterations` of Weiszfeld's, in
    which no distance counts as shorter than `nearest` (RFA, Pillutla et al. 2019)."""

    iterations: int = 100
    nearest: float = 1e-6

    in_passing = False
    alike = False
    by_column = False

    def __post_init__(self) -> None:
        if not _is(numbers.Integral, self.iterations) or self.iterations < 1:
            raise ValueError(f"iterations: must be a whole number >= 1, got {self.iterations!r}")
        if not _is(numbers.Real, self.nearest) or not 0 < self.nearest < math.inf:
            raise ValueError(f"nearest: must be a finite number > 0, got {self.nearest!r}")

    def reduce(self, deltas: Tensor, weights: Tensor) -> Tensor:
        given = weights.to("cpu", torch.float64)
        inner, share = products(deltas), given
        for _ in range(self.iterations):
            before, share = share, self._next(inner, given, share)
            if bool(((share - before).abs() <= STILL * share).all()):
                break
        return _weighted(deltas, share)

    def _next(self, inner: Tensor, given: Tensor, share: Tensor) -> Tensor:
        """The point is the deltas' mean by `share`; its squared distances follow from their products."""
        along = inner @ share
        squares = (inner.diagonal() - 2 * along + share @ along).clamp(min=0)
        pull = given / squares.sqrt().clamp(min=self.nearest)
        return pull / pull.sum()


@dataclass(frozen=True)
class NormBounded:
    """The weighted mean of the deltas, each scaled down to the median of their norms where it is longer."""

    in_passing = False
    alike = False
    by_column = False

    def reduce(self, deltas: Tensor, weights: Tensor) -> Tensor:
        norms = kernels.norms(deltas).cpu()
        bound = norms.quantile(0.5)
        scale = torch.where(norms > bound, bound / norms, 1.0)
        return kernels.weighted_sum(deltas, (weights.to(norms) * scale).to(deltas))
