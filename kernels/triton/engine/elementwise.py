"""Layers that work number by number: curves that could not be fused, sums, dropout, changes of a value's order.

A value is (clients, rows, stride) float32, images with their channels last. Kernels see it element by element: `row`
and `col` of a client's value, of which only rows of real examples are touched.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from ...layers import Shape
from ..compiled import device, philox
from ..launch import launch
from .curves import activated, gated, sloped

_BLOCK = 1024


@device
def _elements(lengths, ROWS: tl.constexpr, CHANNELS: tl.constexpr, CAPACITY: tl.constexpr, BLOCK: tl.constexpr):
    """This program's client; row and column of its elements; which of them exist."""
    blocks: tl.constexpr = (CAPACITY * CHANNELS + BLOCK - 1) // BLOCK
    program = tl.program_id(0)
    client = (program // blocks).to(tl.int64)
    element = program % blocks * BLOCK + tl.arange(0, BLOCK)
    row = element // CHANNELS
    return client, row, element % CHANNELS, row < tl.load(lengths + client) * ROWS


@device
def _store_gradient(
    d_value, value, at, d, mask, GATE: tl.constexpr, ADD: tl.constexpr
):  # fmt: skip
    """A gradient, added to what is there with ADD, then through the curve that made the value."""
    if ADD:
        d += tl.load(d_value + at, mask=mask, other=0.0)
    if GATE != 0:
        d = gated(d, tl.load(value + at, mask=mask, other=0.0), GATE)
    tl.store(d_value + at, d, mask=mask)


@triton.jit
def _curve(
    value, out, lengths, ROWS: tl.constexpr, CHANNELS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
    CAPACITY: tl.constexpr, CURVE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    client, row, col, mask = _elements(lengths, ROWS, CHANNELS, CAPACITY, BLOCK)
    x = tl.load(value + (client * CAPACITY + row) * IN + col, mask=mask, other=0.0)
    tl.store(out + (client * CAPACITY + row) * OUT + col, activated(x, CURVE), mask=mask)


@triton.jit
def _curve_gradient(
    value, d_value, d_out, lengths, ROWS: tl.constexpr, CHANNELS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
    CAPACITY: tl.constexpr, CURVE: tl.constexpr, GATE: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    client, row, col, mask = _elements(lengths, ROWS, CHANNELS, CAPACITY, BLOCK)
    at = (client * CAPACITY + row) * IN + col
    d = tl.load(d_out + (client * CAPACITY + row) * OUT + col, mask=mask, other=0.0)
    if CURVE != 0:
        d = sloped(d, tl.load(value + at, mask=mask, other=0.0), CURVE)
    _store_gradient(d_value, value, at, d, mask, GATE, ADD)


@triton.jit
def _sum(
    a, b, out, lengths, ROWS: tl.constexpr, CHANNELS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
    CAPACITY: tl.constexpr, CURVE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    client, row, col, mask = _elements(lengths, ROWS, CHANNELS, CAPACITY, BLOCK)
    at = (client * CAPACITY + row) * IN + col
    x = tl.load(a + at, mask=mask, other=0.0) + tl.load(b + at, mask=mask, other=0.0)
    tl.store(out + (client * CAPACITY + row) * OUT + col, activated(x, CURVE), mask=mask)


@device
def _torch_order(row, col, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    """Where torch has the element among those of a batch: an image's channels come before its pixels."""
    return (row // ROWS) * (ROWS * CHANNELS) + col * ROWS + row % ROWS


@device
def _uniform(at, client_id, step, round, key0, key1):
    """Number `at` of a client's stream: word `at % 4` of block `at // 4`."""
    block = (at // 4).to(tl.uint32)
    zero = block ^ block
    w0, w1, w2, w3 = philox.philox(
        block,
        zero + step.to(tl.uint32),
        zero + client_id.to(tl.uint32),
        zero + round.to(tl.uint32),
        key0.to(tl.uint32),
        key1.to(tl.uint32),
    )
    which = at % 4
    word = tl.where(which == 0, w0, tl.where(which == 1, w1, tl.where(which == 2, w2, w3)))
    return philox.uniform_of(word)


@triton.jit(do_not_specialize=["p", "scale", "key0", "key1"])
def _dropout(
    value, made, target, lengths, ids, clock, p, scale, key0: tl.int64, key1: tl.int64,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, CAPACITY: tl.constexpr,
    IMAGE: tl.constexpr, GATE: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`target` = `value` where numbers are >= p, scaled, else 0. The same both ways: masks are drawn again, not kept.

    On the way back `made` is the value whose gradient `target` is.
    """
    client, row, col, mask = _elements(lengths, ROWS, CHANNELS, CAPACITY, BLOCK)
    at = row * CHANNELS + col
    if IMAGE:
        at = _torch_order(row, col, ROWS, CHANNELS)
    u = _uniform(at, tl.load(ids + client), tl.load(clock), tl.load(clock + 1), key0, key1)
    x = tl.load(value + (client * CAPACITY + row) * IN + col, mask=mask, other=0.0)
    kept = x * tl.where(u >= p, scale, 0.0)
    _store_gradient(target, made, (client * CAPACITY + row) * OUT + col, kept, mask, GATE, ADD)


@triton.jit
def _reorder(
    value, made, target, lengths, ROWS: tl.constexpr, CHANNELS: tl.constexpr, IN: tl.constexpr, FLAT: tl.constexpr,
    CAPACITY: tl.constexpr, BACK: tl.constexpr, IMAGE: tl.constexpr, GATE: tl.constexpr, ADD: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Between an image (ROWS pixels of CHANNELS channels) or a sequence, and a vector in torch's order.

    BACK: from the vector to the other. `made` is the value whose gradient `target` is, where it is one.
    """
    client, row, col, mask = _elements(lengths, ROWS, CHANNELS, CAPACITY, BLOCK)
    in_rows = (client * CAPACITY + row) * IN + col
    place = (row % ROWS) * CHANNELS + col
    if IMAGE:
        place = col * ROWS + row % ROWS
    flat = (client * (CAPACITY // ROWS) + row // ROWS) * FLAT + place
    if BACK:
        _store_gradient(target, made, in_rows, tl.load(value + flat, mask=mask, other=0.0), mask, GATE, ADD)
    else:
        _store_gradient(target, made, flat, tl.load(value + in_rows, mask=mask, other=0.0), mask, GATE, ADD)


@triton.jit
def _select(
    value, made, target, lengths, index, ROWS: tl.constexpr, CHANNELS: tl.constexpr, IN: tl.constexpr,
    OUT: tl.constexpr, CAPACITY: tl.constexpr, BACK: tl.constexpr, GATE: tl.constexpr, ADD: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Row `index` of every example; back, its gradient there and 0 in all other rows."""
    client, row, col, mask = _elements(lengths, ROWS, CHANNELS, CAPACITY, BLOCK)
    many = (client * CAPACITY + row) * IN + col
    one = (client * (CAPACITY // ROWS) + row // ROWS) * OUT + col
    chosen = mask & (row % ROWS == index)
    if BACK:
        _store_gradient(target, made, many, tl.load(value + one, mask=chosen, other=0.0), mask, GATE, ADD)
    else:
        tl.store(target + one, tl.load(value + many, mask=chosen, other=0.0), mask=chosen)


# ---- launches -------------------------------------------------------------------------------------------------------


def _over(kernel: Any, lengths: Tensor, batch: int, rows: int, channels: int, *args: Any, **constants: Any) -> None:
    programs = len(lengths) * -(-batch * rows * channels // _BLOCK)
    sizes = {"ROWS": rows, "CHANNELS": channels, "CAPACITY": batch * rows, "BLOCK": _BLOCK}
    launch(kernel, programs, lengths, *args, **sizes, **constants)


def curve(kind: int, s: Shape, batch: int, value: Tensor, out: Tensor, lengths: Tensor) -> None:
    """`out` = curve(value)."""
    strides = {"IN": s.stride, "OUT": s.stride}
    _over(_curve, lengths, batch, s.rows, s.channels, value, out, lengths, CURVE=kind, **strides)


def curve_gradient(
    kind: int, s: Shape, batch: int, value: Tensor, d_value: Tensor, d_out: Tensor, lengths: Tensor, gate: int,
    add: bool,
) -> None:  # fmt: skip
    """The gradient of `value` from that of curve(value); kind 0: passed on as it is."""
    constants = {"IN": s.stride, "OUT": s.stride, "CURVE": kind, "GATE": gate, "ADD": add}
    _over(_curve_gradient, lengths, batch, s.rows, s.channels, value, d_value, d_out, lengths, **constants)


def add(kind: int, s: Shape, batch: int, a: Tensor, b: Tensor, out: Tensor, lengths: Tensor) -> None:
    """`out` = curve(a + b)."""
    strides = {"IN": s.stride, "OUT": s.stride}
    _over(_sum, lengths, batch, s.rows, s.channels, a, b, out, lengths, CURVE=kind, **strides)


class Masks(NamedTuple):
    """A dropout's random numbers: of clients `ids` (clients,) int64 at a `clock` (2,) int64, which is local step and
    round, both on the device."""

    ids: Tensor
    clock: Tensor
    key0: int
    key1: int
    p: float


def dropout(
    s: Shape, image: bool, batch: int, masks: Masks, value: Tensor, target: Tensor, lengths: Tensor,
    made: Tensor | None = None, gate: int = 0, add: bool = False,
) -> None:  # fmt: skip
    """Numbers of `value` that are kept, scaled; `value` and `target` are activations, or on the way back gradients."""
    scale = 1 / (1 - masks.p) if masks.p < 1 else 0.0
    stream = (masks.ids, masks.clock, masks.p, scale, masks.key0, masks.key1)
    constants = {"IN": s.stride, "OUT": s.stride, "IMAGE": image, "GATE": gate, "ADD": add}
    args = (value, target if made is None else made, target, lengths, *stream)
    _over(_dropout, lengths, batch, s.rows, s.channels, *args, **constants)


def reorder(
    s: Shape, flat_stride: int, image: bool, batch: int, value: Tensor, target: Tensor, lengths: Tensor, back: bool,
    made: Tensor | None = None, gate: int = 0, add: bool = False,
) -> None:  # fmt: skip
    """From a value of shape `s` to a vector in torch's order; with `back` from the vector to that value."""
    constants = {"IN": s.stride, "FLAT": flat_stride, "IMAGE": image, "BACK": back, "GATE": gate, "ADD": add}
    args = (value, target if made is None else made, target, lengths)
    _over(_reorder, lengths, batch, s.rows, s.channels, *args, **constants)


def select(
    s: Shape, out_stride: int, index: int, batch: int, value: Tensor, target: Tensor, lengths: Tensor, back: bool,
    made: Tensor | None = None, gate: int = 0, add: bool = False,
) -> None:  # fmt: skip
    """Row `index` of every example of a value of shape `s`; with `back`, the gradient of that value."""
    constants = {"IN": s.stride, "OUT": out_stride, "BACK": back, "GATE": gate, "ADD": add}
    args = (value, target if made is None else made, target, lengths, index)
    _over(_select, lengths, batch, s.rows, s.channels, *args, **constants)
