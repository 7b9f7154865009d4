"""The mean of deltas without the extremes of every coordinate: its bounds bit by bit, then what lies between them.

A number's bits, as a whole number with the magnitude of negative ones turned round, have the order of the numbers. The
bounds are found from the highest bit down, both at once, by counting how many keys lie below: one pass over the clients
for every bit of the deltas' dtype. A few clients' keys stay in registers meanwhile.
"""


# mypy: disable-error-code="no-untyped-def"

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from .compiled import device, rules, total
from .launch import launch
from .tiles import WARP, WIDE, block_for
from .vectors import place, store, widened

_PROGRAMS = 216  # two for each multiprocessor of an A100
_BLOCK = 128  # coordinates of a program at most: one 128-bit access for each of its warp's threads
_HELD = 64  # clients whose keys a program holds, a thread as many of them
_IN_FLIGHT = 32  # numbers of a thread on their way at once, where there are more clients
AHEAD = tl.constexpr(8)  # clients at once in the sum


def _tile(clients: int, d: int) -> dict[str, Any]:
    """How to launch it: one warp a program, so that nobody waits at barriers when a column's keys are counted. Short
    vectors are cut finely to reach all of a card."""
    rows, block = triton.next_power_of_2(clients), _BLOCK if d >= _BLOCK * _PROGRAMS else WARP
    if WIDE:
        block = min(block_for(d), triton.next_power_of_2(d))
        return {"ROWS": min(rows, _HELD), "BLOCK": block, "HELD": rows <= _HELD, "warps": 1}
    if rows <= _HELD:
        return {"ROWS": rows, "BLOCK": min(block, WARP * _HELD // rows), "HELD": True, "warps": 1}
    return {"ROWS": _IN_FLIGHT * WARP // block, "BLOCK": block, "HELD": False, "warps": 1}


@device
def _turned(bits):
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@device
def _key(value):
    """In the upper bits of an int32, zeros below those of a half-width number."""
    if value.dtype == tl.float32:
        return _turned(value.to(tl.int32, bitcast=True))
    else:
        return _turned(value.to(tl.int16, bitcast=True).to(tl.int32) << 16) & -65536


@device
def _value(key, dtype: tl.constexpr):
    """What `_key` has been made of, as float32."""
    if dtype == tl.float32:
        return _turned(key).to(tl.float32, bitcast=True)
    else:
        return widened((_turned(key) >> 16).to(tl.int16).to(dtype, bitcast=True))


@device
def _keys(deltas, first, clients, size, at, mask, ROWS: tl.constexpr):
    """The keys (ROWS, BLOCK) of the clients from `first` on; in place of those that do not exist the largest one, below
    which nothing is looked for."""
    client = first + tl.arange(0, ROWS)
    there = (client < clients)[:, None] & mask[None, :]
    value = tl.load(deltas + client.to(tl.int64)[:, None] * size + at[None, :], mask=there)
    return tl.where(there, _key(value), 0x7FFFFFFF)


@device
def _below(keys, bound):
    """How many keys of every column are less than its bound; as float32, because sums of booleans are packed into bytes
    that the compiler keeps in local memory."""
    return total(tl.where(keys < bound[None, :], 1.0, 0.0), 0)


@triton.jit(do_not_specialize=["clients", "trim"])
def _trimmed_mean(
    deltas,
    out,
    clients,
    trim,
    size,
    BITS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    HELD: tl.constexpr,
):
    _, at, mask = place(size, BLOCK)
    low = tl.full((BLOCK,), -0x80000000, tl.int32)
    high = low
    if HELD:
        held = _keys(deltas, 0, clients, size, at, mask, ROWS)
    for passed in range(BITS):
        bit = tl.full((), 1, tl.int32) << (31 - passed)
        tried_low, tried_high = low ^ bit, high ^ bit
        if HELD:
            below_low, below_high = _below(held, tried_low), _below(held, tried_high)
        else:
            below_low = tl.full((BLOCK,), 0.0, tl.float32)
            below_high = below_low
            for first in range(0, clients, ROWS):
                keys = _keys(deltas, first, clients, size, at, mask, ROWS)
                below_low += _below(keys, tried_low)
                below_high += _below(keys, tried_high)
        low = tl.where(below_low <= trim, tried_low, low)
        high = tl.where(below_high < clients - trim, tried_high, high)

    up_to_low = tl.full((BLOCK,), 0, tl.int32)
    from_high = up_to_low
    inner = tl.full((BLOCK,), 0.0, tl.float32)
    for first in range(0, clients, AHEAD):
        for ahead in tl.static_range(AHEAD):
            exists = tl.where(first + ahead < clients, mask, False)
            value = tl.load(deltas + tl.cast(first + ahead, tl.int64) * size + at, mask=exists)
            key, wide = _key(value), widened(value)
            up_to_low += (exists & (key <= low)).to(tl.int32)
            from_high += (exists & (key >= high)).to(tl.int32)
            between = (key > low) & (key < high)
            inner += tl.where(exists & (between | (wide != wide)), wide, 0.0)  # a NaN wherever it lies
    DTYPE: tl.constexpr = deltas.dtype.element_ty
    mean = rules.mean_of_kept(
        inner,
        _value(low, DTYPE),
        _value(high, DTYPE),
        (up_to_low - trim).to(tl.float32),
        (from_high - trim).to(tl.float32),
        tl.cast(clients - 2 * trim, tl.float32),
    )
    store(out, at, mean, mask)


def trimmed_mean(deltas: Tensor, trim: int, out: Tensor) -> None:
    clients, d = deltas.shape
    tile, bits = _tile(clients, d), 8 * deltas.element_size()
    launch(_trimmed_mean, -(-d // tile["BLOCK"]), out, deltas, out, clients, trim, d, BITS=bits, **tile)
