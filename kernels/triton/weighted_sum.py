"""The weighted sum of deltas, client by client in their order."""


# mypy: disable-error-code="no-untyped-def"

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from .compiled import device
from .launch import launch
from .tiles import WARP, WIDE, block_for
from .vectors import load, place, store

# Elements, warps and registers per program, the best first: 128-bit accesses, then many warps. Each element is one
# thread's, client after client, so short vectors must be cut finely to reach all of a card. The registers are a limit:
# without one the assembler aims at 32, for which it lets loads wait for each other.
_BLOCKS = ((1024, 4, 80), (512, 4, 80), (256, 2, 80), (128, 1, 80), (64, 1, 128), (32, 1, 128))
_PROGRAMS = 216  # two for each multiprocessor of an A100
_IN_FLIGHT = 32  # numbers of a thread on their way at once: few threads need many, to hide how far memory is
TAIL = tl.constexpr(4)  # clients at once at the end, where not AHEAD of them are left


def summing_blocks(size: int) -> dict[str, Any]:
    """How to launch a sum over clients of vectors of `size`: the options of `launch` that follow from it."""
    if WIDE:
        return {"BLOCK": block_for(size), "AHEAD": TAIL.value}
    block, warps, registers = next((b for b in _BLOCKS if size >= b[0] * _PROGRAMS), _BLOCKS[-1])
    return {"BLOCK": block, "AHEAD": _IN_FLIGHT * warps * WARP // block, "warps": warps, "registers": registers}


@device
def _with_clients(total, deltas, weights, first, clients, size, at, mask, COUNT: tl.constexpr):
    """`total` and COUNT clients from `first` on, as far as they exist: zeros that are added change nothing. Without
    weights (None) every client counts 1."""
    for ahead in tl.static_range(COUNT):
        client = first + ahead
        exists = client < clients
        here, found = tl.cast(client, tl.int64) * size + at, tl.where(exists, mask, False)
        if weights is None:
            total += tl.where(exists, load(deltas, here, found), 0.0)
        else:
            weight = tl.load(weights + client, mask=exists, other=0.0)
            total += weight * load(deltas, here, found)
    return total


@device
def weighted(deltas, weights, clients, size, at, mask, BLOCK: tl.constexpr, AHEAD: tl.constexpr):
    """The sum's elements `at`, in registers."""
    total = tl.full((BLOCK,), 0.0, tl.float32)
    whole = clients // AHEAD * AHEAD
    for first in range(0, whole, AHEAD):
        total = _with_clients(total, deltas, weights, first, clients, size, at, mask, AHEAD)
    for first in range(whole, clients, TAIL):
        total = _with_clients(total, deltas, weights, first, clients, size, at, mask, TAIL)
    return total


@triton.jit(do_not_specialize=["clients"])
def _weighted_sum(deltas, weights, out, clients, size, BLOCK: tl.constexpr, AHEAD: tl.constexpr):
    _, at, mask = place(size, BLOCK)
    store(out, at, weighted(deltas, weights, clients, size, at, mask, BLOCK, AHEAD), mask)


def weighted_sum(deltas: Tensor, weights: Tensor, out: Tensor) -> None:
    clients, d = deltas.shape
    options = summing_blocks(d)
    launch(_weighted_sum, -(-d // options["BLOCK"]), out, deltas, weights, out, clients, d, **options)
