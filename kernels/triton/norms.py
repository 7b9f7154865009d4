"""Euclidean norm of every row, and rows scaled down to a norm."""


# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl
from torch import Tensor

from ..rows import measures_rows
from ..torch_rules import rules as torch_rules
from .launch import launch
from .tiles import block_for, blocks_of
from .vectors import fold, new_partials, place, store, sum_of_squares


@triton.jit
def _row_squares(x, partials, size, BLOCK: tl.constexpr):
    client, at, mask = place(size, BLOCK)
    value = tl.load(x + client * size + at, mask=mask)
    tl.store(partials + tl.program_id(0), sum_of_squares(value, mask))


@triton.jit
def _scale_rows(x, scales, size, BLOCK: tl.constexpr):
    client, at, mask = place(size, BLOCK)
    scale = tl.load(scales + client)
    if scale == 1:
        return  # most rows, most of the time: nothing of them is read or written
    value = tl.load(x + client * size + at, mask=mask)
    store(x, client * size + at, value * scale, mask)


@measures_rows
def norms(x: Tensor, out: Tensor) -> None:
    """x: (clients, d); out: (clients,) float64."""
    clients, d = x.shape
    partials = new_partials(x)
    launch(_row_squares, clients * blocks_of(d), x, x, partials, d, BLOCK=block_for(d))
    fold(partials, out).sqrt_()


@measures_rows
def clip(x: Tensor, limit: float, out: Tensor) -> None:
    """Scales the rows of x (clients, d) whose norm exceeds `limit` down to it; `out` receives the norms before."""
    norms(x, out)
    clients, d = x.shape
    scales = torch_rules.clip_scale(out, limit).to(x.dtype)
    launch(_scale_rows, clients * blocks_of(d), x, x, scales, d, BLOCK=block_for(d))
