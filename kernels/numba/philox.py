"""Random numbers, a block of the counter at a time; words are int64, so that no sum of two can wrap."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from .. import bind
from ..rows import draws_rows
from ..streams import LARGEST_KEY, StreamWords
from .compiled import CHUNK, Array, chunks_of, jit, launch, parallel, span_of


@jit
def _wide_multiply(a: int, b: int) -> tuple[int, int]:
    product = np.uint64(a) * np.uint64(b)  # unsigned: 32 bits times 32 bits fill all 64
    return np.int64(product >> np.uint64(32)), np.int64(product & np.uint64(0xFFFFFFFF))


@jit
def _to_float(word: int) -> np.float32:
    return np.float32(word)


_philox = bind.load(
    "philox",
    "numba",
    {
        "wide_multiply": _wide_multiply,
        "to_float": _to_float,
        "log": math.log,
        "sqrt": math.sqrt,
        "cos": math.cos,
        "sin": math.sin,
        "UNIT24": np.float32(2.0**-24),
        "UNIT32": np.float32(2.0**-32),
        "HALF": np.float32(0.5),
        "MINUS_TWO": np.float32(-2.0),
        "TWO_PI": np.float32(2.0 * math.pi),
    },
    wrap=jit,
)
_words_of, _uniform_of = _philox.philox, _philox.uniform_of
_normal_pair, _sort_key = _philox.normal_pair, _philox.sort_key


@jit
def _uniforms(w0: int, w1: int, w2: int, w3: int) -> tuple[Any, ...]:
    return _uniform_of(w0), _uniform_of(w1), _uniform_of(w2), _uniform_of(w3)


@jit
def _normals(w0: int, w1: int, w2: int, w3: int) -> tuple[Any, ...]:
    return _normal_pair(w0, w1) + _normal_pair(w2, w3)


@jit
def _sort_keys(w0: int, w1: int, w2: int, w3: int) -> tuple[Any, ...]:
    return _sort_key(w0, w1), _sort_key(w2, w3)


def _drawer(numbers_of: Any, per_block: int) -> Callable[..., None]:
    """Fills (clients, n) with what `numbers_of` makes of the four words of a block."""
    assert CHUNK % per_block == 0  # a block belongs to one chunk

    @jit
    def one_chunk(out: Array, begin: int, client: int, step: int, round_: int, key0: int, key1: int) -> None:
        first = begin // per_block
        for block in range((out.size + per_block - 1) // per_block):
            w0, w1, w2, w3 = _words_of(first + block, step, client, round_, key0, key1)
            numbers, place = numbers_of(w0, w1, w2, w3), block * per_block
            for i in range(min(per_block, out.size - place)):
                out[place + i] = numbers[i]

    @parallel
    def all_chunks(out: Array, clients: Array, step: int, round_: int, key0: int, key1: int) -> None:
        chunks = chunks_of(out.shape[1])
        for index in prange(out.shape[0] * chunks):
            row, chunk = index // chunks, index % chunks
            begin, end = span_of(chunk, out.shape[1])
            one_chunk(out[row, begin:end], begin, clients[row], step, round_, key0, key1)

    kernel: Any = all_chunks
    return kernel


_draw_uniforms, _draw_normals, _draw_sort_keys = _drawer(_uniforms, 4), _drawer(_normals, 4), _drawer(_sort_keys, 2)


@parallel
def _draw_shuffle_keys(
    out: Array, clients: Array, steps: Array, counts: Array, round_: int, key0: int, key1: int
) -> None:
    for row in prange(out.shape[0]):
        for block in range((counts[row] + 1) // 2):
            keys = _sort_keys(*_words_of(block, steps[row], clients[row], round_, key0, key1))
            for i in range(min(2, counts[row] - 2 * block)):
                out[row, 2 * block + i] = keys[i]


def _draw(kernel: Callable[..., None], out: Tensor, stream: StreamWords, clients: Tensor) -> None:
    launch(kernel, out.numpy(), clients.numpy(), stream.step, stream.round, stream.key0, stream.key1)


@draws_rows
def uniform(out: Tensor, stream: StreamWords, clients: Tensor) -> None:
    """out: (clients, n) float32."""
    _draw(_draw_uniforms, out, stream, clients)


@draws_rows
def normal(out: Tensor, stream: StreamWords, clients: Tensor) -> None:
    """out: (clients, n) float32."""
    _draw(_draw_normals, out, stream, clients)


@draws_rows
def permutation(out: Tensor, stream: StreamWords, clients: Tensor) -> None:
    """out: (clients, n) int64, every row a permutation of 0 .. n-1."""
    keys = torch.empty_like(out)
    _draw(_draw_sort_keys, keys, stream, clients)
    out.copy_(keys.sort(dim=1, stable=True).indices)


def shuffles(out: Tensor, stream: StreamWords, clients: Tensor, steps: Tensor, counts: Tensor) -> None:
    """out: (rows, width) int64; clients, steps, counts: (rows,) int64."""
    keys = torch.full_like(out, LARGEST_KEY)  # behind every count: a stable sort leaves those places where they are
    rows = (keys.numpy(), clients.numpy(), steps.numpy(), counts.numpy())
    launch(_draw_shuffle_keys, *rows, stream.round, stream.key0, stream.key1)
    out.copy_(keys.sort(dim=1, stable=True).indices)
