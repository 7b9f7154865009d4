"""What every kernel does with packed vectors: find its place, load what exists, add up squares."""


# mypy: disable-error-code="no-untyped-def"

import torch
import triton
import triton.language as tl
from torch import Tensor

from .compiled import device, total
from .launch import launch
from .tiles import blocks_of

_LANES = 256  # partial sums folded side by side


@device
def place(size, BLOCK: tl.constexpr):
    """This program's client, its elements inside that client's vector of `size`, and which of them exist.

    The grid is one row, clients one after another: its second axis would end at 65,535 clients.
    """
    blocks = (size + BLOCK - 1) // BLOCK
    program = tl.program_id(0)
    client = (program // blocks).to(tl.int64)
    at = (program % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return client, at, at < size


@device
def widened(value):
    """As float32. A bfloat16 is a float32's upper half: spelt out, as the interpreter's cast loses subnormals."""
    if value.dtype == tl.bfloat16:
        return (value.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:
        return value.to(tl.float32)


@device
def load(vector, at, mask):
    """The vector's elements as float32, or the zero that the rules expect of an absent one (None)."""
    if vector is None:
        return 0.0
    else:
        return widened(tl.load(vector + at, mask=mask))


@device
def store(vector, at, value, mask):
    """Nothing, if the vector is absent."""
    if vector is not None:
        tl.store(vector + at, value, mask=mask)


@device
def sum_of_squares(value, mask):
    """In float64: two numbers of 24 bits multiply exactly there."""
    wide = tl.where(mask, value, 0.0).to(tl.float64)
    return total(wide * wide)


@triton.jit
def _fold(partials, out, parts, LANES: tl.constexpr):
    client = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, LANES)
    sums = tl.full((LANES,), 0.0, tl.float64)
    for first in range(0, parts, LANES):
        at = first + lane
        sums += tl.load(partials + client * parts + at, mask=at < parts, other=0.0)
    tl.store(out + client, total(sums))


def new_partials(x: Tensor, parts: int | None = None) -> Tensor:
    """One float64 per client and block, for `fold`. Zeros, because blocks of clients that have finished write none."""
    parts = blocks_of(x.shape[1]) if parts is None else parts
    return torch.zeros((x.shape[0], parts), dtype=torch.float64, device=x.device)


def fold(partials: Tensor, out: Tensor | None = None) -> Tensor:
    """The row sums of `partials`, in an order that depends on their number alone (torch.sum's depends on the shape)."""
    clients, parts = partials.shape
    out = partials.new_empty(clients) if out is None else out
    launch(_fold, clients, partials, partials, out, parts, LANES=_LANES)
    return out
