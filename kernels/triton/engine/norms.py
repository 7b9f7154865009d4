"""Normalisation over groups of an image's channels, and over the last axis: both over *units*.

A unit is what is normalised together: `pixels` rows by `width` columns of a value. Group norm has one for every example
and group of channels, layer norm one for every row. Means and variances take two passes over a unit: the difference of
mean square and squared mean would cancel where the mean is large.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from ...layers import Norm, Place
from ..compiled import device, total
from ..launch import launch
from .curves import activated, gated
from .products import _settle_bias
from .rule import Rule, Sink


def _sizes(n: Norm, batch: int) -> dict[str, Any]:
    return {
        "PIXELS": n.pixels, "WIDTH": n.width, "GROUPS": n.groups, "ROWS": n.rows, "STRIDE": n.stride, "BATCH": batch,
        "HAS_WEIGHT": n.weight is not None, "HAS_BIAS": n.bias is not None,
    }  # fmt: skip


def _block(n: Norm) -> int:
    return min(1024, max(16, triton.next_power_of_2(n.pixels * n.width)))


@device
def _unit(lengths, PIXELS: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr, BATCH: tl.constexpr):
    """This program's client, its unit, the unit's first row and group; whether it exists."""
    units: tl.constexpr = BATCH * (ROWS // PIXELS) * GROUPS
    program = tl.program_id(0)
    client = (program // units).to(tl.int64)
    unit = program % units
    first = unit // GROUPS * PIXELS
    return client, unit, first, unit % GROUPS, first < tl.load(lengths + client) * ROWS


@device
def _scale(models, place, client, size, column, mask, HAS: tl.constexpr, ABSENT: tl.constexpr):
    if HAS:
        return tl.load(models + client * size + place.offset + column, mask=mask, other=0.0)
    else:
        return tl.full(column.shape, ABSENT, tl.float32)


@triton.jit
def _forward(
    models, value, out, stats, lengths, weight, bias, size, eps,
    PIXELS: tl.constexpr, WIDTH: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr, STRIDE: tl.constexpr,
    BATCH: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, CURVE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    client, unit, first, group, exists = _unit(lengths, PIXELS, GROUPS, ROWS, BATCH)
    if not exists:
        return
    start = (client * (BATCH * ROWS) + first) * STRIDE + group * WIDTH
    COUNT: tl.constexpr = PIXELS * WIDTH
    sums = tl.zeros((BLOCK,), tl.float32)
    for e0 in range(0, COUNT, BLOCK):
        e = e0 + tl.arange(0, BLOCK)
        sums += tl.load(value + start + e // WIDTH * STRIDE + e % WIDTH, mask=e < COUNT, other=0.0)
    mean = total(sums) / COUNT
    squares = tl.zeros((BLOCK,), tl.float32)
    for e0 in range(0, COUNT, BLOCK):
        e = e0 + tl.arange(0, BLOCK)
        x = tl.load(value + start + e // WIDTH * STRIDE + e % WIDTH, mask=e < COUNT, other=0.0) - mean
        squares += tl.where(e < COUNT, x * x, 0.0)
    inverse = 1.0 / tl.sqrt_rn(total(squares) / COUNT + eps)
    stat = stats + (client * (BATCH * (ROWS // PIXELS) * GROUPS) + unit) * 2
    tl.store(stat, mean)
    tl.store(stat + 1, inverse)
    for e0 in range(0, COUNT, BLOCK):
        e = e0 + tl.arange(0, BLOCK)
        at, column = start + e // WIDTH * STRIDE + e % WIDTH, group * WIDTH + e % WIDTH
        x = (tl.load(value + at, mask=e < COUNT, other=0.0) - mean) * inverse
        w = _scale(models, weight, client, size, column, e < COUNT, HAS_WEIGHT, 1.0)
        b = _scale(models, bias, client, size, column, e < COUNT, HAS_BIAS, 0.0)
        tl.store(out + at, activated(x * w + b, CURVE), mask=e < COUNT)


@triton.jit
def _input_gradient(
    models, value, d_value, d_out, stats, lengths, weight, size,
    PIXELS: tl.constexpr, WIDTH: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr, STRIDE: tl.constexpr,
    BATCH: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, GATE: tl.constexpr, ADD: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    client, unit, first, group, exists = _unit(lengths, PIXELS, GROUPS, ROWS, BATCH)
    if not exists:
        return
    start = (client * (BATCH * ROWS) + first) * STRIDE + group * WIDTH
    COUNT: tl.constexpr = PIXELS * WIDTH
    stat = stats + (client * (BATCH * (ROWS // PIXELS) * GROUPS) + unit) * 2
    mean, inverse = tl.load(stat), tl.load(stat + 1)
    plain = tl.zeros((BLOCK,), tl.float32)
    along = tl.zeros((BLOCK,), tl.float32)
    for e0 in range(0, COUNT, BLOCK):
        e = e0 + tl.arange(0, BLOCK)
        at, column = start + e // WIDTH * STRIDE + e % WIDTH, group * WIDTH + e % WIDTH
        w = _scale(models, weight, client, size, column, e < COUNT, HAS_WEIGHT, 1.0)
        d = tl.load(d_out + at, mask=e < COUNT, other=0.0) * w
        x = (tl.load(value + at, mask=e < COUNT, other=0.0) - mean) * inverse
        plain += tl.where(e < COUNT, d, 0.0)
        along += tl.where(e < COUNT, d * x, 0.0)
    mean_d, mean_dx = total(plain) / COUNT, total(along) / COUNT
    for e0 in range(0, COUNT, BLOCK):
        e = e0 + tl.arange(0, BLOCK)
        at, column = start + e // WIDTH * STRIDE + e % WIDTH, group * WIDTH + e % WIDTH
        w = _scale(models, weight, client, size, column, e < COUNT, HAS_WEIGHT, 1.0)
        number = tl.load(value + at, mask=e < COUNT, other=0.0)
        x = (number - mean) * inverse
        d = inverse * (tl.load(d_out + at, mask=e < COUNT, other=0.0) * w - mean_d - x * mean_dx)
        if ADD:
            d += tl.load(d_value + at, mask=e < COUNT, other=0.0)
        tl.store(d_value + at, gated(d, number, GATE), mask=e < COUNT)


@triton.jit
def _update(
    models, size, value, d_out, stats, lengths, weight, bias, sink,
    PIXELS: tl.constexpr, WIDTH: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr, STRIDE: tl.constexpr,
    BATCH: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, FORMULA: tl.constexpr, ADD: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The gradients of weight and bias for some columns, over all rows, handed to the sink."""
    COLUMNS: tl.constexpr = GROUPS * WIDTH
    tiles: tl.constexpr = (COLUMNS + BC - 1) // BC
    program = tl.program_id(0)
    client = (program // tiles).to(tl.int64)
    rows = tl.load(lengths + client) * ROWS
    if rows == 0:
        return
    column = program % tiles * BC + tl.arange(0, BC)
    of_client = stats + client * (BATCH * (ROWS // PIXELS) * GROUPS) * 2
    g_weight = tl.zeros((BC,), tl.float32)
    g_bias = tl.zeros((BC,), tl.float32)
    for r0 in range(0, rows, BR):
        r = r0 + tl.arange(0, BR)
        mask = (r < rows)[:, None] & (column < COLUMNS)[None, :]
        at = (client * (BATCH * ROWS) + r)[:, None] * STRIDE + column[None, :]
        unit = (r // PIXELS)[:, None] * GROUPS + (column // WIDTH)[None, :]
        d = tl.load(d_out + at, mask=mask, other=0.0)
        mean = tl.load(of_client + unit * 2, mask=mask, other=0.0)
        inverse = tl.load(of_client + unit * 2 + 1, mask=mask, other=0.0)
        x = (tl.load(value + at, mask=mask, other=0.0) - mean) * inverse
        g_weight += total(d * x, axis=0)
        g_bias += total(d, axis=0)
    if HAS_WEIGHT:
        _settle_bias(sink, weight, g_weight, models, size, client, column, COLUMNS, FORMULA, ADD)
    if HAS_BIAS:
        _settle_bias(sink, bias, g_bias, models, size, client, column, COLUMNS, FORMULA, ADD)


_NOWHERE = Place(0)


def forward(n: Norm, batch: int, x: Tensor, value: Tensor, out: Tensor, stats: Tensor, lengths: Tensor) -> None:
    """`out` = curve(normalised value * weight + bias); `stats` (clients, units, 2) keeps mean and inverse deviation."""
    args = (x, value, out, stats, lengths, n.weight or _NOWHERE, n.bias or _NOWHERE, x.stride(0), n.eps)
    launch(_forward, len(x) * n.units(batch), x, *args, CURVE=n.curve, BLOCK=_block(n), **_sizes(n, batch))


def input_gradient(
    n: Norm, batch: int, x: Tensor, value: Tensor, d_value: Tensor, d_out: Tensor, stats: Tensor, lengths: Tensor,
    gate: int = 0, add: bool = False,
) -> None:  # fmt: skip
    """The gradient of the value, added to what is there with `add`, then through the curve that made it."""
    args = (x, value, d_value, d_out, stats, lengths, n.weight or _NOWHERE, x.stride(0))
    constants = {"GATE": gate, "ADD": add, "BLOCK": _block(n), **_sizes(n, batch)}
    launch(_input_gradient, len(x) * n.units(batch), x, *args, **constants)


def update(
    n: Norm, batch: int, x: Tensor, value: Tensor, d_out: Tensor, stats: Tensor, lengths: Tensor, sink: Sink,
    rule: Rule, add: bool = False,
) -> None:  # fmt: skip
    """The gradients of weight and bias go to the sink; `add`: to what is there."""
    columns = n.groups * n.width
    args = (x, x.stride(0), value, d_out, stats, lengths, n.weight or _NOWHERE, n.bias or _NOWHERE, sink)
    tile = {"BR": 32, "BC": 32}
    launch(_update, len(x) * -(-columns // 32), x, *args, ADD=add, **rule.constants, **tile, **_sizes(n, batch))
