"""Euclidean norm of every row, and rows scaled down to a norm."""

from __future__ import annotations

import torch
from torch import Tensor

from ..rows import measures_rows
from ..torch_rules import rules

_CHUNK = 4096


def squares(x: Tensor) -> Tensor:
    """The sum of squares of every row of x (clients, d): (clients,) float64.

    Chunk by chunk, then the chunks' sums likewise: left to itself, torch splits one long row among its threads, and the
    bits would depend on how many there are.
    """
    sums = x.to(torch.float64).square()
    while sums.shape[1] > 1:
        padded = torch.nn.functional.pad(sums, (0, -sums.shape[1] % _CHUNK))
        sums = padded.unflatten(1, (-1, _CHUNK)).sum(dim=2)
    return sums[:, 0]


@measures_rows
def norms(x: Tensor, out: Tensor) -> None:
    """x: (clients, d); out: (clients,) float64."""
    out.copy_(squares(x).sqrt())


@measures_rows
def clip(x: Tensor, limit: float, out: Tensor) -> None:
    """Scales the rows of x (clients, d) whose norm exceeds `limit` down to it; `out` receives the norms before."""
    norms(x, out)
    x *= rules.clip_scale(out, limit).to(x.dtype)[:, None]
