"""Launches the server kernels that make the weighted sum of deltas in registers."""

from __future__ import annotations

from torch import Tensor

from ..table import ServerNumbers, ServerRule
from .launch import address, is_wide, run, suffix
from .server_step import Numbers, ServerVectors, variant
from .weighted_sum import DTYPES, Deltas, SumGrid


def aggregate_step(
    rule: ServerRule,
    x: Tensor,
    deltas: Tensor,
    weights: Tensor,
    m: Tensor | None,
    v: Tensor | None,
    vmax: Tensor | None,
    n: ServerNumbers,
) -> None:
    d = x.numel()
    grid = SumGrid.of(d, is_wide(d, x, deltas, m, v, vmax))
    name = f"aggregate_step_{variant(rule, m, n)}_{DTYPES[deltas.dtype]}{suffix(grid.wide)}"
    args = (ServerVectors(*(address(t) for t in (x, m, v, vmax))), Deltas.of(deltas, weights), Numbers(*n.scalars))
    run("aggregate_step", name, x.device, grid.blocks, 1, *args, threads=grid.threads)
