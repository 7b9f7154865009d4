"""Examples of a step's batches, gathered from the store on the device into the form that the layers read.

Rows (clients, batch) int64 say which examples; a client's first `lengths` ones are real. Images come with their
channels last; bytes become numbers by a table of what each stands for.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ...layers import Shape
from ..compiled import device, total
from ..launch import launch
from .losses import IGNORED

BLOCK = 1024


@device
def elements(lengths, SIZE: tl.constexpr, BATCH: tl.constexpr, BLOCK: tl.constexpr):
    """This program's client, its examples and the elements in them; which exist."""
    blocks: tl.constexpr = (BATCH * SIZE + BLOCK - 1) // BLOCK
    program = tl.program_id(0)
    client = (program // blocks).to(tl.int64)
    element = program % blocks * BLOCK + tl.arange(0, BLOCK)
    example = element // SIZE
    return client, example, element % SIZE, example < tl.load(lengths + client)


@triton.jit
def _gather(
    store, table, rows, row_stride, out, lengths,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, STRIDE: tl.constexpr, IMAGE: tl.constexpr, BATCH: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Examples of `store`, ROWS x CHANNELS numbers (an IMAGE: CHANNELS x ROWS), to `out` (clients, BATCH * ROWS,
    STRIDE)."""
    client, example, element, mask = elements(lengths, ROWS * CHANNELS, BATCH, BLOCK)
    row, column = element // CHANNELS, element % CHANNELS
    stored = element
    if IMAGE:
        stored = column * ROWS + row
    which = tl.load(rows + client * row_stride + example, mask=mask, other=0)
    number = tl.load(store + which * (ROWS * CHANNELS) + stored, mask=mask, other=0)
    if table is not None:
        number = tl.load(table + column * 256 + number.to(tl.int32), mask=mask, other=0.0)
    at = (client * (BATCH * ROWS) + example * ROWS + row) * STRIDE + column
    tl.store(out + at, number.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _gather_sparse(starts, columns, values, rows, row_stride, out, lengths, STRIDE: tl.constexpr, BATCH: tl.constexpr,
                   BLOCK: tl.constexpr):  # fmt: skip
    """One example's entries into a row that is otherwise zero."""
    program = tl.program_id(0)
    client = (program // BATCH).to(tl.int64)
    example = program % BATCH
    to = out + (client * BATCH + example) * STRIDE
    for first in range(0, STRIDE, BLOCK):
        column = first + tl.arange(0, BLOCK)
        tl.store(to + column, 0.0, mask=column < STRIDE)
    if example >= tl.load(lengths + client):
        return
    tl.debug_barrier()  # the zeros are there before the entries
    row = tl.load(rows + client * row_stride + example)
    begin, end = tl.load(starts + row), tl.load(starts + row + 1)
    for first in range(begin, end, BLOCK):
        entry = first + tl.arange(0, BLOCK)
        column = tl.load(columns + entry, mask=entry < end, other=0)
        number = tl.load(values + entry, mask=entry < end, other=0.0)
        tl.store(to + column, number, mask=entry < end)


@triton.jit
def _count_labels(labels, counts, lengths, ROWS: tl.constexpr, CAPACITY: tl.constexpr, IGNORE: tl.constexpr,
                  BLOCK: tl.constexpr):  # fmt: skip
    client = tl.program_id(0).to(tl.int64)
    rows = tl.load(lengths + client) * ROWS
    counted = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, CAPACITY, BLOCK):
        r = first + tl.arange(0, BLOCK)
        label = tl.load(labels + client * CAPACITY + r, mask=r < rows, other=IGNORE)
        counted += (label != IGNORE).to(tl.int32)
    tl.store(counts + client, tl.maximum(total(counted), 1).to(tl.float32))


def gather(
    store: Tensor, table: Tensor | None, rows: Tensor, out: Tensor, lengths: Tensor, shape: Shape, batch: int,
    image: bool = False,
) -> None:  # fmt: skip
    """Examples `rows` (clients, at most batch) of `store` (examples, ...), any dtype, into `out` (clients, batch of
    values of this shape). An `image` is stored with its channels first; bytes mean what `table` (channels, 256) says.
    """
    sizes = {"ROWS": shape.rows, "CHANNELS": shape.channels, "STRIDE": shape.stride, "IMAGE": image, "BATCH": batch}
    programs = len(rows) * -(-batch * shape.rows * shape.channels // BLOCK)
    launch(_gather, programs, out, store, table, rows, rows.stride(0), out, lengths, **sizes, BLOCK=BLOCK)


def gather_sparse(
    starts: Tensor, columns: Tensor, values: Tensor, rows: Tensor, out: Tensor, lengths: Tensor, stride: int, batch: int
) -> None:
    """Rows of a sparse store into `out` (clients, batch, stride)."""
    args = (starts, columns, values, rows, rows.stride(0), out, lengths)
    launch(_gather_sparse, len(rows) * batch, out, *args, warps=1, STRIDE=stride, BATCH=batch, BLOCK=128)


def count_labels(labels: Tensor, counts: Tensor, lengths: Tensor, rows: int, reduction: str = "mean") -> None:
    """How many labels (clients, batch * rows) int32 of each client's batch count, at least 1: `counts` float32; what
    their loss is divided by under another reduction."""
    if reduction == "outputs":
        counts.copy_(lengths).clamp_(min=1)
        return
    if reduction == "batch":
        counts.fill_(rows)
        return
    sizes = {"ROWS": rows, "CAPACITY": labels.shape[1], "IGNORE": IGNORED, "BLOCK": 128}
    launch(_count_labels, len(labels), labels, labels, counts, lengths, warps=1, **sizes)
