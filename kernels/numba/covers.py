"""SM3's matrices cut into tiles that threads can take: each raises maxima of its own, which are then joined.

A tile is a range of columns (at most a chunk) of a range of rows. It is worked `ROWS_AT_ONCE` rows at a time: as many
as fit a chunk where the tile is as wide as the matrix (then they lie side by side), else one. Maxima are exact, so no
bit depends on who joins what first.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from .. import covers
from .compiled import CHUNK, Array, jit, launch, maximum, minimum, parallel

CHUNKS_PER_TILE = 16  # a tile's column maxima then take 1/16 of the memory of its elements at most

# Columns of the table of tiles: where the tensor starts, its width; the tile's rows and columns in it; where the
# tensor's rows and columns start in the workspace's vectors; where the tile's own maxima lie in the scratch vectors.
START, WIDTH, ROW, ROW_END, COL, COL_END, ROWS_AT_ONCE, ROW_PLACE, COL_PLACE, ROW_SCRATCH, COL_SCRATCH = range(11)


@lru_cache(maxsize=64)
def _tiles_of(layout: covers.Layout) -> tuple[Array, int, int]:
    """The table of tiles (tiles, 11) int64, and the sizes of the scratch vectors for rows and columns."""
    table: list[tuple[int, ...]] = []
    row_scratch = col_scratch = 0
    for matrix in layout.matrices:
        width = min(matrix.cols, CHUNK)
        at_once = max(1, CHUNK // matrix.cols)
        height = at_once * CHUNKS_PER_TILE
        for row in range(0, matrix.rows, height):
            for col in range(0, matrix.cols, width):
                row_end, col_end = min(matrix.rows, row + height), min(matrix.cols, col + width)
                places = (matrix.row_offset, matrix.col_offset, row_scratch, col_scratch)
                table.append((matrix.offset, matrix.cols, row, row_end, col, col_end, at_once, *places))
                row_scratch += row_end - row
                col_scratch += col_end - col
    return np.array(table, np.int64).reshape(-1, 11), row_scratch, col_scratch


class Cover:
    """The cover of one step: minima of mu along rows and columns, and room for the maxima that become the next mu."""

    def __init__(self, layout: covers.Layout, mu: Tensor) -> None:
        self.layout, self.mu = layout, mu
        self.tiles, rows, cols = _tiles_of(layout)
        clients = mu.shape[0]
        self.tile_maxima = (np.zeros((clients, rows), np.float32), np.zeros((clients, cols), np.float32))

    def minima(self) -> tuple[Array, Array]:
        """Row and column minima of mu as it is now."""
        workspace = covers.expand(self.mu, self.layout)
        return workspace.row_min.numpy(), workspace.col_min.numpy()

    def maxima(self) -> Tensor:
        """The tiles' maxima over every cover set, in mu's layout."""
        clients = self.mu.shape[0]
        rows = torch.zeros((clients, self.layout.row_size))
        cols = torch.zeros((clients, self.layout.col_size))
        launch(_join, self.tiles, self.tile_maxima, rows.numpy(), cols.numpy())
        return covers.fold(covers.Workspace(self.layout, rows, cols, rows, cols), self.mu.shape[1])


@parallel
def _join(tiles: Array, tile_maxima: Any, rows: Array, cols: Array) -> None:
    row_maxima, col_maxima = tile_maxima
    for client in prange(rows.shape[0]):
        for tile in tiles:
            height, width = tile[ROW_END] - tile[ROW], tile[COL_END] - tile[COL]
            row, col = tile[ROW_PLACE] + tile[ROW], tile[COL_PLACE] + tile[COL]
            _raise(rows[client, row : row + height], row_maxima[client, tile[ROW_SCRATCH] : tile[ROW_SCRATCH] + height])
            _raise(cols[client, col : col + width], col_maxima[client, tile[COL_SCRATCH] : tile[COL_SCRATCH] + width])


@jit
def _raise(largest: Array, values: Array) -> None:
    for i in range(largest.size):
        largest[i] = maximum(largest[i], values[i])


# ---- inside one tile ------------------------------------------------------------------------------------------------


@jit
def _rows_from(tile: Array, row: int) -> int:
    """How many rows are worked at once from `row` on."""
    return min(tile[ROWS_AT_ONCE], tile[ROW_END] - row)


@jit
def span_of_rows(tile: Array, row: int) -> tuple[int, int]:
    """Where the rows that are worked at once from `row` on lie in the packed vector."""
    begin = tile[START] + row * tile[WIDTH] + tile[COL]
    return begin, begin + _rows_from(tile, row) * (tile[COL_END] - tile[COL])


@jit
def _fill_minima(out: Array, row_min: Any, col_min: Array) -> None:
    for i in range(out.size):
        out[i] = minimum(row_min, col_min[i])


@jit
def cover_minima(out: Array, client: int, tile: Array, row: int, minima: Any) -> None:
    """The smallest cover value around every element of the rows from `row` on."""
    row_min, col_min = minima
    width, place = tile[COL_END] - tile[COL], tile[COL_PLACE]
    columns = col_min[client, place + tile[COL] : place + tile[COL_END]]
    for r in range(_rows_from(tile, row)):
        _fill_minima(out[r * width : (r + 1) * width], row_min[client, tile[ROW_PLACE] + row + r], columns)


@jit
def _raise_row(row: Array, columns: Array, largest: Any) -> Any:
    for i in range(row.size):
        columns[i] = max(columns[i], row[i])
        largest = max(largest, row[i])
    return largest


@jit
def raise_maxima(values: Array, client: int, tile: Array, row: int, maxima: Any) -> None:
    """Raises the tile's own maxima to the non-negative `values` of the rows from `row` on.

    Compared as bits: for floats without sign that is the same order, nan comes out on top, and LLVM may reorder it.
    """
    row_maxima, col_maxima = maxima
    width, place, scratch = tile[COL_END] - tile[COL], tile[COL_SCRATCH], tile[ROW_SCRATCH] - tile[ROW]
    columns = col_maxima[client, place : place + width].view(np.uint32)
    rows = row_maxima[client, scratch + row : scratch + row + _rows_from(tile, row)].view(np.uint32)
    bits = values.view(np.uint32)
    for r in range(rows.size):
        rows[r] = _raise_row(bits[r * width : (r + 1) * width], columns, rows[r])
