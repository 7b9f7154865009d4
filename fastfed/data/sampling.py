"""Random numbers beyond the uniform, a stream per client: normal, gamma, whole sizes. Same bits on every machine."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import kernels
from ..kernels import Stream, uniform
from .exact import Floats, cos_of_turns, exp, log

Ints = NDArray[np.int64]
_UNIT = 2.0**-24  # the grid of the kernels' uniform numbers


def uniforms(n: int, stream: Stream, clients: Tensor | None = None) -> Floats:
    """(n,) numbers with 48 random bits, strictly between 0 and 1; with client ids (m,), a row each: (m, n)."""
    halves = uniform(2 * n, stream, clients=clients).numpy().astype(np.float64)
    return halves[..., :n] + (halves[..., n:] * _UNIT + _UNIT * _UNIT / 2)


def normals(n: int, stream: Stream, clients: Tensor | None = None) -> Floats:
    """(n,) standard normal numbers; with client ids (m,), a row each: (m, n)."""
    drawn = uniforms(2 * n, stream, clients)
    return _normal_of(drawn[..., :n], drawn[..., n:])


def log_gammas(shapes: Floats, stream: Stream, clients: Tensor) -> Floats:
    """Logarithms of gamma variates of these shapes (k,), a row for each of the client ids (m,): (m, k).

    They are logarithms because at a shape of 0.001 most variates are smaller than any floating-point number; a shape of
    0 gives -inf. Normalised over any subset of its columns, a row is a Dirichlet variate of the subset. Steps 0, 1, ...
    of the stream are used (Marsaglia, Tsang: A simple method for generating gamma variables, 2000).
    """
    shapes = np.asarray(shapes, dtype=np.float64)
    small = shapes < 1
    boosted = np.where(small, shapes + 1, shapes)  # gamma(a) is gamma(a + 1) times U^(1/a)
    result = _log_gammas_from_one(boosted, stream, clients)
    scale = np.where(small & (shapes > 0), shapes, 1.0)
    result += np.where(small, log(uniforms(len(shapes), stream, clients)) / scale, 0.0)
    result[:, shapes == 0] = -np.inf
    return result


def shares(log_weights: Floats) -> Floats:
    """Log weights (..., k), made positive shares of at most 1 by the largest of each row: not yet of sum 1."""
    return exp(log_weights - log_weights.max(axis=-1, keepdims=True))


def choose(weights: Floats, numbers: Floats) -> Ints:
    """Which of the weights (k,) each number of (n,) in [0, 1) falls on: (n,), with a chance like the weight."""
    cumulative = np.cumsum(weights)  # adds in order, unlike a sum, so that the bits are the same everywhere
    picked = np.searchsorted(cumulative, numbers * cumulative[-1], side="right")
    return np.minimum(picked, np.flatnonzero(weights)[-1])  # a number next to 1 can round up to the total


def choose_rows(weights: Floats, rows: Ints, numbers: Floats) -> Ints:
    """`choose` with the weights ``weights[rows[i]]`` of (m, k) for number i of (n,): (n,)."""
    cumulative = np.cumsum(weights, axis=1)
    cumulative /= cumulative[:, -1:]
    if kernels.backends()["cpp"] is True:
        from ..kernels.cpp.images import choose_rows as compiled

        picked = np.empty(len(rows), dtype=np.int64)
        compiled(picked, cumulative, np.ascontiguousarray(rows), np.ascontiguousarray(numbers))
        return picked
    return _halved(cumulative, rows, numbers)


def _halved(cumulative: Floats, rows: Ints, numbers: Floats) -> Ints:
    """Where numbers stand in their rows of rising sums (m, k): how many of all but the last are at most as large."""
    kinds = cumulative.shape[1]
    picked = np.zeros(len(rows), dtype=np.int64)
    step = 1 << max(0, kinds - 1).bit_length()
    while step > 1:
        step //= 2
        further = picked + step
        inside = np.minimum(further, kinds - 1)
        picked = np.where((further < kinds) & (cumulative[rows, inside - 1] <= numbers), further, picked)
    return picked


def sizes(clients: int, mean: float, spread: float, limit: int, stream: Stream) -> Tensor:
    """(clients,) int64 numbers of examples, log-normal: about `mean` on average, `spread` the deviation of logarithms.

    Between 1 and `limit`.
    """
    result = torch.empty(clients, dtype=torch.int64)
    for ids in torch.arange(clients).split(_PORTION):
        logarithms = spread * normals(1, stream, ids)[:, 0] - spread * spread / 2
        drawn = np.rint(mean * exp(logarithms))
        result[ids] = torch.from_numpy(np.clip(drawn, 1, limit).astype(np.int64))
    return result


_PORTION = 1 << 16  # clients whose sizes are made at once: bounds the memory of the steps in between


def _normal_of(first: Any, second: Any) -> Floats:
    """Box and Muller's, of two uniform numbers each."""
    return np.sqrt(-2 * log(first)) * cos_of_turns(second)


def _log_gammas_from_one(shapes: Floats, stream: Stream, clients: Tensor) -> Floats:
    """For shapes >= 1: nineteen of twenty variates are accepted at the first try, so that few tries serve all."""
    kinds = len(shapes)
    d = shapes - 1 / 3
    c = 1 / np.sqrt(9 * d)
    result = np.empty((len(clients), kinds))
    pending = np.ones((len(clients), kinds), dtype=bool)
    for step in count(1):
        rows = np.flatnonzero(pending.any(axis=1))
        if not len(rows):
            return result
        drawn = uniforms(3 * kinds, replace(stream, step=step), clients[torch.from_numpy(rows)])
        z = _normal_of(drawn[:, :kinds], drawn[:, kinds : 2 * kinds])
        root = 1 + c * z
        inside = root > 0
        v = np.where(inside, root * root * root, 1.0)
        accepted = inside & (log(drawn[:, 2 * kinds :]) < z * z / 2 + d - d * v + d * log(v)) & pending[rows]
        result[rows] = np.where(accepted, log(d * v), result[rows])
        pending[rows] &= ~accepted
    raise AssertionError("a count never ends")
