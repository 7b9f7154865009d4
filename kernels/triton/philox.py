"""Random numbers: every program makes a tile of clients x Philox blocks, each block's numbers side by side."""

# mypy: disable-error-code="no-untyped-def"

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..rows import draws_rows
from ..streams import LARGEST_KEY, StreamWords
from .compiled import device, philox
from .launch import launch
from .tiles import PHILOX_LANES

# The words of a stream are values, not shapes: no compiled variant may depend on them.
_STREAM = ("key0", "key1", "step", "round")
_LARGEST_KEY = tl.constexpr(LARGEST_KEY)


@device
def _place(rows, blocks, ROWS: tl.constexpr, BLOCKS: tl.constexpr):
    """This program's rows (one per client) and its first Philox block."""
    per_row = (blocks + BLOCKS - 1) // BLOCKS
    program = tl.program_id(0)
    row = (program // per_row).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    return row, row < rows, (program % per_row).to(tl.int64) * BLOCKS


@device
def _words(clients, row, exists, first, key0, key1, step, round, BLOCKS: tl.constexpr):
    """The four words of each of this program's blocks, (ROWS, BLOCKS)."""
    client = tl.load(clients + row, mask=exists, other=0).to(tl.uint32)[:, None]
    return _words_at(client, step.to(tl.uint32), first, key0, key1, round, BLOCKS)


@device
def _words_at(client, step, first, key0, key1, round, BLOCKS: tl.constexpr):
    """The four words of blocks of clients (ROWS, 1), all at one step or each at its own, (ROWS, 1)."""
    block = (first + tl.arange(0, BLOCKS)).to(tl.uint32)[None, :]
    zero = (client ^ client) + (block ^ block)
    counter1, counter3 = zero + step, zero + round.to(tl.uint32)
    return philox.philox(zero + block, counter1, zero + client, counter3, key0.to(tl.uint32), key1.to(tl.uint32))


@device
def _pairs(a, b, ROWS: tl.constexpr, BLOCKS: tl.constexpr):
    """a and b alternating along the rows, (ROWS, 2 * BLOCKS)."""
    return tl.reshape(tl.join(a, b), (ROWS, 2 * BLOCKS))


@device
def _fours(a, b, c, d, ROWS: tl.constexpr, BLOCKS: tl.constexpr):
    """a, b, c and d taking turns along the rows, (ROWS, 4 * BLOCKS)."""
    return _pairs(_pairs(a, c, ROWS, BLOCKS), _pairs(b, d, ROWS, BLOCKS), ROWS, 2 * BLOCKS)


@device
def _store(out, n, row, exists, first, numbers, WIDTH: tl.constexpr):
    at = first + tl.arange(0, WIDTH)
    tl.store(out + row[:, None] * n + at[None, :], numbers, mask=exists[:, None] & (at < n)[None, :])


@triton.jit(do_not_specialize=_STREAM)
def _uniform(
    out,
    clients,
    rows,
    n,
    blocks,
    key0: tl.int64,
    key1: tl.int64,
    step: tl.int64,
    round: tl.int64,
    ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    row, exists, first = _place(rows, blocks, ROWS, BLOCKS)
    w0, w1, w2, w3 = _words(clients, row, exists, first, key0, key1, step, round, BLOCKS)
    a, b = philox.uniform_of(w0), philox.uniform_of(w1)
    c, d = philox.uniform_of(w2), philox.uniform_of(w3)
    _store(out, n, row, exists, first * 4, _fours(a, b, c, d, ROWS, BLOCKS), 4 * BLOCKS)


@triton.jit(do_not_specialize=_STREAM)
def _normal(
    out,
    clients,
    rows,
    n,
    blocks,
    key0: tl.int64,
    key1: tl.int64,
    step: tl.int64,
    round: tl.int64,
    ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    row, exists, first = _place(rows, blocks, ROWS, BLOCKS)
    w0, w1, w2, w3 = _words(clients, row, exists, first, key0, key1, step, round, BLOCKS)
    a, b = philox.normal_pair(w0, w1)
    c, d = philox.normal_pair(w2, w3)
    _store(out, n, row, exists, first * 4, _fours(a, b, c, d, ROWS, BLOCKS), 4 * BLOCKS)


@triton.jit(do_not_specialize=_STREAM)
def _sort_keys(
    out,
    clients,
    rows,
    n,
    blocks,
    key0: tl.int64,
    key1: tl.int64,
    step: tl.int64,
    round: tl.int64,
    ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    row, exists, first = _place(rows, blocks, ROWS, BLOCKS)
    w0, w1, w2, w3 = _words(clients, row, exists, first, key0, key1, step, round, BLOCKS)
    a = philox.sort_key(w0.to(tl.int64), w1.to(tl.int64))
    b = philox.sort_key(w2.to(tl.int64), w3.to(tl.int64))
    _store(out, n, row, exists, first * 2, _pairs(a, b, ROWS, BLOCKS), 2 * BLOCKS)


@triton.jit(do_not_specialize=("key0", "key1", "round"))
def _shuffle_keys(
    out,
    clients,
    steps,
    counts,
    rows,
    n,
    blocks,
    key0: tl.int64,
    key1: tl.int64,
    round: tl.int64,
    ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    row, exists, first = _place(rows, blocks, ROWS, BLOCKS)
    client = tl.load(clients + row, mask=exists, other=0).to(tl.uint32)[:, None]
    step = tl.load(steps + row, mask=exists, other=0).to(tl.uint32)[:, None]
    count = tl.load(counts + row, mask=exists, other=0)[:, None]
    w0, w1, w2, w3 = _words_at(client, step, first, key0, key1, round, BLOCKS)
    a = philox.sort_key(w0.to(tl.int64), w1.to(tl.int64))
    b = philox.sort_key(w2.to(tl.int64), w3.to(tl.int64))
    at = first * 2 + tl.arange(0, 2 * BLOCKS)[None, :]
    # Behind the count, the largest key of all: a stable sort leaves those places where they are.
    keys = tl.where(at < count, _pairs(a, b, ROWS, BLOCKS), _LARGEST_KEY)
    _store(out, n, row, exists, first * 2, keys, 2 * BLOCKS)


def _tiles(rows: int, blocks: int) -> tuple[int, dict[str, int]]:
    """How many programs cover so many rows of blocks, and their tiles: as many rows as short ones need to fill one."""
    wide = min(PHILOX_LANES, triton.next_power_of_2(blocks))
    tall = PHILOX_LANES // wide
    return -(-rows // tall) * -(-blocks // wide), {"ROWS": tall, "BLOCKS": wide}


def _fill(kernel: Any, per_block: int, out: Tensor, stream: StreamWords, clients: Tensor) -> None:
    rows, n = out.shape
    blocks = -(-n // per_block)
    programs, tile = _tiles(rows, blocks)
    launch(kernel, programs, out, out, clients, rows, n, blocks, *stream, **tile)


@draws_rows
def uniform(out: Tensor, stream: StreamWords, clients: Tensor) -> None:
    """out: (clients, n) float32."""
    _fill(_uniform, 4, out, stream, clients)


@draws_rows
def normal(out: Tensor, stream: StreamWords, clients: Tensor) -> None:
    """out: (clients, n) float32."""
    _fill(_normal, 4, out, stream, clients)


@draws_rows
def permutation(out: Tensor, stream: StreamWords, clients: Tensor) -> None:
    """out: (clients, n) int64, every row a permutation of 0 .. n-1."""
    keys = torch.empty_like(out)
    _fill(_sort_keys, 2, keys, stream, clients)
    out.copy_(keys.sort(dim=1, stable=True).indices)


def shuffles(out: Tensor, stream: StreamWords, clients: Tensor, steps: Tensor, counts: Tensor) -> None:
    """out: (rows, width) int64; clients, steps, counts: (rows,) int64."""
    rows, width = out.shape
    blocks = -(-width // 2)
    programs, tile = _tiles(rows, blocks)
    keys = torch.empty_like(out)
    words = (stream.key0, stream.key1, stream.round)
    launch(_shuffle_keys, programs, out, keys, clients, steps, counts, rows, width, blocks, *words, **tile)
    out.copy_(keys.sort(dim=1, stable=True).indices)
