"""The weighted sum of deltas, client by client in their order."""


# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl
from torch import Tensor

from .bound import device
from .launch import LOOP_REGISTERS, block_for, blocks_of, launch
from .vectors import load, place, store


@device
def weighted(deltas, weights, clients, size, at, mask, BLOCK: tl.constexpr):
    """The sum's elements `at`, in registers."""
    total = tl.full((BLOCK,), 0.0, tl.float32)
    for client in range(clients):
        row = tl.cast(client, tl.int64) * size
        total += tl.load(weights + client) * load(deltas, row + at, mask)
    return total


@triton.jit(do_not_specialize=["clients"])
def _weighted_sum(deltas, weights, out, clients, size, BLOCK: tl.constexpr):
    _, at, mask = place(size, BLOCK)
    store(out, at, weighted(deltas, weights, clients, size, at, mask, BLOCK), mask)


def weighted_sum(deltas: Tensor, weights: Tensor, out: Tensor) -> None:
    clients, d = deltas.shape
    args = (deltas, weights, out, clients, d)
    launch(_weighted_sum, blocks_of(d), out, *args, registers=LOOP_REGISTERS, BLOCK=block_for(d))
