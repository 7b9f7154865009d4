"""Dense layers of many clients: forward, input gradients, and updates by the rule, every client with its own weights.

Weights W (outputs N, inputs K) are the left operand, so that tensor cores are filled at small batches: the tile of a
product is outputs (or inputs) x rows of the batch. A value is (clients, rows, stride) float32 with `rows` for a full
batch; a client that has fewer examples (`lengths`) uses the first ones, and none at all where it has finished.

Tiles depend on the layer alone and sums run in a fixed order, so a client's bits do not depend on its neighbours.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from ...layers import Dense
from ..compiled import device, total
from ..launch import launch
from .curves import activated, gated
from .rule import Rule, Sink, settle

PRECISION = "tf32x3"  # error like float32's; on cards' tensor cores


class Tile(NamedTuple):
    """Outputs, inputs and rows of one tile, and what runs it."""

    n: int
    k: int
    r: int
    warps: int
    stages: int


def tile_of(layer: Dense, batch: int) -> Tile:
    """The tile that ships for a layer, at batches of so many examples."""
    rows = batch * layer.rows
    return Tile(n=64, k=32, r=32 if rows <= 32 else 64, warps=4, stages=2)


def _sizes(m: Dense, tile: Tile, batch: int) -> dict[str, Any]:
    return {
        "K": m.inputs, "N": m.outputs, "ROWS": m.rows, "CAPACITY": batch * m.rows, "IN": m.in_stride,
        "OUT": m.out_stride, "HAS_BIAS": m.bias is not None, "BN": tile.n, "BK": tile.k, "BR": tile.r,
        "PRECISION": PRECISION,
    }  # fmt: skip


def backward_tile(layer: Dense, batch: int) -> Tile:
    """The tile of `backward`, which holds two products at once."""
    return Tile(n=32, k=64, r=tile_of(layer, batch).r, warps=8, stages=2)


def _launch(kernel: Any, programs: int, tile: Tile, on: Tensor, *args: Any, **constants: Any) -> None:
    launch(kernel, programs, on, *args, warps=tile.warps, stages=tile.stages, **constants)


@device
def _weights(x, place, client, size, n, k, N: tl.constexpr, K: tl.constexpr):
    """A tile of W, zero beyond its edges."""
    at = client * size + place.offset + n[:, None] * K + k[None, :]
    return tl.load(x + at, mask=(n < N)[:, None] & (k < K)[None, :], other=0.0)


@device
def _rows_first(value, client, r, rows, c, WIDTH: tl.constexpr, STRIDE: tl.constexpr, CAPACITY: tl.constexpr):
    """A tile (rows, columns) of a value."""
    at = client * (CAPACITY * STRIDE) + r[:, None] * STRIDE + c[None, :]
    return tl.load(value + at, mask=(r < rows)[:, None] & (c < WIDTH)[None, :], other=0.0)


@device
def _columns_first(value, client, r, rows, c, WIDTH: tl.constexpr, STRIDE: tl.constexpr, CAPACITY: tl.constexpr):
    """A tile (columns, rows) of a value."""
    at = client * (CAPACITY * STRIDE) + r[None, :] * STRIDE + c[:, None]
    return tl.load(value + at, mask=(r < rows)[None, :] & (c < WIDTH)[:, None], other=0.0)


@device
def _finish_forward(
    acc, x, bias, out, client, size, n, r, rows, N: tl.constexpr, OUT: tl.constexpr, CAPACITY: tl.constexpr,
    HAS_BIAS: tl.constexpr, CURVE: tl.constexpr,
):  # fmt: skip
    """Bias, curve and store of a tile (outputs, rows)."""
    if HAS_BIAS:
        acc += tl.load(x + client * size + bias.offset + n, mask=n < N, other=0.0)[:, None]
    at = client * (CAPACITY * OUT) + r[None, :] * OUT + n[:, None]
    tl.store(out + at, activated(acc, CURVE), mask=(n < N)[:, None] & (r < rows)[None, :])


@triton.jit
def _forward(
    x, value, out, lengths, weight, bias, size,
    K: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr, CAPACITY: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
    HAS_BIAS: tl.constexpr, CURVE: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    tiles_n: tl.constexpr = (N + BN - 1) // BN
    tiles_r: tl.constexpr = (CAPACITY + BR - 1) // BR
    program = tl.program_id(0)
    client = (program // (tiles_n * tiles_r)).to(tl.int64)
    rows = tl.load(lengths + client) * ROWS
    first_row = (program // tiles_n) % tiles_r * BR
    if first_row >= rows:
        return
    n = program % tiles_n * BN + tl.arange(0, BN)
    r = first_row + tl.arange(0, BR)
    acc = tl.zeros((BN, BR), tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        w = _weights(x, weight, client, size, n, k, N, K)
        a = _columns_first(value, client, r, rows, k, K, IN, CAPACITY)
        acc = tl.dot(w, a, acc, input_precision=PRECISION)
    _finish_forward(acc, x, bias, out, client, size, n, r, rows, N, OUT, CAPACITY, HAS_BIAS, CURVE)


@triton.jit
def _input_gradient(
    x, value, d_value, d_out, lengths, weight, size,
    K: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr, CAPACITY: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
    HAS_BIAS: tl.constexpr, GATE: tl.constexpr, ADD_INPUT: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tiles_k: tl.constexpr = (K + BN - 1) // BN
    tiles_r: tl.constexpr = (CAPACITY + BR - 1) // BR
    program = tl.program_id(0)
    client = (program // (tiles_k * tiles_r)).to(tl.int64)
    rows = tl.load(lengths + client) * ROWS
    first_row = (program // tiles_k) % tiles_r * BR
    if first_row >= rows:
        return
    k = program % tiles_k * BN + tl.arange(0, BN)
    r = first_row + tl.arange(0, BR)
    acc = tl.zeros((BN, BR), tl.float32)
    for n0 in range(0, N, BK):
        n = n0 + tl.arange(0, BK)
        w = _weights(x, weight, client, size, n, k, N, K)
        dz = _columns_first(d_out, client, r, rows, n, N, OUT, CAPACITY)
        acc = tl.dot(tl.trans(w), dz, acc, input_precision=PRECISION)
    _finish_input_gradient(acc, value, d_value, client, r, rows, k, K, IN, CAPACITY, GATE, ADD_INPUT)


@device
def _finish_input_gradient(
    acc, value, d_value, client, r, rows, k, K: tl.constexpr, IN: tl.constexpr, CAPACITY: tl.constexpr,
    GATE: tl.constexpr, ADD_INPUT: tl.constexpr,
):  # fmt: skip
    """Adds to what is there already, passes through the curve that made the input, and stores a tile (inputs, rows)."""
    at = client * (CAPACITY * IN) + r[None, :] * IN + k[:, None]
    mask = (k < K)[:, None] & (r < rows)[None, :]
    if ADD_INPUT:
        acc += tl.load(d_value + at, mask=mask, other=0.0)
    if GATE != 0:
        acc = gated(acc, tl.load(value + at, mask=mask, other=0.0), GATE)
    tl.store(d_value + at, acc, mask=mask)


@device
def _settle_bias(sink, bias, g, x, size, client, n, N: tl.constexpr, FORMULA: tl.constexpr, ADD: tl.constexpr):
    """A tile of the bias's gradient, as a matrix of one row."""
    row = tl.arange(0, 1)
    start = tl.load(x + client * size + bias.offset + n, mask=n < N, other=0.0)[None, :]
    settle(sink, sink.coef, bias, g[None, :], start, client, row, row < 1, n, n < N, N, FORMULA, ADD, True)


@triton.jit
def _update(
    x, size, value, d_out, lengths, weight, bias, sink,
    K: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr, CAPACITY: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
    HAS_BIAS: tl.constexpr, FORMULA: tl.constexpr, ADD: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of a tile of W (and of the bias, in the first column of tiles), handed to the sink."""
    tiles_n: tl.constexpr = (N + BN - 1) // BN
    tiles_k: tl.constexpr = (K + BK - 1) // BK
    program = tl.program_id(0)
    client = (program // (tiles_n * tiles_k)).to(tl.int64)
    rows = tl.load(lengths + client) * ROWS
    if rows == 0:
        return
    tile_k = program % tiles_k
    n = (program // tiles_k) % tiles_n * BN + tl.arange(0, BN)
    k = tile_k * BK + tl.arange(0, BK)
    g = tl.zeros((BN, BK), tl.float32)
    g_bias = tl.zeros((BN,), tl.float32)
    for r0 in range(0, rows, BR):
        r = r0 + tl.arange(0, BR)
        dz = _columns_first(d_out, client, r, rows, n, N, OUT, CAPACITY)
        g = tl.dot(dz, _rows_first(value, client, r, rows, k, K, IN, CAPACITY), g, input_precision=PRECISION)
        g_bias += total(dz, axis=1)
    start = _weights(x, weight, client, size, n, k, N, K)
    settle(sink, sink.coef, weight, g, start, client, n, n < N, k, k < K, K, FORMULA, ADD, False)
    if HAS_BIAS:
        if tile_k == 0:
            _settle_bias(sink, bias, g_bias, x, size, client, n, N, FORMULA, ADD)


@triton.jit
def _backward(
    x, size, value, d_value, d_out, lengths, weight, bias, sink,
    K: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr, CAPACITY: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
    HAS_BIAS: tl.constexpr, GATE: tl.constexpr, ADD_INPUT: tl.constexpr, FORMULA: tl.constexpr, ADD: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Input gradient and update in one pass over W, which is read once: for batches that are a single tile of rows."""
    tiles_k: tl.constexpr = (K + BK - 1) // BK
    program = tl.program_id(0)
    client = (program // tiles_k).to(tl.int64)
    rows = tl.load(lengths + client) * ROWS
    if rows == 0:
        return
    tile_k = program % tiles_k
    k = tile_k * BK + tl.arange(0, BK)
    r = tl.arange(0, BR)
    a = _rows_first(value, client, r, rows, k, K, IN, CAPACITY)
    da = tl.zeros((BK, BR), tl.float32)
    for n0 in range(0, N, BN):
        n = n0 + tl.arange(0, BN)
        w = _weights(x, weight, client, size, n, k, N, K)
        dz = _columns_first(d_out, client, r, rows, n, N, OUT, CAPACITY)
        da = tl.dot(tl.trans(w), dz, da, input_precision=PRECISION)
        g = tl.dot(dz, a, input_precision=PRECISION)
        settle(sink, sink.coef, weight, g, w, client, n, n < N, k, k < K, K, FORMULA, ADD, False)
        if HAS_BIAS:
            if tile_k == 0:
                _settle_bias(sink, bias, total(dz, axis=1), x, size, client, n, N, FORMULA, ADD)
    _finish_input_gradient(da, value, d_value, client, r, rows, k, K, IN, CAPACITY, GATE, ADD_INPUT)


@triton.jit
def _update_forward(
    x, size, value, before, d_out, out, lengths, lengths_before, weight, bias, sink,
    K: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr, CAPACITY: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
    HAS_BIAS: tl.constexpr, CURVE: tl.constexpr, FORMULA: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, BR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The last step's update, where this step's forward pass reads W: one read and one write of it for both.

    `before` and `d_out` are input and output gradient of the last step, `lengths_before` its batches (0: no update).
    """
    tiles_n: tl.constexpr = (N + BN - 1) // BN
    program = tl.program_id(0)
    client = (program // tiles_n).to(tl.int64)
    rows, rows_before = tl.load(lengths + client) * ROWS, tl.load(lengths_before + client) * ROWS
    if rows + rows_before == 0:
        return
    n = program % tiles_n * BN + tl.arange(0, BN)
    r = tl.arange(0, BR)
    dz = _columns_first(d_out, client, r, rows_before, n, N, OUT, CAPACITY)
    acc = tl.zeros((BN, BR), tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        w = _weights(x, weight, client, size, n, k, N, K)
        if rows_before > 0:
            g = tl.dot(dz, _rows_first(before, client, r, rows_before, k, K, IN, CAPACITY), input_precision=PRECISION)
            w = settle(sink, sink.coef, weight, g, w, client, n, n < N, k, k < K, K, FORMULA, False, False)
            w = tl.where((n < N)[:, None] & (k < K)[None, :], w, 0.0)
        a = _columns_first(value, client, r, rows, k, K, IN, CAPACITY)
        acc = tl.dot(w, a, acc, input_precision=PRECISION)
    if HAS_BIAS:
        b = tl.load(x + client * size + bias.offset + n, mask=n < N, other=0.0)
        if rows_before > 0:
            row = tl.arange(0, 1)
            moved = settle(
                sink,
                sink.coef,
                bias,
                total(dz, axis=1)[None, :],
                b[None, :],
                client,
                row,
                row < 1,
                n,
                n < N,
                N,
                FORMULA,
                False,
                True,
            )
            b = total(moved, axis=0)
        acc += b[:, None]
    at = client * (CAPACITY * OUT) + r[None, :] * OUT + n[:, None]
    tl.store(out + at, activated(acc, CURVE), mask=(n < N)[:, None] & (r < rows)[None, :])


# ---- launches -------------------------------------------------------------------------------------------------------


def forward(m: Dense, batch: int, x: Tensor, value: Tensor, out: Tensor, lengths: Tensor) -> None:
    """`out` = curve(W value + bias), for the models x (clients, d)."""
    tile = tile_of(m, batch)._replace(warps=8)
    programs = len(x) * -(-m.outputs // tile.n) * -(-batch * m.rows // tile.r)
    args = (x, value, out, lengths, m.weight, m.bias or m.weight, x.stride(0))
    _launch(_forward, programs, tile, x, *args, CURVE=m.curve, **_sizes(m, tile, batch))


def input_gradient(
    m: Dense, batch: int, x: Tensor, value: Tensor, d_value: Tensor, d_out: Tensor, lengths: Tensor,
    gate: int = 0, add: bool = False,
) -> None:  # fmt: skip
    """`d_value` = W^T d_out, added to what is there with `add`, then through the curve `gate` that made the value."""
    tile = tile_of(m, batch)
    programs = len(x) * -(-m.inputs // tile.n) * -(-batch * m.rows // tile.r)
    args = (x, value, d_value, d_out, lengths, m.weight, x.stride(0))
    _launch(_input_gradient, programs, tile, x, *args, GATE=gate, ADD_INPUT=add, **_sizes(m, tile, batch))


def update(
    m: Dense, batch: int, x: Tensor, value: Tensor, d_out: Tensor, lengths: Tensor, sink: Sink, rule: Rule,
    add: bool = False,
) -> None:  # fmt: skip
    """The gradient of weight and bias goes to the sink; `add`: to what is there."""
    tile = tile_of(m, batch)
    programs = len(x) * -(-m.outputs // tile.n) * -(-m.inputs // tile.k)
    args = (x, x.stride(0), value, d_out, lengths, m.weight, m.bias or m.weight, sink)
    _launch(_update, programs, tile, x, *args, ADD=add, **rule.constants, **_sizes(m, tile, batch))


def one_tile(m: Dense, batch: int) -> bool:
    """Whether a batch is a single tile of rows, as `backward` and `update_forward` want it."""
    return batch * m.rows <= tile_of(m, batch).r


def backward(
    m: Dense, batch: int, x: Tensor, value: Tensor, d_value: Tensor, d_out: Tensor, lengths: Tensor, sink: Sink,
    rule: Rule, gate: int = 0, add_input: bool = False, add: bool = False,
) -> None:  # fmt: skip
    """`input_gradient` and `update` in one pass over the weights."""
    tile = backward_tile(m, batch)
    if sink.m is not None and sink.v is not None:
        tile = tile._replace(k=32)  # two moments more of the tile in registers
    args = (x, x.stride(0), value, d_value, d_out, lengths, m.weight, m.bias or m.weight, sink)
    constants = {"GATE": gate, "ADD_INPUT": add_input, "ADD": add, **rule.constants, **_sizes(m, tile, batch)}
    _launch(_backward, len(x) * -(-m.inputs // tile.k), tile, x, *args, **constants)


def update_forward(
    m: Dense, batch: int, x: Tensor, value: Tensor, before: Tensor, d_out: Tensor, out: Tensor, lengths: Tensor,
    lengths_before: Tensor, sink: Sink, rule: Rule,
) -> None:  # fmt: skip
    """`update` with the last step's input and output gradient, then `forward` on this step's, in one pass over W."""
    tile = tile_of(m, batch)
    if sink.m is not None and sink.v is not None:
        tile = tile._replace(warps=8)  # two moments more of the tile in registers, which four warps do not have
    args = (x, x.stride(0), value, before, d_out, out, lengths, lengths_before, m.weight, m.bias or m.weight, sink)
    constants = {"CURVE": m.curve, **rule.constants, **_sizes(m, tile, batch)}
    _launch(_update_forward, len(x) * -(-m.outputs // tile.n), tile, x, *args, **constants)
