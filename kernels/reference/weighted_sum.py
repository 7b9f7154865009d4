"""The weighted sum of deltas, client by client in their order."""

from __future__ import annotations

from torch import Tensor


def weighted_sum(deltas: Tensor, weights: Tensor, out: Tensor) -> None:
    out.zero_()
    for delta, weight in zip(deltas, weights.to(out.dtype), strict=True):
        out += weight * delta.to(out.dtype)
