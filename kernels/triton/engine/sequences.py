"""Tokens and time: embeddings, and the recurrence of an LSTM.

An LSTM's products with its inputs are those of a dense layer over all time steps at once; here is what must go step by
step: one launch per time step, in which a program has a tile of hidden units and a tile of examples.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from ...layers import Embedding, Recurrence
from ..compiled import device
from ..launch import launch
from .curves import sigmoid, tanh
from .products import PRECISION
from .rule import Rule, Sink, settle

_BLOCK = 1024
_WORDS, _COLUMNS, _ROWS = 64, 32, 32  # the tile of an embedding's update
_HIDDEN = 32  # the tile of a recurrence, and how much of a sum is read at once: four products leave less room than one
_DEPTH, _DEPTH_BACK = 16, 32


# ---- embeddings -----------------------------------------------------------------------------------------------------


@triton.jit
def _embed(
    models, tokens, out, lengths, weight, size, CHANNELS: tl.constexpr, ROWS: tl.constexpr, OUT: tl.constexpr,
    CAPACITY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    blocks: tl.constexpr = (CAPACITY * CHANNELS + BLOCK - 1) // BLOCK
    program = tl.program_id(0)
    client = (program // blocks).to(tl.int64)
    element = program % blocks * BLOCK + tl.arange(0, BLOCK)
    row, column = element // CHANNELS, element % CHANNELS
    mask = row < tl.load(lengths + client) * ROWS
    token = tl.load(tokens + client * CAPACITY + row, mask=mask, other=0).to(tl.int64)
    number = tl.load(models + client * size + weight.offset + token * CHANNELS + column, mask=mask, other=0.0)
    tl.store(out + (client * CAPACITY + row) * OUT + column, number, mask=mask)


@triton.jit
def _update_table(
    models, size, tokens, d_out, lengths, weight, sink,
    WORDS: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, OUT: tl.constexpr, CAPACITY: tl.constexpr,
    PADDING: tl.constexpr, FORMULA: tl.constexpr, ADD: tl.constexpr, BV: tl.constexpr, BC: tl.constexpr,
    BR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of a tile of the table: a product with the rows' ones and zeros, so that sums have a fixed order."""
    tiles_v: tl.constexpr = (WORDS + BV - 1) // BV
    tiles_c: tl.constexpr = (CHANNELS + BC - 1) // BC
    program = tl.program_id(0)
    client = (program // (tiles_v * tiles_c)).to(tl.int64)
    rows = tl.load(lengths + client) * ROWS
    if rows == 0:
        return
    word = (program // tiles_c) % tiles_v * BV + tl.arange(0, BV)
    column = program % tiles_c * BC + tl.arange(0, BC)
    g = tl.zeros((BV, BC), tl.float32)
    for r0 in range(0, rows, BR):
        r = r0 + tl.arange(0, BR)
        token = tl.load(tokens + client * CAPACITY + r, mask=r < rows, other=-1)
        token = tl.where(token == PADDING, -1, token)
        is_word = (word[:, None] == token[None, :]).to(tl.float32)
        at = (client * CAPACITY + r)[:, None] * OUT + column[None, :]
        d = tl.load(d_out + at, mask=(r < rows)[:, None] & (column < CHANNELS)[None, :], other=0.0)
        g = tl.dot(is_word, d, g, input_precision=PRECISION)
    at = client * size + weight.offset + word[:, None].to(tl.int64) * CHANNELS + column[None, :]
    start = tl.load(models + at, mask=(word < WORDS)[:, None] & (column < CHANNELS)[None, :], other=0.0)
    settle(
        sink,
        sink.coef,
        weight,
        g,
        start,
        client,
        word,
        word < WORDS,
        column,
        column < CHANNELS,
        CHANNELS,
        FORMULA,
        ADD,
        False,
    )


def embed(e: Embedding, batch: int, x: Tensor, tokens: Tensor, out: Tensor, lengths: Tensor) -> None:
    """`out` = the rows of the table for tokens (clients, batch * rows) int32."""
    sizes = {"CHANNELS": e.channels, "ROWS": e.rows, "OUT": e.out_stride, "CAPACITY": batch * e.rows, "BLOCK": _BLOCK}
    programs = len(x) * -(-batch * e.rows * e.channels // _BLOCK)
    launch(_embed, programs, x, x, tokens, out, lengths, e.weight, x.stride(0), **sizes)


def update_table(
    e: Embedding, batch: int, x: Tensor, tokens: Tensor, d_out: Tensor, lengths: Tensor, sink: Sink, rule: Rule,
    add: bool = False,
) -> None:  # fmt: skip
    """The gradient of the table goes to the sink; `add`: to what is there."""
    sizes = {"WORDS": e.words, "CHANNELS": e.channels, "ROWS": e.rows, "OUT": e.out_stride, "CAPACITY": batch * e.rows}
    tile: dict[str, Any] = {"BV": _WORDS, "BC": _COLUMNS, "BR": _ROWS, "PRECISION": PRECISION, "PADDING": e.padding}
    programs = len(x) * -(-e.words // _WORDS) * -(-e.channels // _COLUMNS)
    args = (x, x.stride(0), tokens, d_out, lengths, e.weight, sink)
    launch(_update_table, programs, x, *args, stages=1, ADD=add, **rule.constants, **sizes, **tile)


# ---- recurrence -----------------------------------------------------------------------------------------------------


@device
def _tile(lengths, batch_tiles: tl.constexpr, hidden_tiles: tl.constexpr, BH: tl.constexpr, BB: tl.constexpr):
    """This program's client, hidden units, examples; how many examples there are."""
    program = tl.program_id(0)
    client = (program // (batch_tiles * hidden_tiles)).to(tl.int64)
    h = program % hidden_tiles * BH + tl.arange(0, BH)
    b = (program // hidden_tiles) % batch_tiles * BB + tl.arange(0, BB)
    return client, h, b, tl.load(lengths + client)


@triton.jit
def _cell(
    models, gates, cells, out, previous, lengths, weight, bias, size, t,
    H: tl.constexpr, T: tl.constexpr, GATES: tl.constexpr, OUT: tl.constexpr, BATCH: tl.constexpr,
    HAS_BIAS: tl.constexpr, BH: tl.constexpr, BK: tl.constexpr, BB: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Time step t: `gates` hold what the inputs give, and afterwards the gates themselves."""
    client, h, b, examples = _tile(lengths, (BATCH + BB - 1) // BB, (H + BH - 1) // BH, BH, BB)
    mask = (h < H)[:, None] & (b < examples)[None, :]
    row = client * (BATCH * T) + b * T + t
    zi = tl.zeros((BH, BB), tl.float32)
    zf = tl.zeros((BH, BB), tl.float32)
    zg = tl.zeros((BH, BB), tl.float32)
    zo = tl.zeros((BH, BB), tl.float32)
    if t > 0:
        w = models + client * size + weight.offset
        for k0 in range(0, H, BK):
            k = k0 + tl.arange(0, BK)
            inside = (h < H)[:, None] & (k < H)[None, :]
            at = h[:, None] * H + k[None, :]
            known = (k < H)[:, None] & (b < examples)[None, :]
            last = tl.load(out + (row - 1)[None, :] * OUT + k[:, None], mask=known, other=0.0)
            zi = tl.dot(tl.load(w + at, mask=inside, other=0.0), last, zi, input_precision=PRECISION)
            zf = tl.dot(tl.load(w + H * H + at, mask=inside, other=0.0), last, zf, input_precision=PRECISION)
            zg = tl.dot(tl.load(w + 2 * H * H + at, mask=inside, other=0.0), last, zg, input_precision=PRECISION)
            zo = tl.dot(tl.load(w + 3 * H * H + at, mask=inside, other=0.0), last, zo, input_precision=PRECISION)
    if HAS_BIAS:
        own = models + client * size + bias.offset + h
        zi += tl.load(own, mask=h < H, other=0.0)[:, None]
        zf += tl.load(own + H, mask=h < H, other=0.0)[:, None]
        zg += tl.load(own + 2 * H, mask=h < H, other=0.0)[:, None]
        zo += tl.load(own + 3 * H, mask=h < H, other=0.0)[:, None]
    gate = gates + row[None, :] * GATES + h[:, None]
    i = sigmoid(zi + tl.load(gate, mask=mask, other=0.0))
    f = sigmoid(zf + tl.load(gate + H, mask=mask, other=0.0))
    g = tanh(zg + tl.load(gate + 2 * H, mask=mask, other=0.0))
    o = sigmoid(zo + tl.load(gate + 3 * H, mask=mask, other=0.0))
    earlier = (h < H)[:, None] & ((b < examples) & (b * 0 + t > 0))[None, :]
    cell = f * tl.load(cells + (row - 1)[None, :] * H + h[:, None], mask=earlier, other=0.0) + i * g
    before = tl.load(out + (row - 1)[None, :] * OUT + h[:, None], mask=earlier, other=0.0)
    tl.store(gate, i, mask=mask)
    tl.store(gate + H, f, mask=mask)
    tl.store(gate + 2 * H, g, mask=mask)
    tl.store(gate + 3 * H, o, mask=mask)
    tl.store(cells + row[None, :] * H + h[:, None], cell, mask=mask)
    tl.store(previous + row[None, :] * OUT + h[:, None], before, mask=mask)
    tl.store(out + row[None, :] * OUT + h[:, None], o * tanh(cell), mask=mask)


@triton.jit
def _cell_gradient(
    models, gates, d_gates, cells, carry, d_out, lengths, weight, size, t,
    H: tl.constexpr, T: tl.constexpr, GATES: tl.constexpr, OUT: tl.constexpr, BATCH: tl.constexpr, BH: tl.constexpr,
    BK: tl.constexpr, BB: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Time step t on the way back; `carry` (clients, BATCH, H) is the gradient of the cell that comes from later."""
    client, h, b, examples = _tile(lengths, (BATCH + BB - 1) // BB, (H + BH - 1) // BH, BH, BB)
    mask = (h < H)[:, None] & (b < examples)[None, :]
    row = client * (BATCH * T) + b * T + t
    dh = tl.load(d_out + row[None, :] * OUT + h[:, None], mask=mask, other=0.0)
    later = (h < H)[:, None] & ((b < examples) & (b * 0 + t < T - 1))[None, :]
    earlier = (h < H)[:, None] & ((b < examples) & (b * 0 + t > 0))[None, :]
    if t < T - 1:
        for k0 in range(0, 4 * H, BK):
            k = k0 + tl.arange(0, BK)
            at = client * size + weight.offset + k[None, :] * H + h[:, None]
            w = tl.load(models + at, mask=(h < H)[:, None] & (k < 4 * H)[None, :], other=0.0)
            known = (k < 4 * H)[:, None] & (b < examples)[None, :]
            d = tl.load(d_gates + (row + 1)[None, :] * GATES + k[:, None], mask=known, other=0.0)
            dh = tl.dot(w, d, dh, input_precision=PRECISION)
    gate = gates + row[None, :] * GATES + h[:, None]
    i, f = tl.load(gate, mask=mask, other=0.0), tl.load(gate + H, mask=mask, other=0.0)
    g, o = tl.load(gate + 2 * H, mask=mask, other=0.0), tl.load(gate + 3 * H, mask=mask, other=0.0)
    bent = tanh(tl.load(cells + row[None, :] * H + h[:, None], mask=mask, other=0.0))
    own = client * (BATCH * H) + b[None, :] * H + h[:, None]
    dc = dh * o * (1.0 - bent * bent) + tl.load(carry + own, mask=later, other=0.0)
    last = tl.load(cells + (row - 1)[None, :] * H + h[:, None], mask=earlier, other=0.0)
    target = d_gates + row[None, :] * GATES + h[:, None]
    tl.store(target, dc * g * (i * (1.0 - i)), mask=mask)
    tl.store(target + H, dc * last * (f * (1.0 - f)), mask=mask)
    tl.store(target + 2 * H, dc * i * (1.0 - g * g), mask=mask)
    tl.store(target + 3 * H, dh * bent * (o * (1.0 - o)), mask=mask)
    tl.store(carry + own, dc * f, mask=mask)


def _examples(batch: int) -> int:
    return 16 if batch <= 16 else 32


def recur(
    r: Recurrence, batch: int, x: Tensor, gates: Tensor, cells: Tensor, out: Tensor, previous: Tensor, lengths: Tensor
) -> None:
    """All time steps. `gates` (clients, batch * length, gate stride) hold the inputs' part, then the gates; `cells`
    (clients, batch * length, hidden); `out` and `previous`, the output one step earlier."""
    tile: dict[str, Any] = {"BH": _HIDDEN, "BK": _DEPTH, "BB": _examples(batch), "PRECISION": PRECISION}
    sizes = {"H": r.hidden, "T": r.length, "GATES": r.gate_stride, "OUT": r.out_stride, "BATCH": batch}
    programs = len(x) * -(-r.hidden // _HIDDEN) * -(-batch // _examples(batch))
    for t in range(r.length):
        args = (x, gates, cells, out, previous, lengths, r.weight, r.bias or r.weight, x.stride(0), t)
        launch(_cell, programs, x, *args, stages=2, HAS_BIAS=r.bias is not None, **sizes, **tile)


def recur_back(
    r: Recurrence, batch: int, x: Tensor, gates: Tensor, d_gates: Tensor, cells: Tensor, carry: Tensor, d_out: Tensor,
    lengths: Tensor,
) -> None:  # fmt: skip
    """All time steps, the last first: `d_gates`, the gradients of what went into the gates."""
    tile: dict[str, Any] = {"BH": _HIDDEN, "BK": _DEPTH_BACK, "BB": _examples(batch), "PRECISION": PRECISION}
    sizes = {"H": r.hidden, "T": r.length, "GATES": r.gate_stride, "OUT": r.out_stride, "BATCH": batch}
    programs = len(x) * -(-r.hidden // _HIDDEN) * -(-batch // _examples(batch))
    for t in reversed(range(r.length)):
        args = (x, gates, d_gates, cells, carry, d_out, lengths, r.weight, x.stride(0), t)
        launch(_cell_gradient, programs, x, *args, stages=2, **sizes, **tile)
