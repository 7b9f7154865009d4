"""Convolutions of many clients as implicit products: no patch of an image is ever copied.

Images have their channels last: a value is (clients, batch * pixels, stride). A weight is (kernel height, kernel width,
inputs, outputs), a matrix of `taps` = height * width * inputs rows and `outputs` columns. Forward, an output pixel is a
row of the product; back, an input pixel; for the weights, pixels are what is summed over.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from ...layers import Convolution
from ..compiled import device, total
from ..launch import launch
from .curves import activated, gated
from .products import PRECISION, _settle_bias
from .rule import Rule, Sink, settle


class Tile(NamedTuple):
    """Pixels (or taps), columns and depth of one tile, and what runs it."""

    m: int
    n: int
    k: int
    warps: int
    stages: int


def _columns(channels: int) -> int:
    return 16 if channels <= 16 else 32 if channels <= 32 else 64


def forward_tile(c: Convolution) -> Tile:
    return Tile(64, _columns(c.outputs), 16 if c.taps <= 16 else 32, 4, 2)


def input_tile(c: Convolution) -> Tile:
    return Tile(64, _columns(c.inputs), 32, 4, 2)


def update_tile(c: Convolution) -> Tile:
    rows = 32 if 32 < c.taps < 512 and c.taps % 64 else _columns(c.taps)  # a last tile half empty would cost as much
    return Tile(rows, _columns(c.outputs), 32, 4, 2)


def _sizes(c: Convolution, batch: int, tile: Tile) -> dict[str, Any]:
    pairs = {"KERNEL": c.kernel, "STEP": c.step, "PAD": c.pad}
    sizes = {f"{name}_{axis}": pair[i] for name, pair in pairs.items() for i, axis in enumerate("HW")}
    return sizes | {
        "CI": c.inputs, "CO": c.outputs, "H": c.image[0], "W": c.image[1], "OH": c.made[0], "OW": c.made[1],
        "BATCH": batch, "IN": c.in_stride, "OUT": c.out_stride, "HAS_BIAS": c.bias is not None, "POOL": c.pool,
        "BM": tile.m, "BN": tile.n, "BK": tile.k, "PRECISION": PRECISION,
    }  # fmt: skip


@device
def _input_at(
    example, y, x, tap, CI: tl.constexpr, H: tl.constexpr, W: tl.constexpr, KERNEL_W: tl.constexpr,
    STEP_H: tl.constexpr, STEP_W: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr, IN: tl.constexpr,
):  # fmt: skip
    """Where tap `tap` of output pixel (y, x) reads, and whether that lies inside the image."""
    spot, channel = tap // CI, tap % CI
    iy = y * STEP_H - PAD_H + spot // KERNEL_W
    ix = x * STEP_W - PAD_W + spot % KERNEL_W
    inside = (iy >= 0) & (iy < H) & (ix >= 0) & (ix < W)
    return ((example * H + iy) * W + ix) * IN + channel, inside


@triton.jit
def _forward(
    models, value, out, choice, lengths, weight, bias, size,
    CI: tl.constexpr, CO: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STEP_H: tl.constexpr, STEP_W: tl.constexpr, PAD_H: tl.constexpr,
    PAD_W: tl.constexpr, BATCH: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, HAS_BIAS: tl.constexpr,
    POOL: tl.constexpr, CURVE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """With POOL, the rows of a tile are windows of 2 x 2 pixels, one behind the other."""
    TAPS: tl.constexpr = KERNEL_H * KERNEL_W * CI
    PIXELS: tl.constexpr = (OH // 2) * (OW // 2) * 4 if POOL else OH * OW
    tiles_m: tl.constexpr = (BATCH * PIXELS + BM - 1) // BM
    tiles_n: tl.constexpr = (CO + BN - 1) // BN
    program = tl.program_id(0)
    client = (program // (tiles_m * tiles_n)).to(tl.int64)
    pixels = tl.load(lengths + client) * PIXELS
    first = (program // tiles_n) % tiles_m * BM
    if first >= pixels:
        return
    p = first + tl.arange(0, BM)
    n = program % tiles_n * BN + tl.arange(0, BN)
    if POOL:
        window, place = p // 4, p % 4
        example = window // ((OH // 2) * (OW // 2))
        y = (window // (OW // 2)) % (OH // 2) * 2 + place // 2
        x = window % (OW // 2) * 2 + place % 2
    else:
        example, y, x = p // (OH * OW), (p // OW) % OH, p % OW
    source = value + client * (BATCH * H * W * IN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k0 in range(0, TAPS, BK):
        tap = k0 + tl.arange(0, BK)
        at, inside = _input_at(
            example[:, None], y[:, None], x[:, None], tap[None, :], CI, H, W, KERNEL_W, STEP_H, STEP_W, PAD_H, PAD_W, IN
        )
        a = tl.load(source + at, mask=inside & (p < pixels)[:, None] & (tap < TAPS)[None, :], other=0.0)
        w_at = client * size + weight.offset + tap[:, None] * CO + n[None, :]
        w = tl.load(models + w_at, mask=(tap < TAPS)[:, None] & (n < CO)[None, :], other=0.0)
        acc = tl.dot(a, w, acc, input_precision=PRECISION)
    if HAS_BIAS:
        acc += tl.load(models + client * size + bias.offset + n, mask=n < CO, other=0.0)[None, :]
    if POOL:
        acc, place = _largest_of_four(acc, BM, BN)
        window = first // 4 + tl.arange(0, BM // 4)
        row = client * (BATCH * (PIXELS // 4)) + window
        mask = (window < pixels // 4)[:, None] & (n < CO)[None, :]
        tl.store(choice + row[:, None] * CO + n[None, :], place.to(tl.uint8), mask=mask)
        tl.store(out + row[:, None] * OUT + n[None, :], activated(acc, CURVE), mask=mask)
    else:
        target = out + client * (BATCH * OH * OW * OUT) + p[:, None] * OUT + n[None, :]
        tl.store(target, activated(acc, CURVE), mask=(p < pixels)[:, None] & (n < CO)[None, :])


@device
def _greater(a, b):
    """Whether b goes before a as the largest number: it is larger, or no number at all."""
    return (b > a) | (b != b)


@device
def _largest_of_four(acc, BM: tl.constexpr, BN: tl.constexpr):
    """Of every four rows, column by column: the largest number and its place, of equal ones the first."""
    pairs = tl.permute(tl.reshape(acc, (BM // 4, 2, 2, BN)), (0, 3, 1, 2))  # (window, column, pixel row, pixel)
    left, right = tl.split(pairs)
    later = _greater(left, right)
    upper, lower = tl.split(tl.where(later, right, left))
    in_upper, in_lower = tl.split(later.to(tl.int32))
    below = _greater(upper, lower)
    return tl.where(below, lower, upper), tl.where(below, 2 + in_lower, in_upper)


@device
def _output_gradient(
    d_out, choice, image, y, x, channel, mask, OH: tl.constexpr, OW: tl.constexpr, CO: tl.constexpr, OUT: tl.constexpr,
    POOL: tl.constexpr,
):  # fmt: skip
    """The gradient of output pixels (y, x) of images, numbered over all clients; behind a pool, that of the window
    where the pixel was its largest."""
    if POOL:
        inside = mask & (y < OH // 2 * 2) & (x < OW // 2 * 2)
        window = (image * (OH // 2) + y // 2) * (OW // 2) + x // 2
        chosen = tl.load(choice + window * CO + channel, mask=inside, other=4).to(tl.int32)
        d = tl.load(d_out + window * OUT + channel, mask=inside, other=0.0)
        return tl.where(chosen == y % 2 * 2 + x % 2, d, 0.0)
    else:
        return tl.load(d_out + ((image * OH + y) * OW + x) * OUT + channel, mask=mask, other=0.0)


@triton.jit
def _input_gradient(
    models, value, d_value, d_out, choice, lengths, weight, size,
    CI: tl.constexpr, CO: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STEP_H: tl.constexpr, STEP_W: tl.constexpr, PAD_H: tl.constexpr,
    PAD_W: tl.constexpr, BATCH: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, HAS_BIAS: tl.constexpr,
    POOL: tl.constexpr, GATE: tl.constexpr, ADD_INPUT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """An input pixel's gradient: over all taps, that of the output pixel which read it there, if there is one."""
    DEPTH: tl.constexpr = KERNEL_H * KERNEL_W * CO
    tiles_m: tl.constexpr = (BATCH * H * W + BM - 1) // BM
    tiles_n: tl.constexpr = (CI + BN - 1) // BN
    program = tl.program_id(0)
    client = (program // (tiles_m * tiles_n)).to(tl.int64)
    pixels = tl.load(lengths + client) * (H * W)
    first = (program // tiles_n) % tiles_m * BM
    if first >= pixels:
        return
    p = first + tl.arange(0, BM)
    n = program % tiles_n * BN + tl.arange(0, BN)
    example, y, x = p // (H * W), (p // W) % H, p % W
    image = client * BATCH + example
    acc = tl.zeros((BM, BN), tl.float32)
    for k0 in range(0, DEPTH, BK):
        k = k0 + tl.arange(0, BK)
        spot, channel = k // CO, k % CO
        ry = y[:, None] + PAD_H - (spot // KERNEL_W)[None, :]
        rx = x[:, None] + PAD_W - (spot % KERNEL_W)[None, :]
        oy, ox = ry // STEP_H, rx // STEP_W
        reads = (ry >= 0) & (rx >= 0) & (ry % STEP_H == 0) & (rx % STEP_W == 0) & (oy < OH) & (ox < OW)
        reads &= (p < pixels)[:, None] & (k < DEPTH)[None, :]
        d = _output_gradient(d_out, choice, image[:, None], oy, ox, channel[None, :], reads, OH, OW, CO, OUT, POOL)
        w_at = client * size + weight.offset + (spot[:, None] * CI + n[None, :]) * CO + channel[:, None]
        w = tl.load(models + w_at, mask=(k < DEPTH)[:, None] & (n < CI)[None, :], other=0.0)
        acc = tl.dot(d, w, acc, input_precision=PRECISION)
    at = client * (BATCH * H * W * IN) + p[:, None] * IN + n[None, :]
    mask = (p < pixels)[:, None] & (n < CI)[None, :]
    if ADD_INPUT:
        acc += tl.load(d_value + at, mask=mask, other=0.0)
    if GATE != 0:
        acc = gated(acc, tl.load(value + at, mask=mask, other=0.0), GATE)
    tl.store(d_value + at, acc, mask=mask)


@triton.jit
def _update(
    models, size, value, d_out, choice, lengths, weight, bias, sink,
    CI: tl.constexpr, CO: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STEP_H: tl.constexpr, STEP_W: tl.constexpr, PAD_H: tl.constexpr,
    PAD_W: tl.constexpr, BATCH: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, HAS_BIAS: tl.constexpr,
    POOL: tl.constexpr, FORMULA: tl.constexpr, ADD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The gradient of a tile of taps x outputs (and of the bias, in the first row of tiles), handed to the sink."""
    TAPS: tl.constexpr = KERNEL_H * KERNEL_W * CI
    tiles_m: tl.constexpr = (TAPS + BM - 1) // BM
    tiles_n: tl.constexpr = (CO + BN - 1) // BN
    program = tl.program_id(0)
    client = (program // (tiles_m * tiles_n)).to(tl.int64)
    pixels = tl.load(lengths + client) * (OH * OW)
    if pixels == 0:
        return
    tile_m = (program // tiles_n) % tiles_m
    tap = tile_m * BM + tl.arange(0, BM)
    n = program % tiles_n * BN + tl.arange(0, BN)
    source = value + client * (BATCH * H * W * IN)
    g = tl.zeros((BM, BN), tl.float32)
    g_bias = tl.zeros((BN,), tl.float32)
    for p0 in range(0, pixels, BK):
        p = p0 + tl.arange(0, BK)
        example, y, x = p // (OH * OW), (p // OW) % OH, p % OW
        at, inside = _input_at(
            example[None, :], y[None, :], x[None, :], tap[:, None], CI, H, W, KERNEL_W, STEP_H, STEP_W, PAD_H, PAD_W, IN
        )
        a = tl.load(source + at, mask=inside & (p < pixels)[None, :] & (tap < TAPS)[:, None], other=0.0)
        image, mask = (client * BATCH + example)[:, None], (p < pixels)[:, None] & (n < CO)[None, :]
        d = _output_gradient(d_out, choice, image, y[:, None], x[:, None], n[None, :], mask, OH, OW, CO, OUT, POOL)
        g = tl.dot(a, d, g, input_precision=PRECISION)
        g_bias += total(d, axis=0)
    w_at = client * size + weight.offset + tap[:, None] * CO + n[None, :]
    start = tl.load(models + w_at, mask=(tap < TAPS)[:, None] & (n < CO)[None, :], other=0.0)
    settle(sink, sink.coef, weight, g, start, client, tap, tap < TAPS, n, n < CO, CO, FORMULA, ADD, False)
    if HAS_BIAS:
        if tile_m == 0:
            _settle_bias(sink, bias, g_bias, models, size, client, n, CO, FORMULA, ADD)


# ---- launches -------------------------------------------------------------------------------------------------------


def _launch(kernel: Any, tiles: int, tile: Tile, x: Tensor, *args: Any, **constants: Any) -> None:
    launch(kernel, len(x) * tiles, x, *args, warps=tile.warps, stages=tile.stages, **constants)


def forward(
    c: Convolution, batch: int, x: Tensor, value: Tensor, out: Tensor, choice: Tensor | None, lengths: Tensor
) -> None:
    """`out` = curve(convolution of value + bias), for the models x (clients, d); behind a pool, `choice` (clients,
    batch * windows * outputs) bytes say where the largest numbers were."""
    tile = forward_tile(c)
    pixels = c.stored[0] * c.stored[1] * (4 if c.pool else 1)
    tiles = -(-batch * pixels // tile.m) * -(-c.outputs // tile.n)
    args = (x, value, out, choice, lengths, c.weight, c.bias or c.weight, x.stride(0))
    _launch(_forward, tiles, tile, x, *args, CURVE=c.curve, **_sizes(c, batch, tile))


def input_gradient(
    c: Convolution, batch: int, x: Tensor, value: Tensor, d_value: Tensor, d_out: Tensor, choice: Tensor | None,
    lengths: Tensor, gate: int = 0, add: bool = False,
) -> None:  # fmt: skip
    """The gradient of the images, added to what is there with `add`, then through the curve that made them."""
    tile = input_tile(c)
    tiles = -(-batch * c.image[0] * c.image[1] // tile.m) * -(-c.inputs // tile.n)
    args = (x, value, d_value, d_out, choice, lengths, c.weight, x.stride(0))
    _launch(_input_gradient, tiles, tile, x, *args, GATE=gate, ADD_INPUT=add, **_sizes(c, batch, tile))


def update(
    c: Convolution, batch: int, x: Tensor, value: Tensor, d_out: Tensor, choice: Tensor | None, lengths: Tensor,
    sink: Sink, rule: Rule, add: bool = False,
) -> None:  # fmt: skip
    """The gradient of weight and bias goes to the sink; `add`: to what is there."""
    tile = update_tile(c)
    if sink.mu is not None:
        tile = tile._replace(warps=8)  # SM3 reads rows and columns besides, for which four warps lack registers
    tiles = -(-c.taps // tile.m) * -(-c.outputs // tile.n)
    args = (x, x.stride(0), value, d_out, choice, lengths, c.weight, c.bias or c.weight, sink)
    _launch(_update, tiles, tile, x, *args, ADD=add, **rule.constants, **_sizes(c, batch, tile))
