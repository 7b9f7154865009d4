"""Images that are cropped, mirrored and standardised while a step's batches are gathered.

Two launches: the first finds how every image of the batches is seen, and the sums that standardise it; the second
gathers. What is computed is said by ``fastfed/data/augment.py``.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from ...layers import Shape
from ..compiled import philox, total
from ..launch import launch
from .batches import BLOCK, elements

FOUND = 3  # numbers of a view: where its crop begins, whether it is mirrored, the sum of its bytes


class Draw(NamedTuple):
    """What chooses the views of a step's batches: where they begin in their clients' streams (clients,), clients `ids`
    (clients,) and a `clock` (2,), which is local step and round, all int64 on the device; and a stream's key."""

    begins: Tensor
    ids: Tensor
    clock: Tensor
    key0: int
    key1: int


class Images(NamedTuple):
    """Stored images (examples, channels, height, width) uint8, and what becomes of them: `height` x `width` pixels,
    mirrored or not, standardised (`table` None) or meaning what `table` (channels, 256) says."""

    stored: Tensor
    height: int
    width: int
    flip: bool
    table: Tensor | None


@triton.jit(do_not_specialize=["key0", "key1"])
def _look(
    store, rows, row_stride, begins, ids, clock, lengths, found, roots, key0: tl.int64, key1: tl.int64,
    CHANNELS: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    FLIP: tl.constexpr, STANDARDISE: tl.constexpr, FIELDS: tl.constexpr, BATCH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One image of TALL x WIDE stored pixels, of which HEIGHT x WIDTH are seen."""
    program = tl.program_id(0)
    client = (program // BATCH).to(tl.int64)
    example = program % BATCH
    if example >= tl.load(lengths + client):
        return
    position = tl.load(begins + client) + example
    words = philox.philox(
        position.to(tl.uint32), (position >> 32).to(tl.uint32), tl.load(ids + client).to(tl.uint32),
        tl.load(clock + 1).to(tl.uint32), key0.to(tl.uint32), key1.to(tl.uint32),
    )  # fmt: skip
    top = (words[0].to(tl.int64) * (TALL - HEIGHT + 1)) >> 32
    left = (words[1].to(tl.int64) * (WIDE - WIDTH + 1)) >> 32
    corner = top * WIDE + left
    to = found + (client * BATCH + example) * FIELDS
    tl.store(to, corner)
    tl.store(to + 1, (words[2] >> 31).to(tl.int64) * FLIP)
    if STANDARDISE:
        pixels: tl.constexpr = CHANNELS * HEIGHT * WIDTH
        image = store + tl.load(rows + client * row_stride + example) * (CHANNELS * TALL * WIDE) + corner
        sums, squares = tl.zeros((BLOCK,), tl.int64), tl.zeros((BLOCK,), tl.int64)
        for first in range(0, pixels, BLOCK):
            at = first + tl.arange(0, BLOCK)
            channel, y, x = at // (HEIGHT * WIDTH), at // WIDTH % HEIGHT, at % WIDTH
            byte = tl.load(image + channel * (TALL * WIDE) + y * WIDE + x, mask=at < pixels, other=0).to(tl.int64)
            sums += byte
            squares += byte * byte
        sum = total(sums)
        spread = tl.maximum(total(squares) * pixels - sum * sum, pixels)
        tl.store(to + 2, sum)
        tl.store(roots + client * BATCH + example, tl.sqrt(spread.to(tl.float64)).to(tl.float32))


@triton.jit
def _gather_seen(
    store, table, rows, row_stride, out, lengths, found, roots,
    CHANNELS: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    STRIDE: tl.constexpr, FIELDS: tl.constexpr, BATCH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What is seen of the images, to `out` (clients, BATCH * HEIGHT * WIDTH, STRIDE)."""
    pixels: tl.constexpr = HEIGHT * WIDTH
    client, example, element, mask = elements(lengths, pixels * CHANNELS, BATCH, BLOCK)
    pixel, channel = element // CHANNELS, element % CHANNELS
    view = client * BATCH + example
    corner = tl.load(found + view * FIELDS, mask=mask, other=0)
    flipped = tl.load(found + view * FIELDS + 1, mask=mask, other=0)
    x = pixel % WIDTH
    x = tl.where(flipped != 0, WIDTH - 1 - x, x)
    which = tl.load(rows + client * row_stride + example, mask=mask, other=0)
    at = (which * CHANNELS + channel) * (TALL * WIDE) + corner + pixel // WIDTH * WIDE + x
    byte = tl.load(store + at, mask=mask, other=0)
    if table is not None:
        number = tl.load(table + channel * 256 + byte.to(tl.int32), mask=mask, other=0.0)
    else:
        sum = tl.load(found + view * FIELDS + 2, mask=mask, other=0)
        deviation = tl.load(roots + view, mask=mask, other=1.0)
        number = (byte.to(tl.int64) * (pixels * CHANNELS) - sum).to(tl.float32) / deviation
    tl.store(out + (view * pixels + pixel) * STRIDE + channel, number, mask=mask)


def gather_seen(
    images: Images, draw: Draw, rows: Tensor, out: Tensor, lengths: Tensor, shape: Shape, batch: int, found: Tensor,
    roots: Tensor,
) -> None:  # fmt: skip
    """Images `rows` (clients, at most batch) as they are seen, into `out` (clients, batch of values of this shape).

    `found` (clients, batch, FOUND) int64 and `roots` (clients, batch) float32 are room for what is found on the way.
    """
    channels, tall, wide = images.stored.shape[1:]
    sizes = {"CHANNELS": channels, "TALL": tall, "WIDE": wide, "HEIGHT": images.height, "WIDTH": images.width}
    sizes |= {"FIELDS": FOUND, "BATCH": batch}
    where = (rows, rows.stride(0))
    drawn = (draw.begins, draw.ids, draw.clock, lengths, found, roots, draw.key0, draw.key1)
    asked = {"FLIP": images.flip, "STANDARDISE": images.table is None, "BLOCK": BLOCK}
    launch(_look, len(rows) * batch, out, images.stored, *where, *drawn, **sizes, **asked)
    programs = len(rows) * -(-batch * shape.rows * shape.channels // BLOCK)
    args = (images.stored, images.table, *where, out, lengths, found, roots)
    launch(_gather_seen, programs, out, *args, **sizes, STRIDE=shape.stride, BLOCK=BLOCK)
