"""Which examples the batches of many clients hold: their rows in the random order of every epoch, and of these the
rows of each step. What `fastfed.train.batches` says in torch's words takes two launches here, and no sort."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from ...streams import StreamWords
from ..compiled import device, philox
from ..launch import launch

LONGEST = 1024  # rows of an order: each is compared with all others
_PLACED = 128  # of them that a program places ...
_COMPARED = 32  # ... and compares with so many at once
_BLOCK = 256


class Spans(NamedTuple):
    """What says where the batches of clients lie, (clients,) int64 each: their numbers of examples (at least 1), the
    steps they take, the examples that they see (None: whole epochs), and where their rows are in the shuffled ones: of
    a client that has no batch, and by how much less than in its stream."""

    counts: Tensor
    taken: Tensor
    seen: Tensor | None
    base: Tensor
    shift: Tensor


@device
def _sort_keys(at, client, epoch, key0, key1, round):
    """The keys of the places `at` of an order; a block of four words makes two."""
    block = (at // 2).to(tl.uint32)
    zero = block ^ block
    counter = (zero + epoch.to(tl.uint32), zero + client.to(tl.uint32), zero + round.to(tl.uint32))
    w0, w1, w2, w3 = philox.philox(block, counter[0], counter[1], counter[2], key0.to(tl.uint32), key1.to(tl.uint32))
    first = philox.sort_key(w0.to(tl.int64), w1.to(tl.int64))
    second = philox.sort_key(w2.to(tl.int64), w3.to(tl.int64))
    return tl.where(at % 2 == 0, first, second)


@triton.jit(do_not_specialize=("key0", "key1", "round"))
def _shuffle(
    shuffled, source, orders, n, key0: tl.int64, key1: tl.int64, round: tl.int64,
    WIDTH: tl.constexpr, PLACED: tl.constexpr, COMPARED: tl.constexpr,
):  # fmt: skip
    """Some rows of an order. Each goes to the place that its key has among all keys; of equal ones the first goes
    first."""
    parts: tl.constexpr = WIDTH // PLACED
    order = orders + tl.program_id(0) // parts
    client, epoch, count = tl.load(order), tl.load(order + n), tl.load(order + 2 * n)
    at = tl.program_id(0) % parts * PLACED + tl.arange(0, PLACED)
    key = _sort_keys(at, client, epoch, key0, key1, round)
    place = tl.zeros((PLACED,), tl.int32)
    for first in range(0, count.to(tl.int32), COMPARED):
        other = first + tl.arange(0, COMPARED)
        other_key = _sort_keys(other, client, epoch, key0, key1, round)[None, :]
        earlier = (other_key < key[:, None]) | ((other_key == key[:, None]) & (other[None, :] < at[:, None]))
        place += tl.sum((earlier & (other < count)[None, :]).to(tl.int32), axis=1)
    row = tl.load(source + tl.load(order + 4 * n) + at, mask=at < count, other=0)
    tl.store(shuffled + tl.load(order + 3 * n) + place, row, mask=at < count)


@triton.jit
def _rows(
    rows, shuffled, counts, taken, seen, base, shift, clients, first_step, size, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One step's batches of a few clients, WIDTH places each. Padding repeats the first row."""
    blocks = (clients * WIDTH + BLOCK - 1) // BLOCK
    program = tl.program_id(0)
    turn = (program // blocks).to(tl.int64)
    step = first_step + turn
    element = program % blocks * BLOCK + tl.arange(0, BLOCK)
    mask = element < clients * WIDTH
    client, place = element // WIDTH, element % WIDTH
    count = tl.load(counts + client, mask=mask, other=1)
    if seen is not None:
        begin = step * size
        left = tl.load(seen + client, mask=mask, other=0) - begin
    else:
        per_epoch = (count + (size - 1)) // size
        epoch = step // per_epoch
        inside = (step - epoch * per_epoch) * size
        begin, left = epoch * count + inside, count - inside
    length = tl.where(tl.load(taken + client, mask=mask, other=0) > step, tl.minimum(left, size), 0)
    start = begin - tl.load(shift + client, mask=mask, other=0)
    start = tl.where(length > 0, start, tl.load(base + client, mask=mask, other=0))
    row = tl.load(shuffled + start + tl.where(place < length, place, 0), mask=mask, other=0)
    tl.store(rows + turn * (clients * WIDTH) + element, row, mask=mask)


def shuffle(shuffled: Tensor, source: Tensor, orders: Tensor, width: int, stream: StreamWords) -> None:
    """Enters rows of `source` into `shuffled`, int64 both, in random orders of at most `width` (and `LONGEST`) rows.

    `orders` (5, n) int64: whose, of which epoch, of how many rows, where they go and where they come from. The order is
    that of `fastfed.kernels.shuffles`.
    """
    tile = max(_COMPARED, triton.next_power_of_2(width))
    placed = min(_PLACED, tile)
    words, n = (stream.key0, stream.key1, stream.round), orders.shape[1]
    args = (shuffled, source, orders, n, *words)
    launch(_shuffle, n * (tile // placed), shuffled, *args, WIDTH=tile, PLACED=placed, COMPARED=_COMPARED)


def rows_of_steps(rows: Tensor, shuffled: Tensor, spans: Spans, first_step: int, size: int) -> None:
    """Fills `rows` (steps, clients, width) int64 with the batches, of at most `size` examples, of the steps from
    `first_step` on."""
    steps, clients, width = rows.shape
    programs = steps * -(-clients * width // _BLOCK)
    launch(_rows, programs, rows, rows, shuffled, *spans, clients, first_step, size, WIDTH=width, BLOCK=_BLOCK)
