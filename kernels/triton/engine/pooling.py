"""Pooling over windows of images: the largest number, or the mean; windows on a grid, or adaptive ones.

Windows are tables made once per layer (`Windows`): which pixels each output sees, and which outputs see each pixel. On
the way back every input pixel collects from the outputs that saw it, so that nothing is written twice. The largest
number's place in its window is kept as a byte.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...layers import Windows
from ..compiled import device
from ..launch import launch
from .curves import gated

_BLOCK = 1024


@device
def _elements(lengths, PIXELS: tl.constexpr, CHANNELS: tl.constexpr, BATCH: tl.constexpr, BLOCK: tl.constexpr):
    blocks: tl.constexpr = (BATCH * PIXELS * CHANNELS + BLOCK - 1) // BLOCK
    program = tl.program_id(0)
    client = (program // blocks).to(tl.int64)
    element = program % blocks * BLOCK + tl.arange(0, BLOCK)
    row = element // CHANNELS
    return client, row, element % CHANNELS, row < tl.load(lengths + client) * PIXELS


@triton.jit
def _forward(
    value, out, choice, table, lengths,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    LARGEST: tl.constexpr, CHANNELS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr, BATCH: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    client, row, channel, mask = _elements(lengths, OH * OW, CHANNELS, BATCH, BLOCK)
    example, oy, ox = row // (OH * OW), (row // OW) % OH, row % OW
    across = table + 3 * OH + 2 * H
    y0, y1 = tl.load(table + oy, mask=mask, other=0), tl.load(table + OH + oy, mask=mask, other=0)
    x0, x1 = tl.load(across + ox, mask=mask, other=0), tl.load(across + OW + ox, mask=mask, other=0)
    source = value + client * (BATCH * H * W * IN)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    chosen = tl.zeros((BLOCK,), tl.int32)
    summed = tl.zeros((BLOCK,), tl.float32)
    for dy in range(KH):
        for dx in range(KW):
            inside = mask & (y0 + dy < y1) & (x0 + dx < x1)
            at = ((example * H + y0 + dy) * W + x0 + dx) * IN + channel
            if LARGEST:
                number = tl.load(source + at, mask=inside, other=float("-inf"))
                better = (number > best) | (number != number)
                best = tl.where(better, number, best)
                chosen = tl.where(better, dy * KW + dx, chosen)
            else:
                summed += tl.load(source + at, mask=inside, other=0.0)
    here = client * (BATCH * OH * OW)
    if LARGEST:
        tl.store(out + (here + row) * OUT + channel, best, mask=mask)
        tl.store(choice + (here + row) * CHANNELS + channel, chosen.to(choice.dtype.element_ty), mask=mask)
    else:
        ny = tl.load(table + 2 * OH + oy, mask=mask, other=1)
        nx = tl.load(across + 2 * OW + ox, mask=mask, other=1)
        tl.store(out + (here + row) * OUT + channel, summed / (ny * nx).to(tl.float32), mask=mask)


@triton.jit
def _backward(
    value, d_value, d_out, choice, table, lengths,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, KW: tl.constexpr, SEEN_H: tl.constexpr,
    SEEN_W: tl.constexpr, LARGEST: tl.constexpr, CHANNELS: tl.constexpr, IN: tl.constexpr, OUT: tl.constexpr,
    BATCH: tl.constexpr, GATE: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    client, row, channel, mask = _elements(lengths, H * W, CHANNELS, BATCH, BLOCK)
    example, y, x = row // (H * W), (row // W) % H, row % W
    across = table + 3 * OH + 2 * H
    oy0 = tl.load(table + 3 * OH + y, mask=mask, other=0)
    oy1 = tl.load(table + 3 * OH + H + y, mask=mask, other=0)
    ox0 = tl.load(across + 3 * OW + x, mask=mask, other=0)
    ox1 = tl.load(across + 3 * OW + W + x, mask=mask, other=0)
    here = client * (BATCH * OH * OW)
    d = tl.zeros((BLOCK,), tl.float32)
    for j in range(SEEN_H):
        for i in range(SEEN_W):
            oy, ox = oy0 + j, ox0 + i
            seen = mask & (oy < oy1) & (ox < ox1)
            output = here + (example * OH + oy) * OW + ox
            part = tl.load(d_out + output * OUT + channel, mask=seen, other=0.0)
            if LARGEST:
                place = (
                    (y - tl.load(table + oy, mask=seen, other=0)) * KW + x - tl.load(across + ox, mask=seen, other=0)
                )
                taken = tl.load(choice + output * CHANNELS + channel, mask=seen, other=0).to(tl.int32)
                d += tl.where(seen & (taken == place), part, 0.0)
            else:
                ny = tl.load(table + 2 * OH + oy, mask=seen, other=1)
                nx = tl.load(across + 2 * OW + ox, mask=seen, other=1)
                d += part / (ny * nx).to(tl.float32)
    at = (client * (BATCH * H * W) + row) * IN + channel
    if ADD:
        d += tl.load(d_value + at, mask=mask, other=0.0)
    if GATE != 0:
        d = gated(d, tl.load(value + at, mask=mask, other=0.0), GATE)
    tl.store(d_value + at, d, mask=mask)


@cache
def tables(w: Windows, device: torch.device) -> Tensor:
    """The layer's windows as kernels read them, int32."""
    return torch.tensor(w.numbers(), dtype=torch.int32).to(device)


def choice_dtype(w: Windows) -> torch.dtype:
    """A byte where a window's places fit into it."""
    return torch.uint8 if w.places <= 255 else torch.int32


def _sizes(w: Windows, batch: int) -> dict[str, Any]:
    return {
        "H": w.y.pixels, "W": w.x.pixels, "OH": len(w.y.begin), "OW": len(w.x.begin), "KW": w.x.longest,
        "LARGEST": w.largest, "CHANNELS": w.channels, "IN": w.in_stride, "OUT": w.out_stride, "BATCH": batch,
        "BLOCK": _BLOCK,
    }  # fmt: skip


def forward(
    w: Windows, batch: int, value: Tensor, out: Tensor, choice: Tensor | None, table: Tensor, lengths: Tensor
) -> None:
    """`out` = pooled value; `choice` (clients, batch * outputs, channels) where the largest number is taken."""
    programs = len(lengths) * -(-batch * len(w.y.begin) * len(w.x.begin) * w.channels // _BLOCK)
    args = (value, out, choice, table, lengths)
    launch(_forward, programs, lengths, *args, KH=w.y.longest, **_sizes(w, batch))


def backward(
    w: Windows, batch: int, value: Tensor, d_value: Tensor, d_out: Tensor, choice: Tensor | None, table: Tensor,
    lengths: Tensor, gate: int = 0, add: bool = False,
) -> None:  # fmt: skip
    """The gradient of the images."""
    programs = len(lengths) * -(-batch * w.y.pixels * w.x.pixels * w.channels // _BLOCK)
    seen = [max(end - first for first, end in axis.seen_by()) for axis in (w.y, w.x)]
    constants = {"SEEN_H": seen[0], "SEEN_W": seen[1], "GATE": gate, "ADD": add, **_sizes(w, batch)}
    launch(_backward, programs, lengths, value, d_value, d_out, choice, table, lengths, **constants)
