"""Euclidean norm of every row, and rows scaled down to a norm."""

from __future__ import annotations

import torch
from torch import Tensor

from ..phases import rules


def norms(x: Tensor, out: Tensor) -> None:
    """x: (clients, d); out: (clients,) float64."""
    out.copy_(x.to(torch.float64).square().sum(dim=1).sqrt())


def clip(x: Tensor, limit: float, out: Tensor) -> None:
    """Scales the rows of x (clients, d) whose norm exceeds `limit` down to it; `out` receives the norms before."""
    norms(x, out)
    x *= rules.clip_scale(out, limit).to(x.dtype)[:, None]
