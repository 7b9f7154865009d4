"""SM3's cover of packed tensors: one set per index of every axis, and how any rank becomes a matrix.

The layout travels inside the optimizer state as one int64 tensor, so that a saved state is complete. It holds the
size of the packed vector, then per tensor ``offset, mu_offset, split, rank, size_0 .. size_{rank-1}``: where the tensor
starts in the packed vector, where its per-axis vectors start in ``mu`` (they follow each other, axis by axis), and how
many leading axes count as rows.

A tensor of any rank is worked as a matrix: its leading `split` axes flattened into rows, the rest into columns. The
smallest cover value at (row, column) is then min(row_min[row], col_min[column]), and maxima over rows and columns fold
back onto the axes, so one matrix kernel serves every rank. Rank 0 and 1 are one row of singletons (then SM3 is
AdaGrad): no row axis, row_min = inf.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from . import check


@dataclass(frozen=True)
class Axis:
    """One axis inside its side (rows or columns): index i on the axis is ``(flat // stride) % size``."""

    mu_offset: int
    size: int
    stride: int


@dataclass(frozen=True)
class Matrix:
    """One tensor as a matrix; `row_offset` and `col_offset` place its row and column vectors among all tensors'."""

    offset: int
    rows: int
    cols: int
    row_offset: int
    col_offset: int
    row_axes: tuple[Axis, ...]
    col_axes: tuple[Axis, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """All tensors of a packed vector of `size` numbers."""

    size: int
    matrices: tuple[Matrix, ...]
    mu_size: int
    row_size: int
    col_size: int


class Spans(NamedTuple):
    """Where a matrix's axes stand among those of all, one behind the other: of its rows, then of its columns."""

    row_first: int
    row_end: int
    col_first: int
    col_end: int


def axis_spans(layout: Layout) -> list[Spans]:
    """The spans of every matrix."""
    spans, first = [], 0
    for matrix in layout.matrices:
        middle = first + len(matrix.row_axes)
        spans.append(Spans(first, middle, middle, middle + len(matrix.col_axes)))
        first = spans[-1].col_end
    return spans


def encode(size: int, offsets: Sequence[int], shapes: Sequence[tuple[int, ...]]) -> Tensor:
    """The layout tensor of tensors with these `shapes`, starting at `offsets` of a packed vector of `size` numbers."""
    numbers: list[int] = [size]
    mu_offset = 0
    for offset, shape in zip(offsets, shapes, strict=True):
        axes = tuple(shape) if len(shape) >= 2 else (math.prod(shape),)
        if 0 in axes:
            continue  # no coordinate, no set
        numbers += [offset, mu_offset, _best_split(axes), len(axes), *axes]
        mu_offset += sum(axes)
    return torch.tensor(numbers, dtype=torch.int64)


def _best_split(axes: tuple[int, ...]) -> int:
    """The split with the shortest row and column vectors, the longer columns where two are equal."""
    if len(axes) < 2:
        return 0
    splits = range(1, len(axes))
    return min(splits, key=lambda split: (math.prod(axes[:split]) + math.prod(axes[split:]), split))


def decode(cover: Tensor) -> Layout:
    """The layout that `encode` wrote; cached by content."""
    return _decode(cover.numpy().tobytes())


def check_state(state: Mapping[str, Tensor], x: Tensor) -> None:
    """An SM3 state is one for vectors like x, and its mu has a number for every set."""
    if "sets" in state:
        sets, size = int(state["sets"][0].max()) + 1, int(state["sets"][1].max()) + 1
    else:
        layout = decode(state["cover"])
        sets, size = layout.mu_size, layout.size
    if size != x.shape[-1]:
        raise ValueError(f"state: its cover is one of {size} numbers, x has {x.shape[-1]}")
    check.like("state['mu']", state["mu"], x, (*x.shape[:-1], sets))


@lru_cache(maxsize=64)
def _decode(raw: bytes) -> Layout:
    numbers = torch.frombuffer(bytearray(raw), dtype=torch.int64).tolist()
    matrices: list[Matrix] = []
    at, mu_end, row_offset, col_offset = 1, 0, 0, 0
    while at < len(numbers):
        offset, mu_offset, split, rank = numbers[at : at + 4]
        shape = tuple(numbers[at + 4 : at + 4 + rank])
        at += 4 + rank
        rows, row_axes = _side(shape[:split], mu_offset)
        cols, col_axes = _side(shape[split:], mu_offset + sum(shape[:split]))
        matrices.append(Matrix(offset, rows, cols, row_offset, col_offset, row_axes, col_axes, shape))
        row_offset += rows
        col_offset += cols
        mu_end = mu_offset + sum(shape)
    return Layout(numbers[0], tuple(matrices), mu_end, row_offset, col_offset)


def _side(sizes: tuple[int, ...], mu_offset: int) -> tuple[int, tuple[Axis, ...]]:
    axes = []
    for i, size in enumerate(sizes):
        axes.append(Axis(mu_offset, size, math.prod(sizes[i + 1 :])))
        mu_offset += size
    return math.prod(sizes), tuple(axes)


@dataclass
class Workspace:
    """The row and column vectors of one step, each (clients, all tensors' rows or columns)."""

    layout: Layout
    row_min: Tensor
    col_min: Tensor
    row_max: Tensor
    col_max: Tensor


def expand(mu: Tensor, layout: Layout) -> Workspace:
    """Row and column minima of `mu` (clients, mu_size), and maxima at zero ready to be raised."""
    clients = mu.shape[0]
    row_min = mu.new_full((clients, layout.row_size), math.inf)
    col_min = mu.new_full((clients, layout.col_size), math.inf)
    for matrix in layout.matrices:
        _expand_side(mu, matrix.row_axes, row_min[:, matrix.row_offset : matrix.row_offset + matrix.rows])
        _expand_side(mu, matrix.col_axes, col_min[:, matrix.col_offset : matrix.col_offset + matrix.cols])
    return Workspace(layout, row_min, col_min, torch.zeros_like(row_min), torch.zeros_like(col_min))


def _expand_side(mu: Tensor, axes: tuple[Axis, ...], out: Tensor) -> None:
    grid = out.unflatten(1, [axis.size for axis in axes]) if axes else out
    for position, axis in enumerate(axes):
        torch.minimum(grid, _along(mu, axis, position, len(axes)), out=grid)


def _along(mu: Tensor, axis: Axis, position: int, rank: int) -> Tensor:
    """One axis vector of mu, shaped to broadcast along its position in a side of `rank` axes."""
    shape = [mu.shape[0]] + [1] * rank
    shape[position + 1] = axis.size
    return mu[:, axis.mu_offset : axis.mu_offset + axis.size].view(shape)


def fold(workspace: Workspace, mu_size: int) -> Tensor:
    """The maxima of `workspace` over every cover set, in mu's layout: (clients, mu_size)."""
    maxima = workspace.row_max.new_empty((workspace.row_max.shape[0], mu_size))
    for matrix in workspace.layout.matrices:
        _fold_side(workspace.row_max[:, matrix.row_offset : matrix.row_offset + matrix.rows], matrix.row_axes, maxima)
        _fold_side(workspace.col_max[:, matrix.col_offset : matrix.col_offset + matrix.cols], matrix.col_axes, maxima)
    return maxima


def _fold_side(side: Tensor, axes: tuple[Axis, ...], maxima: Tensor) -> None:
    if not axes:
        return
    grid = side.unflatten(1, [axis.size for axis in axes])
    for position, axis in enumerate(axes):
        others = [1 + other for other in range(len(axes)) if other != position]
        reduced = grid.amax(dim=others) if others else grid
        maxima[:, axis.mu_offset : axis.mu_offset + axis.size] = reduced
