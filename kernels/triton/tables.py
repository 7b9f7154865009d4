"""SM3's cover as tables that a kernel reads: which tile of which tensor, which axes around it.

Built from ``covers.Layout`` once per layout and device. Row and column vectors of all tensors lie one behind the other
in a single vector of sides: first all rows, then all columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from .. import covers
from ..covers import Axis, Layout
from ..registry import interpreting

TILE_FIELDS = 7  # offset, rows, cols, row side, column side, first row, first column
PIECE_FIELDS = 5  # side, length, first element, first axis, end of axes
AXIS_FIELDS = 3  # mu offset, size, stride
SPREAD_FIELDS = 6  # side, positions per index, first index, mu offset, size, stride

# Elements per program: square, because a tile costs one atomic per row and column. The interpreter pays per program.
MATRIX_TILE = (64, 512) if interpreting() else (64, 64)
ROW_TILE = (1, 4096)  # for tensors of one row
PIECE = 1024
FLAT_SPREAD = (1024, 1)  # indices x positions, for axes that are a whole side: every index has one position
DEEP_SPREAD = (8, 256)  # for axes that share their side with others


@dataclass(frozen=True)
class Form:
    """Entries of one table that share a compiled variant; `first` is where they start among all entries."""

    shape: tuple[int, int]
    aligned: bool
    first: int
    table: Tensor

    @property
    def count(self) -> int:
        return self.table.shape[0]


@dataclass(frozen=True)
class Tables:
    """All tables of one layout on one device."""

    tiles: tuple[Form, ...]  # of the tensors, as matrices
    pieces: Tensor  # of the sides
    axes: Tensor
    spreads: tuple[Form, ...]  # of the axes: which side elements belong to an index
    sides: int
    mu_size: int

    @property
    def tile_count(self) -> int:
        return sum(form.count for form in self.tiles)


def tables_of(cover: Tensor, device: torch.device) -> Tables:
    """The tables of a state's "cover"; cached by content."""
    return _tables(cover.numpy().tobytes(), device)


@lru_cache(maxsize=64)
def _tables(raw: bytes, device: torch.device) -> Tables:
    layout = covers.decode(torch.frombuffer(bytearray(raw), dtype=torch.int64))
    axes, pieces = _axes_and_pieces(layout)
    return Tables(
        tiles=_tile_forms(layout, device),
        pieces=_tensor(pieces, device),
        axes=_tensor(axes, device),
        spreads=_spread_forms(layout, device),
        sides=layout.row_size + layout.col_size,
        mu_size=layout.mu_size,
    )


def _tensor(rows: list[tuple[int, ...]], device: torch.device) -> Tensor:
    return torch.tensor(rows, dtype=torch.int64).to(device)


def _forms(groups: dict[tuple[tuple[int, int], bool], list[tuple[int, ...]]], device: torch.device) -> tuple[Form, ...]:
    forms, first = [], 0
    for (shape, aligned), rows in groups.items():
        forms.append(Form(shape, aligned, first, _tensor(rows, device)))
        first += len(rows)
    return tuple(forms)


def _tile_forms(layout: Layout, device: torch.device) -> tuple[Form, ...]:
    groups: dict[tuple[tuple[int, int], bool], list[tuple[int, ...]]] = {}
    for block in layout.blocks:
        shape = ROW_TILE if block.rows == 1 else MATRIX_TILE
        aligned = block.offset % 4 == 0 and block.cols % 4 == 0  # then four columns are 16 bytes on a 16-byte border
        rows, cols = shape
        sides = (block.row_offset, layout.row_size + block.col_offset)
        groups.setdefault((shape, aligned), []).extend(
            (block.offset, block.rows, block.cols, *sides, row, col)
            for row in range(0, block.rows, rows)
            for col in range(0, block.cols, cols)
        )
    return _forms(groups, device)


def _sides(layout: Layout) -> Iterator[tuple[int, int, tuple[Axis, ...]]]:
    """Start, length and axes of every tensor's row side and column side."""
    for block in layout.blocks:
        yield block.row_offset, block.rows, block.row_axes
        yield layout.row_size + block.col_offset, block.cols, block.col_axes


def _axes_and_pieces(layout: Layout) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    axes: list[tuple[int, ...]] = []
    pieces: list[tuple[int, ...]] = []
    for side, length, side_axes in _sides(layout):
        begin = len(axes)
        axes += [(axis.mu_offset, axis.size, axis.stride) for axis in side_axes]
        pieces += [(side, length, first, begin, len(axes)) for first in range(0, length, PIECE)]
    return axes, pieces


def _spread_forms(layout: Layout, device: torch.device) -> tuple[Form, ...]:
    groups: dict[tuple[tuple[int, int], bool], list[tuple[int, ...]]] = {}
    for side, length, side_axes in _sides(layout):
        for axis in side_axes:
            positions = length // axis.size
            shape = FLAT_SPREAD if positions == 1 else DEEP_SPREAD
            groups.setdefault((shape, False), []).extend(
                (side, positions, first, axis.mu_offset, axis.size, axis.stride)
                for first in range(0, axis.size, shape[0])
            )
    return _forms(groups, device)
