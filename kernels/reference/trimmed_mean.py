"""The mean without the extremes, coordinate by coordinate: sorted, the ends left out, the rest added up."""

from __future__ import annotations

from torch import Tensor


def trimmed_mean(deltas: Tensor, trim: int, out: Tensor) -> None:
    kept = deltas.to(out.dtype).sort(0).values[trim : len(deltas) - trim]
    out.copy_(kept.mean(0))
