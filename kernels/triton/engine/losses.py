"""Losses and their gradients at once: what the last value holds becomes a gradient, what each row lost a number.

The loss of a batch is the mean over what counts in it: labels that are not ignored, or all numbers of its examples.
Under another reduction it is the same sum, divided by the number of examples ("outputs") or by that of an example's
numbers ("batch").
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from ..compiled import device, largest, total
from ..launch import launch

IGNORED = -100  # a label that counts for nothing
_ROWS = 16
_COLS = 64


@device
def _place(lengths, ROWS: tl.constexpr, CAPACITY: tl.constexpr, BR: tl.constexpr):
    """This program's client, its rows, and how many of the client's rows exist."""
    tiles: tl.constexpr = (CAPACITY + BR - 1) // BR
    program = tl.program_id(0)
    client = (program // tiles).to(tl.int64)
    return client, program % tiles * BR + tl.arange(0, BR), tl.load(lengths + client) * ROWS


@triton.jit
def _cross_entropy(
    out, d_out, labels, counts, losses, lengths,
    N: tl.constexpr, ROWS: tl.constexpr, CAPACITY: tl.constexpr, OUT: tl.constexpr, IGNORE: tl.constexpr,
    BR: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    client, r, rows = _place(lengths, ROWS, CAPACITY, BR)
    label = tl.load(labels + client * CAPACITY + r, mask=r < rows, other=IGNORE)
    here = (client * CAPACITY + r)[:, None] * OUT
    top = tl.full((BR,), float("-inf"), tl.float32)
    for n0 in range(0, N, BN):
        n = n0 + tl.arange(0, BN)
        mask = (r < rows)[:, None] & (n < N)[None, :]
        z = tl.load(out + here + n[None, :], mask=mask, other=float("-inf"))
        top = tl.maximum(top, largest(z, axis=1), propagate_nan=tl.PropagateNan.ALL)
    top = tl.where(r < rows, top, 0.0)
    mass = tl.zeros((BR,), tl.float32)
    own = tl.zeros((BR,), tl.float32)
    for n0 in range(0, N, BN):
        n = n0 + tl.arange(0, BN)
        mask = (r < rows)[:, None] & (n < N)[None, :]
        z = tl.load(out + here + n[None, :], mask=mask, other=float("-inf")) - top[:, None]
        mass += total(tl.exp(z), axis=1)
        own += total(tl.where(n[None, :] == label[:, None], z, 0.0), axis=1)
    counted = (r < rows) & (label != IGNORE)
    mass = tl.where(r < rows, mass, 1.0)
    tl.store(losses + client * CAPACITY + r, tl.where(counted, tl.log(mass) - own, 0.0), mask=r < rows)
    share = tl.where(counted, 1.0 / tl.load(counts + client), 0.0)
    for n0 in range(0, N, BN):
        n = n0 + tl.arange(0, BN)
        mask = (r < rows)[:, None] & (n < N)[None, :]
        z = tl.load(out + here + n[None, :], mask=mask, other=float("-inf")) - top[:, None]
        hit = (n[None, :] == label[:, None]).to(tl.float32)
        tl.store(d_out + here + n[None, :], (tl.exp(z) / mass[:, None] - hit) * share[:, None], mask=mask)


@device
def _log1p(e):
    """Of e in [0, 1], also of a tiny one: 2 atanh(e / (2 + e))."""
    s = e / (2.0 + e)
    z = s * s
    p = 0.121541734815
    p = p * z + 0.107129218813
    p = p * z + 0.143085180675
    p = p * z + 0.199994364178
    p = p * z + 0.333333378353
    return 2.0 * (s + s * (z * p))


@device
def _divisor(length, PER_BATCH: tl.constexpr, PER_EXAMPLE: tl.constexpr):
    """What the losses of so many examples are divided by."""
    return tl.maximum(length, 1) * PER_EXAMPLE if PER_BATCH else PER_EXAMPLE + 0 * length


@triton.jit
def _elementwise(
    out, d_out, targets, losses, lengths,
    N: tl.constexpr, ROWS: tl.constexpr, CAPACITY: tl.constexpr, OUT: tl.constexpr, SQUARES: tl.constexpr,
    PER_BATCH: tl.constexpr, PER_EXAMPLE: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Mean squares, or binary cross entropy of logits; targets are (clients, CAPACITY, N)."""
    client, r, rows = _place(lengths, ROWS, CAPACITY, BR)
    row = client * CAPACITY + r
    share = 1.0 / _divisor(tl.load(lengths + client), PER_BATCH, PER_EXAMPLE).to(tl.float32)
    lost = tl.zeros((BR,), tl.float32)
    for n0 in range(0, N, BN):
        n = n0 + tl.arange(0, BN)
        mask = (r < rows)[:, None] & (n < N)[None, :]
        z = tl.load(out + row[:, None] * OUT + n[None, :], mask=mask, other=0.0)
        t = tl.load(targets + row[:, None] * N + n[None, :], mask=mask, other=0.0)
        if SQUARES:
            d = z - t
            loss = d * d
            d = 2.0 * d
        else:
            e = tl.exp(-tl.abs(z))
            loss = tl.where(z > 0, z, 0.0) - z * t + _log1p(e)
            d = tl.where(z < 0, e, 1.0) / (1.0 + e) - t
            loss = tl.where(z != z, z, loss)
        lost += total(tl.where(mask, loss, 0.0), axis=1)
        tl.store(d_out + row[:, None] * OUT + n[None, :], d * share, mask=mask)
    tl.store(losses + row, lost, mask=r < rows)


@triton.jit
def _mean(
    losses, counts, lengths, out, tally, clock, ROWS: tl.constexpr, CAPACITY: tl.constexpr, PER_BATCH: tl.constexpr,
    PER_EXAMPLE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A client's loss, summed in float64 in an order that depends on the batch alone; and its tally."""
    client = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + client)
    rows = length * ROWS
    if rows == 0:
        return
    sums = tl.zeros((BLOCK,), tl.float64)
    for first in range(0, CAPACITY, BLOCK):
        r = first + tl.arange(0, BLOCK)
        sums += tl.load(losses + client * CAPACITY + r, mask=r < rows, other=0.0).to(tl.float64)
    if counts is None:
        count = _divisor(length, PER_BATCH, PER_EXAMPLE).to(tl.float64)
    else:
        count = tl.load(counts + client).to(tl.float64)
    mean = total(sums) / count
    tl.store(out + client, mean)
    if tally is not None:
        so_far = tl.load(tally + client * 3 + 2)
        tl.debug_barrier()  # every thread has read it before one of them writes
        if tl.load(clock) == 0:
            tl.store(tally + client * 3, mean)
        tl.store(tally + client * 3 + 1, mean)
        tl.store(tally + client * 3 + 2, so_far + mean)


class Tally(NamedTuple):
    """The losses of clients so far: `losses` (clients, 3) float64, first, last and sum, at the local step that
    the first number of `clock` (int64) is."""

    losses: Tensor
    clock: Tensor


def _tiles(batch: int, rows: int) -> int:
    return -(-batch * rows // _ROWS)


def cross_entropy(
    batch: int, rows: int, classes: int, out: Tensor, d_out: Tensor, labels: Tensor, counts: Tensor, losses: Tensor,
    lengths: Tensor, mean: Tensor, tally: Tally | None = None,
) -> None:  # fmt: skip
    """`out` (clients, batch * rows, stride) against labels (clients, batch * rows) int32; `counts` (clients,) float32
    of them count (at least 1). `d_out` may be `out`. `losses` (clients, batch * rows) and `mean` (clients,) float64."""
    clients, stride = len(lengths), out.shape[-1]
    sizes = {"N": classes, "ROWS": rows, "CAPACITY": batch * rows, "OUT": stride, "IGNORE": IGNORED}
    args = (out, d_out, labels, counts, losses, lengths)
    launch(_cross_entropy, clients * _tiles(batch, rows), out, *args, **sizes, BR=_ROWS, BN=_COLS)
    _finish(losses, counts, lengths, mean, tally, rows, batch * rows, {"PER_BATCH": True, "PER_EXAMPLE": rows})


def elementwise(
    squares: bool, batch: int, rows: int, channels: int, out: Tensor, d_out: Tensor, targets: Tensor, losses: Tensor,
    lengths: Tensor, mean: Tensor, tally: Tally | None = None, reduction: str = "mean",
) -> None:  # fmt: skip
    """`out` (clients, batch * rows, stride) against targets (clients, batch * rows, channels) float32: squares, or
    binary cross entropy, by a reduction of ``fastfed.losses``."""
    divisor = {"PER_BATCH": reduction != "batch", "PER_EXAMPLE": 1 if reduction == "outputs" else rows * channels}
    sizes = {"N": channels, "ROWS": rows, "CAPACITY": batch * rows, "OUT": out.shape[-1], "SQUARES": squares, **divisor}
    args = (out, d_out, targets, losses, lengths)
    launch(_elementwise, len(lengths) * _tiles(batch, rows), out, *args, **sizes, BR=_ROWS, BN=_COLS)
    _finish(losses, None, lengths, mean, tally, rows, batch * rows, divisor)


def _finish(
    losses: Tensor, counts: Tensor | None, lengths: Tensor, mean: Tensor, tally: Tally | None, rows: int, capacity: int,
    divisor: Mapping[str, int],
) -> None:  # fmt: skip
    sizes = {"ROWS": rows, "CAPACITY": capacity, **divisor, "BLOCK": 128}
    kept = (None, None) if tally is None else tally
    launch(_mean, len(lengths), losses, losses, counts, lengths, mean, *kept, warps=1, **sizes)
