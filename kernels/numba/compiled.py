"""What every file of this backend shares: the rules compiled by numba, the chunks, and how a kernel is launched.

A vector is worked in chunks of a fixed size. Whatever is summed is summed per chunk and the chunks are added in order,
so that no bit depends on how many threads there were. A chunk is worked in short loops, one per step of a rule, over
buffers that stay in cache: a loop over few pointers is one that LLVM turns into vector instructions.

Two habits keep those loops fast. They run over slices from 0, because an index that could be negative is tested for
it at every element. And what they write is either what they read in place or a buffer of their own, because LLVM gives
up on two pointers that it finds overlapping.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from threading import Lock
from typing import Any

import numba
import numpy as np
import torch
from numba import njit
from torch import Tensor

from .. import bind

Array = np.ndarray[Any, Any]

CHUNK = 4096  # elements; four float32 buffers of it fit the second level of any cache, two the first

# "numpy": a division by zero gives inf or nan, as everywhere else here. No fastmath: it would let the bits wander. No
# cache on disk either: numba's does not notice a change of rules.py, and never hits for a kernel made by a factory.
_OPTIONS: dict[str, Any] = {"error_model": "numpy"}
# For functions that only compiled code calls: without a door for Python there is less to compile. Python must not call
# them (it would crash).
_DOORLESS: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
jit = njit(**_OPTIONS, **_DOORLESS)
serial = njit(**_OPTIONS, nogil=True)
parallel = njit(**_OPTIONS, nogil=True, parallel=True)


@jit
def minimum(a: Any, b: Any) -> Any:
    """The smaller one, or the one that is not a number."""
    return a if a < b or a != a else b


@jit
def maximum(a: Any, b: Any) -> Any:
    """The larger one, or the one that is not a number."""
    return a if a > b or a != a else b


@jit
def where(condition: Any, a: Any, b: Any) -> Any:
    return a if condition else b


@jit
def sign(a: Any) -> Any:
    return np.float32(a > 0) - np.float32(a < 0)  # float32, lest an int widen what it meets


NAMES = {"sqrt": math.sqrt, "maximum": maximum, "minimum": minimum, "where": where, "sign": sign}
rules = bind.load("rules", "numba", NAMES, wrap=jit)

NOTHING = np.empty((0, 0), np.float32)


def vector(tensor: Tensor | None) -> Array:
    """A vector (d,) as one row (1, d); a vector that the rule does without as no row."""
    return NOTHING if tensor is None else tensor.numpy()[None]


def matrix(tensor: Tensor | None) -> Array:
    """A batch of vectors (rows, d); a batch that the rule does without as no row."""
    return NOTHING if tensor is None else tensor.numpy()


def floats(*numbers: float) -> tuple[np.float32, ...]:
    """Numbers as the kernels take them; a Python float would widen every element it meets."""
    return tuple(map(np.float32, numbers))


_one_at_a_time = Lock()  # numba's own thread pool, its last resort, aborts the process when two threads enter it


def launch(kernel: Callable[..., None], *arguments: Any) -> None:
    """Runs a parallel kernel on as many threads as torch and numba both allow."""
    with _one_at_a_time:
        allowed, wanted = numba.get_num_threads(), torch.get_num_threads()
        if wanted >= allowed:
            kernel(*arguments)
            return
        numba.set_num_threads(wanted)
        try:
            kernel(*arguments)
        finally:
            numba.set_num_threads(allowed)


# ---- chunks ---------------------------------------------------------------------------------------------------------


@jit
def chunks_of(size: int) -> int:
    return (size + CHUNK - 1) // CHUNK


@jit
def span_of(chunk: int, size: int) -> tuple[int, int]:
    """Where a chunk of a vector begins and ends."""
    return chunk * CHUNK, min(size, (chunk + 1) * CHUNK)


@jit
def piece(rows: Array, client: int, begin: int, end: int) -> Array:
    """A part of the client's row, of the one row that all share, or zeros in place of a vector that is not there."""
    if rows.shape[0] == 0:
        return np.zeros(end - begin, np.float32)
    return rows[min(client, rows.shape[0] - 1), begin:end]


# ---- sums of squares ------------------------------------------------------------------------------------------------


def partials_of(clients: int, size: int) -> Array:
    """Room for one sum per client and chunk, at zero."""
    return np.zeros((clients, chunks_of.py_func(size)), np.float64)


@jit
def square_sum(values: Array) -> float:
    """In float64 and in an order of its own: four sums side by side, because one would wait for itself."""
    a = b = c = d = 0.0
    whole = values.size // 4
    for i in range(whole):
        four = values[4 * i : 4 * i + 4]
        a += np.float64(four[0]) * np.float64(four[0])
        b += np.float64(four[1]) * np.float64(four[1])
        c += np.float64(four[2]) * np.float64(four[2])
        d += np.float64(four[3]) * np.float64(four[3])
    for value in values[4 * whole :]:
        a += np.float64(value) * np.float64(value)
    return (a + b) + (c + d)


@serial
def _add_in_order(partials: Array, out: Array) -> None:
    for client in range(partials.shape[0]):
        total = 0.0
        for part in partials[client]:
            total += part
        out[client] = total


def add_in_order(partials: Array) -> Tensor:
    """The sum of every row of `partials`, first to last: (clients,) float64."""
    out = np.empty(partials.shape[0], np.float64)
    _add_in_order(partials, out)
    return torch.from_numpy(out)
