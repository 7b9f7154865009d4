"""Weighted sum and server step in one pass: the sum of a chunk stays in cache and is used up at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import prange
from torch import Tensor

from ..table import ServerNumbers, ServerRule, ServerScalars
from .compiled import Array, chunks_of, floats, jit, launch, parallel, piece, rules, span_of, vector
from .weighted_sum import Half, elements, sum_into


@cache
def _kernel(formula: str) -> Callable[..., None]:
    """The pass of one server rule; moments that it does without are rows of zeros that nobody keeps."""
    rule = getattr(rules, f"server_{formula}")

    @jit
    def apply(x: Array, delta: Array, m: Array, v: Array, vmax: Array, numbers: ServerScalars, of_delta: bool) -> None:
        for i in range(x.size):
            x[i], m[i], v[i], vmax[i] = rule(x[i], delta[i], m[i], v[i], vmax[i], numbers, of_delta)

    @jit
    def one_chunk(
        begin: int, end: int, x: Array, deltas: Array, weights: Array, m: Array, v: Array, vmax: Array,
        numbers: ServerScalars, of_delta: bool, half: Half,
    ) -> None:  # fmt: skip
        delta = np.empty(end - begin, np.float32)
        sum_into(delta, deltas, weights, begin, half)
        moments = piece(m, 0, begin, end), piece(v, 0, begin, end), piece(vmax, 0, begin, end)
        apply(x[begin:end], delta, moments[0], moments[1], moments[2], numbers, of_delta)

    @parallel
    def all_chunks(
        x: Array, deltas: Array, weights: Array, m: Array, v: Array, vmax: Array,
        numbers: ServerScalars, of_delta: bool, half: Half,
    ) -> None:  # fmt: skip
        for chunk in prange(chunks_of(x.size)):
            begin, end = span_of(chunk, x.size)
            one_chunk(begin, end, x, deltas, weights, m, v, vmax, numbers, of_delta, half)

    kernel: Any = all_chunks
    return kernel


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
    rows, half = elements(deltas)
    moments = (vector(m), vector(v), vector(vmax))
    numbers = ServerScalars._make(floats(*n.scalars))
    launch(_kernel(rule.formula), x.numpy(), rows, weights.numpy(), *moments, numbers, n.of_delta, half)
