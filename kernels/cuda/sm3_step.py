"""The passes of an SM3 step as kernel launches, and the tables of tiles that they walk.

Rows and columns of all tensors (``covers.py``) have one slot each: first all rows, then all columns. A tile is the part
of one matrix that one block works. The tables depend on the layout alone and are kept per layout and device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from .. import covers
from ..client_call import ClientCall
from . import client_arguments, sources
from .launch import QUAD, THREADS, run
from .norms import empty_partials, fold

ROW_STEPS, LANES = sources.size("ROW_STEPS"), sources.size("LANES")
WARPS = THREADS // LANES


class Cover(ctypes.Structure):
    """``Cover`` of csrc/cuda/sm3_step.cu."""

    _fields_ = [
        ("tiles", ctypes.c_void_p),
        ("minima", ctypes.c_void_p),
        ("maxima", ctypes.c_void_p),
        ("slots", ctypes.c_longlong),
        ("aligned", ctypes.c_longlong),
    ]


@dataclass(frozen=True)
class CoverTables:
    """The layout on the device, one int64 row per ``Tile``, ``Segment``, ``Fold`` and ``Axis`` of sm3_step.cu."""

    tiles: Tensor
    segments: Tensor
    folds: Tensor
    axes: Tensor
    slots: int
    sets: int


@lru_cache(maxsize=64)
def tables(layout_bytes: bytes, device: torch.device) -> CoverTables:
    """The tables of a layout (the bytes of ``state["cover"]``)."""
    layout = covers.decode(torch.frombuffer(bytearray(layout_bytes), dtype=torch.int64))
    sides = _Sides()
    for matrix in layout.matrices:
        sides.add(matrix.row_offset, matrix.rows, matrix.row_axes)
        sides.add(layout.row_size + matrix.col_offset, matrix.cols, matrix.col_axes)
    tiles = [tile for matrix in layout.matrices for tile in _tiles(matrix, layout.row_size)]

    def on_device(rows: list[tuple[int, ...]]) -> Tensor:
        return torch.tensor(rows, dtype=torch.int64, device=device)

    return CoverTables(
        tiles=on_device(tiles),
        segments=on_device(sides.segments),
        folds=on_device(sides.folds),
        axes=on_device(sides.axes),
        slots=layout.row_size + layout.col_size,
        sets=layout.mu_size,
    )


def _tiles(matrix: covers.Matrix, row_size: int) -> Iterator[tuple[int, ...]]:
    """A matrix cut into tiles: rows of `lanes` threads with a quad of columns each."""
    lanes = _lanes(matrix)
    tile_rows, tile_cols = THREADS // lanes * ROW_STEPS, lanes * QUAD
    wide = int(matrix.cols % QUAD == 0 and matrix.offset % QUAD == 0)
    for row in range(0, matrix.rows, tile_rows):
        for col in range(0, matrix.cols, tile_cols):
            row_slot = matrix.row_offset + row if matrix.row_axes else -1
            yield (
                matrix.offset + row * matrix.cols + col,
                matrix.cols,
                min(tile_rows, matrix.rows - row),
                min(tile_cols, matrix.cols - col),
                row_slot,
                row_size + matrix.col_offset + col,
                lanes,
                wide,
            )


def _lanes(matrix: covers.Matrix) -> int:
    """Threads on one row of a tile: a warp at most (then a column meets few atomics), unless there are too few rows to
    keep the block's other warps busy."""
    most = max(LANES, THREADS // _power_of_two(matrix.rows))
    return min(most, _power_of_two(-(-matrix.cols // QUAD)))


def _power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()


class _Sides:
    """Collects segments, folds and axes, side by side of every matrix."""

    def __init__(self) -> None:
        self.segments: list[tuple[int, ...]] = []
        self.folds: list[tuple[int, ...]] = []
        self.axes: list[tuple[int, ...]] = []

    def add(self, slot: int, length: int, axes: tuple[covers.Axis, ...]) -> None:
        for first in range(0, length, THREADS):
            count = min(THREADS, length - first)
            self.segments.append((slot + first, first, count, len(self.axes), len(axes)))
        for axis in axes:
            at_once = THREADS if axis.size == length else WARPS
            for first in range(0, axis.size, at_once):
                self.folds.append((slot, first, min(at_once, axis.size - first), len(self.axes)))
            self.axes.append((axis.mu_offset, axis.size, axis.stride, length))


@dataclass
class Workspace:
    """Minima and maxima (as bits of floats) of one step, each (clients, slots)."""

    tables: CoverTables
    minima: Tensor
    maxima: Tensor


class CoverPasses:
    """The passes of `passes.Passes` for rules with a cover."""

    def open_cover(self, call: ClientCall) -> Workspace:
        layout = tables(call.state["cover"].numpy().tobytes(), call.x.device)
        minima = torch.empty((call.clients, layout.slots), dtype=torch.float32, device=call.x.device)
        workspace = Workspace(layout, minima, torch.empty_like(minima))
        _expand(call, workspace)
        return workspace

    def refresh_cover(self, call: ClientCall, coef: Tensor, cover: Workspace) -> None:
        _walk("sm3_gradient_maxima", call, coef, cover, writes=False)
        _fold("sm3_fold_i", call, coef, cover)
        _expand(call, cover)

    def cover_direction_squares(self, call: ClientCall, coef: Tensor, cover: Workspace) -> Tensor:
        partials = empty_partials(call.clients, len(cover.tables.tiles), call.x.device)
        out = torch.empty(call.clients, dtype=torch.float64, device=call.x.device)
        _walk(f"sm3_squares_{_variant(call)}", call, coef, cover, partials, writes=False)
        fold(partials, out)
        return out

    def cover_update(self, call: ClientCall, coef: Tensor, cover: Workspace) -> None:
        _walk(f"sm3_update_{_variant(call)}", call, coef, cover, writes=True)
        if call.rule.cover == "II":
            _fold("sm3_fold_ii", call, coef, cover)


def _variant(call: ClientCall) -> str:
    assert call.rule.cover is not None
    return f"{call.rule.formula}{'_m' if 'm' in call.state else ''}_{call.rule.cover.lower()}"


def _walk(kernel: str, call: ClientCall, coef: Tensor, cover: Workspace, *partials: Tensor, writes: bool) -> None:
    """One pass over all tiles of all clients."""
    rows, wide = client_arguments.vectors(call, coef, writes=writes)
    t = cover.tables
    work = Cover(t.tiles.data_ptr(), cover.minima.data_ptr(), cover.maxima.data_ptr(), t.slots, int(wide))
    n = client_arguments.numbers(call)
    run("sm3_step", kernel, call.x.device, len(t.tiles), call.clients, rows, n, work, *partials)


def _expand(call: ClientCall, cover: Workspace) -> None:
    """Minima of mu for every row and column; maxima back to zero."""
    t, device = cover.tables, call.x.device
    vectors = (call.state["mu"], cover.minima, cover.maxima)
    sizes = (call.clients, t.sets, t.slots)
    run("sm3_step", "sm3_expand", device, len(t.segments), call.clients, t.segments, t.axes, *vectors, *sizes)


def _fold(kernel: str, call: ClientCall, coef: Tensor, cover: Workspace) -> None:
    """Maxima of rows and columns back onto the axes of mu, where a client refreshes."""
    t, device, n = cover.tables, call.x.device, client_arguments.numbers(call)
    vectors = (coef, call.state["mu"], cover.maxima)
    sizes = (call.clients, t.sets, t.slots)
    run("sm3_step", kernel, device, len(t.folds), call.clients, t.folds, t.axes, *vectors, n, *sizes)
