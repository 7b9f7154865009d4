"""Launches the mean of a batch of deltas without the extremes of every coordinate."""

from __future__ import annotations

from torch import Tensor

from .launch import run
from .weighted_sum import DTYPES, SumGrid


def trimmed_mean(deltas: Tensor, trim: int, out: Tensor) -> None:
    clients, d = deltas.shape
    grid = SumGrid.of(d, allows_wide=False)
    name = f"trimmed_mean_{DTYPES[deltas.dtype]}"
    run("trimmed_mean", name, out.device, grid.blocks, 1, deltas, clients, d, trim, out, threads=grid.threads)
