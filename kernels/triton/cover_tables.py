"""SM3's cover as tables that a kernel reads: which tile of which tensor, which axes around it.

Built from ``covers.Layout`` once per layout and device. One table holds the tiles of all tensors, whatever their form,
so that a pass over all of them is one launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from .. import covers
from ..covers import Matrix
from .tiles import MATRIX_TILE, ROW_TILE

TILE_FIELDS = 10  # form, offset, first row, first column; rows, their first axis and its end; columns, likewise
AXIS_FIELDS = 3  # mu offset, size, stride

# Forms of tiles: matrices whose rows start on 16-byte borders, other matrices, tensors of one row.
ALIGNED, ODD, ROW = range(3)


@dataclass(frozen=True)
class CoverTables:
    """All tables of one layout on one device; `has` says which forms occur, as a kernel takes it."""

    tiles: Tensor
    axes: Tensor
    has: dict[str, bool]
    mu_size: int

    @property
    def tile_count(self) -> int:
        return self.tiles.shape[0]


def tables_of(cover: Tensor, device: torch.device) -> CoverTables:
    """The tables of a state's "cover"; cached by content."""
    return _tables(cover.numpy().tobytes(), device)


@lru_cache(maxsize=64)
def _tables(raw: bytes, device: torch.device) -> CoverTables:
    layout = covers.decode(torch.frombuffer(bytearray(raw), dtype=torch.int64))
    axes: list[tuple[int, ...]] = []
    tiles: list[tuple[int, ...]] = []
    for matrix, spans in zip(layout.matrices, covers.axis_spans(layout), strict=True):
        axes += [(axis.mu_offset, axis.size, axis.stride) for axis in (*matrix.row_axes, *matrix.col_axes)]
        sides = (matrix.rows, spans.row_first, spans.row_end, matrix.cols, spans.col_first, spans.col_end)
        tiles += [(*tile, *sides) for tile in _tiles(matrix)]
    forms = {tile[0] for tile in tiles}
    has = {"HAS_ALIGNED": ALIGNED in forms, "HAS_ODD": ODD in forms, "HAS_ROW": ROW in forms}
    return CoverTables(_tensor(tiles, TILE_FIELDS, device), _tensor(axes, AXIS_FIELDS, device), has, layout.mu_size)


def _tensor(rows: list[tuple[int, ...]], fields: int, device: torch.device) -> Tensor:
    return torch.tensor(rows, dtype=torch.int64).reshape(-1, fields).to(device)


def _tiles(matrix: Matrix) -> Iterator[tuple[int, ...]]:
    """Form and place of every tile of a tensor."""
    form = _form(matrix)
    rows, cols = ROW_TILE if form == ROW else MATRIX_TILE
    for row in range(0, matrix.rows, rows):
        for col in range(0, matrix.cols, cols):
            yield form, matrix.offset, row, col


def _form(matrix: Matrix) -> int:
    if matrix.rows == 1:
        return ROW
    return ALIGNED if matrix.offset % 4 == 0 and matrix.cols % 4 == 0 else ODD  # four numbers are 16 bytes
