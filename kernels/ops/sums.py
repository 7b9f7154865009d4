"""Sums over clients and norms of vectors."""

from __future__ import annotations

import numbers

import torch
from torch import Tensor

from .. import check, hosts, registry
from ..table import POSITIVE


def weighted_sum(deltas: Tensor, weights: Tensor, out: Tensor | None = None, *, backend: str | None = None) -> Tensor:
    """``sum_i weights[i] * deltas[i]`` of deltas (clients, d) and weights (clients,): (d,), into `out` if given.

    Float32 out of bfloat16, float16 and float32 deltas, float64 out of float64 ones; clients are added in their order.
    """
    if hosts.is_array(deltas):
        read = hosts.read("deltas", deltas), hosts.read("weights", weights)
        found = weighted_sum(*read, hosts.written("out", out), backend=backend)
        return hosts.like(deltas, found) if out is None else out
    d, dtype = check.surely_valid_deltas(deltas, weights), None
    if d == 0:
        check.deltas("deltas", deltas)
        check.weights("weights", weights, deltas)
        d, dtype = deltas.shape[1], torch.float64 if deltas.dtype is torch.float64 else torch.float32
        weights = weights.to(dtype)
    if out is None:
        out = deltas.new_empty(d, dtype=dtype)
    elif not check.surely_valid(out, (), (), (), (deltas, weights)) or out.dim() != 1 or out.numel() != d:
        check.like("out", out, deltas.new_empty(0, dtype=dtype), deltas.shape[1:])
        check.disjoint([("out", out)], [("deltas", deltas), ("weights", weights)])
    registry.pick(backend, out).weighted_sum(deltas, weights, out)
    return out


def trimmed_mean(deltas: Tensor, trim: int, out: Tensor | None = None, *, backend: str | None = None) -> Tensor:
    """For every coordinate of deltas (clients, d), the mean without the `trim` smallest and the `trim` largest of them:
    (d,), into `out` if given; 2 trim < clients. With trim = (clients - 1) // 2 it is the median.

    Float32 out of bfloat16, float16 and float32 deltas, float64 out of float64 ones. A coordinate in which a delta is
    NaN is NaN.
    """
    if hosts.is_array(deltas):
        found = trimmed_mean(hosts.read("deltas", deltas), trim, hosts.written("out", out), backend=backend)
        return hosts.like(deltas, found) if out is None else out
    check.deltas("deltas", deltas)
    if not isinstance(trim, numbers.Integral) or isinstance(trim, bool) or not 0 <= 2 * trim < len(deltas):
        raise ValueError(f"trim: must be a whole number >= 0 that leaves some of {len(deltas)} clients, got {trim!r}")
    dtype = torch.float64 if deltas.dtype is torch.float64 else torch.float32
    if out is None:
        out = deltas.new_empty(deltas.shape[1], dtype=dtype)
    else:
        check.like("out", out, deltas.new_empty(0, dtype=dtype), deltas.shape[1:])
        check.disjoint([("out", out)], [("deltas", deltas)])
    registry.pick(backend, out).trimmed_mean(deltas, int(trim), out)
    return out


def norms(x: Tensor, *, backend: str | None = None) -> Tensor:
    """The Euclidean norm of ``x`` (d,) as (), or of every row of (clients, d) as (clients,); float64."""
    if hosts.is_array(x):
        return hosts.like(x, norms(hosts.read("x", x), backend=backend))
    if not check.surely_valid(x, (), (), (), ()):
        check.vector("x", x)
    out = _one_per_row(x)
    registry.pick(backend, x).norms(x, out)
    return out


def clip(x: Tensor, limit: float, *, backend: str | None = None) -> Tensor:
    """Scales ``x`` (d,), or every row of (clients, d), down to norm `limit` in place; the norms before, float64."""
    if hosts.is_array(x):
        return hosts.like(x, clip(hosts.written("x", x), limit, backend=backend))
    if not check.surely_valid(x, (), (), (), ()):
        check.vector("x", x)
    if not POSITIVE.admits(limit):
        raise ValueError(f"limit: must be {POSITIVE.words}, got {limit!r}")
    out = _one_per_row(x)
    registry.pick(backend, x).clip(x, float(limit), out)
    return out


def _one_per_row(x: Tensor) -> Tensor:
    """Room for a float64 number per row: of x.shape[:-1], which would be slower to ask for."""
    return x.new_empty(() if x.dim() == 1 else len(x), dtype=torch.float64)
