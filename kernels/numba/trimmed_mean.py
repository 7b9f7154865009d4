"""The mean of deltas without the extremes of every coordinate: columns sorted side by side, the rest added up.

A float's bits, as a whole number with the magnitude of negative ones turned round, have the order of the numbers. They
are sorted by a network, whose steps do not depend on them, so that a group of columns takes each step at once.
"""

from __future__ import annotations

import numpy as np
from numba import prange
from torch import Tensor

from .compiled import Array, jit, launch, parallel, rules
from .weighted_sum import Half, as_float32, elements

COLUMNS = 64  # of a group; as int32 keys a quarter of a kilobyte for every client
_SIGN, _MAGNITUDE = np.int32(31), np.int32(0x7FFFFFFF)


@jit
def _key(value: np.float32) -> np.int32:
    bits = np.float32(value).view(np.int32)
    return np.int32(bits ^ ((bits >> _SIGN) & _MAGNITUDE))


@jit
def _value(key: np.int32) -> np.float32:
    return np.int32(key ^ ((key >> _SIGN) & _MAGNITUDE)).view(np.float32)


@jit
def _exchange(a: Array, b: Array) -> None:
    """The smaller ones into `a`, the larger ones into `b`."""
    for i in range(a.size):
        x, y = a[i], b[i]
        a[i] = min(x, y)
        b[i] = max(x, y)


@jit
def _sort_columns(rows: Array) -> None:
    """Every column of `rows` by Batcher's merge exchange (csrc/simd/trimming.inl has the same)."""
    count, top = rows.shape[0], 1
    while 2 * top < count:
        top *= 2
    run = top
    while run > 0:
        first, distance, following = 0, run, top
        while True:
            for i in range(first, count - distance):
                if (i & run) == first:
                    _exchange(rows[i], rows[i + distance])
            if following == run:
                break
            first, distance, following = run, following - run, following // 2
        run //= 2


@jit
def _gather_keys(keys: Array, deltas: Array, begin: int, columns: int, half: Half) -> None:
    """Into `keys` (clients, COLUMNS) those of the deltas' elements from `begin` on."""
    for client in range(keys.shape[0]):
        delta, to = deltas[client, begin : begin + columns], keys[client]
        for i in range(columns):
            to[i] = _key(as_float32(delta[i], half))


@jit
def _add_kept(
    inner: Array, up_to_low: Array, from_high: Array, low: Array, high: Array, delta: Array, half: Half
) -> None:
    """Adds what lies between the bounds, and counts what lies at them or outside. A NaN is added wherever it lies."""
    for i in range(inner.size):
        value = as_float32(delta[i], half)
        key = _key(value)
        up_to_low[i] += key <= low[i]
        from_high[i] += key >= high[i]
        inner[i] += value if low[i] < key < high[i] or value != value else np.float32(0)


@jit
def _mean_into(out: Array, deltas: Array, begin: int, trim: int, half: Half) -> None:
    """The trimmed mean of the deltas' elements from `begin` on, as many as `out` holds."""
    clients, columns = deltas.shape[0], out.size
    keys = np.zeros((clients, COLUMNS), np.int32)
    _gather_keys(keys, deltas, begin, columns, half)
    _sort_columns(keys)
    low, high = keys[trim], keys[clients - 1 - trim]
    inner, counts = np.zeros(columns, np.float32), np.full((2, columns), -trim, np.int32)
    for client in range(clients):
        _add_kept(inner, counts[0], counts[1], low, high, deltas[client, begin : begin + columns], half)
    count = np.float32(clients - 2 * trim)
    for i in range(columns):
        often = np.float32(counts[0, i]), np.float32(counts[1, i])
        out[i] = rules.mean_of_kept(inner[i], _value(low[i]), _value(high[i]), often[0], often[1], count)


@parallel
def _trimmed_mean(deltas: Array, trim: int, out: Array, half: Half) -> None:
    for group in prange((out.size + COLUMNS - 1) // COLUMNS):
        begin = group * COLUMNS
        _mean_into(out[begin : min(begin + COLUMNS, out.size)], deltas, begin, trim, half)


def trimmed_mean(deltas: Tensor, trim: int, out: Tensor) -> None:
    rows, half = elements(deltas)
    launch(_trimmed_mean, rows, trim, out.numpy(), half)
