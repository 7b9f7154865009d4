"""SM3's passes: tensors as matrices, tile by tile.

A tile reads mu, which is kept per axis, along its rows and columns, and raises maxima beside mu: an atomic operation,
which is exact in any order. It works on the bits: non-negative floats compare like integers, and a NaN is above them
all. `_settle` then takes the maxima over into mu. A step is these two launches, whatever the tensors; SM3-I, which
refreshes mu before anything reads it, is three.
"""


# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..client_call import ClientCall
from . import cover_tables
from .compiled import device, largest, rules
from .cover_tables import CoverTables, tables_of
from .gradient import (
    ACTIVE,
    REFRESH,
    STEP,
    coefficient,
    corrected,
    direction,
    formula_of,
    gradient_needs_x,
    gradient_of,
    refreshed,
)
from .launch import launch
from .tiles import MATRIX_TILE, ROW_TILE, WARPS, block_for, blocks_of
from .vectors import fold, load, new_partials, place, store, sum_of_squares

_TILE_WARPS = 2 * WARPS
_TILE_REGISTERS = 80  # a limit: without one the assembler aims at 64 and spills
_TILE_FIELDS = tl.constexpr(cover_tables.TILE_FIELDS)
_AXIS_FIELDS = tl.constexpr(cover_tables.AXIS_FIELDS)
_ALIGNED, _ODD, _ROW = (tl.constexpr(form) for form in (cover_tables.ALIGNED, cover_tables.ODD, cover_tables.ROW))
_TILE_ROWS, _TILE_COLS = (tl.constexpr(size) for size in MATRIX_TILE)
_ROW_COLS = tl.constexpr(ROW_TILE[1])


# ---- a tile, its rows and its columns -------------------------------------------------------------------------------


@device
def _tile(entry, ROWS: tl.constexpr, COLS: tl.constexpr, ALIGNED: tl.constexpr):
    """The elements of a tile, which of them exist, and its two sides, the rows and the columns.

    A side is (its elements, which of them exist, where the table says its length in the tensor and its axes).
    """
    offset, first_row, first_col = tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
    rows, cols = tl.load(entry + 4), tl.load(entry + 7)
    if ALIGNED:
        offset, cols, first_col = tl.multiple_of(offset, 4), tl.multiple_of(cols, 4), tl.multiple_of(first_col, 4)
    row = first_row + tl.arange(0, ROWS)
    col = first_col + tl.arange(0, COLS)
    at = offset + row[:, None] * cols + col[None, :]
    mask = (row < rows)[:, None] & (col < cols)[None, :]
    return at, mask, (row, row < rows, entry + 4), (col, col < cols, entry + 7)


@device
def _places(axes, axis, at, length):
    """Where the numbers of an axis lie in mu for the elements `at` of its side, rows or columns, of `length`."""
    description = axes + axis * _AXIS_FIELDS
    mu_offset, size, stride = tl.load(description), tl.load(description + 1), tl.load(description + 2)
    index = at
    if size < length:  # the axis shares its side with others; such sides are short
        index = ((at.to(tl.int32) // stride.to(tl.int32)) % size.to(tl.int32)).to(tl.int64)
    return mu_offset + index


@device
def _smaller(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@device
def minimum_around(mu, axes, at, mask, length, first, end, SIZE: tl.constexpr):
    """The smallest mu around each element `at` of a side of `length`, over its axes [first, end); infinity, if there is
    none."""
    smallest = tl.full((SIZE,), float("inf"), tl.float32)
    for axis in range(first, end):
        smallest = _smaller(smallest, tl.load(mu + _places(axes, axis, at, length), mask=mask))
    return smallest


@device
def raise_around(maxima, axes, at, mask, length, first, end, bits):
    """The maxima around each element `at` of a side, to at least its `bits`."""
    for axis in range(first, end):
        tl.atomic_max(maxima + _places(axes, axis, at, length), bits, mask=mask, sem="relaxed")


@device
def smaller_of_sides(by_row, by_col):
    """The smallest of a tile's rows and columns, element by element."""
    return _smaller(by_row[:, None], by_col[None, :])


@device
def bits_of(value, mask):
    """Non-negative numbers as integers in the same order, 0 where there is none."""
    return tl.abs(tl.where(mask, value, 0.0)).to(tl.int32, bitcast=True)  # abs: a NaN's sign must not make it small


@device
def _side_minimum(mu, axes, side, SIZE: tl.constexpr):
    at, mask, described = side
    length, first, end = tl.load(described), tl.load(described + 1), tl.load(described + 2)
    return minimum_around(mu, axes, at, mask, length, first, end, SIZE)


@device
def _cover_minimum(mu, axes, of_rows, of_cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    """The smallest mu of the sets that each element of the tile is in."""
    return smaller_of_sides(_side_minimum(mu, axes, of_rows, ROWS), _side_minimum(mu, axes, of_cols, COLS))


@device
def _raise_side(maxima, axes, side, bits):
    at, mask, described = side
    length, first, end = tl.load(described), tl.load(described + 1), tl.load(described + 2)
    raise_around(maxima, axes, at, mask, length, first, end, bits)


@device
def _raise_maxima(maxima, axes, value, mask, of_rows, of_cols):
    """Every maximum over a set that has elements in the tile, to at least their `value`."""
    bits = bits_of(value, mask)
    _raise_side(maxima, axes, of_rows, largest(bits, axis=1))
    _raise_side(maxima, axes, of_cols, largest(bits, axis=0))


@device
def covered_moment(smallest, g, nu, numbers, refresh, at, mask, ACCUMULATES: tl.constexpr):
    """The second moment of this step: nu of ``passes.Passes.cover_update``."""
    if ACCUMULATES:
        return smallest
    fresh = refreshed(smallest, g, numbers, refresh)
    if nu is not None:
        fresh = tl.where(refresh != 0, fresh, tl.load(nu + at, mask=mask))
    return fresh


# ---- passes over tiles ----------------------------------------------------------------------------------------------


class Work(NamedTuple):
    """What the passes over tiles read and write; None where a pass has no use for it."""

    x: Tensor | None
    m: Tensor | None
    nu: Tensor | None
    coef: Tensor
    mu: Tensor
    maxima: Tensor | None
    partials: Tensor | None  # (clients, tiles)
    axes: Tensor
    mu_size: int
    size: int


@device
def _raise_by_gradient(
    client,
    entry,
    tile,
    count,
    w,
    source,
    numbers,
    FORMULA: tl.constexpr,
    ACCUMULATES: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """The maxima rise to the squares of the gradient, where the client refreshes."""
    if coefficient(w.coef, client, REFRESH) != 0:
        at, mask, of_rows, of_cols = _tile(entry, ROWS, COLS, ALIGNED)
        g = corrected(source, load(w.x, client * w.size + at, mask), w.coef, client, w.size, at, mask)
        _raise_maxima(w.maxima + client * w.mu_size, w.axes, g * g, mask, of_rows, of_cols)


@device
def _sum_direction(
    client,
    entry,
    tile,
    count,
    w,
    source,
    numbers,
    FORMULA: tl.constexpr,
    ACCUMULATES: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """The tile's share in the squares of the direction; nothing else is written."""
    at, mask, of_rows, of_cols = _tile(entry, ROWS, COLS, ALIGNED)
    start = client * w.size
    g = corrected(source, load(w.x, start + at, mask), w.coef, client, w.size, at, mask)
    mu = w.mu + client * w.mu_size
    smallest = _cover_minimum(mu, w.axes, of_rows, of_cols, ROWS, COLS)
    refresh = coefficient(w.coef, client, REFRESH)
    second = covered_moment(smallest, g, w.nu, numbers, refresh, start + at, mask, ACCUMULATES)
    taken, _ = direction(g, load(w.m, start + at, mask), second, numbers, w.coef, client, FORMULA)
    tl.store(w.partials + client * count + tile, sum_of_squares(taken, mask))


@device
def _update(
    client,
    entry,
    tile,
    count,
    w,
    source,
    numbers,
    FORMULA: tl.constexpr,
    ACCUMULATES: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """x and m, and in SM3-II, where the client refreshes, nu and the maxima."""
    at, mask, of_rows, of_cols = _tile(entry, ROWS, COLS, ALIGNED)
    start = client * w.size
    x = tl.load(w.x + start + at, mask=mask)
    g = corrected(source, x, w.coef, client, w.size, at, mask)
    mu = w.mu + client * w.mu_size
    smallest = _cover_minimum(mu, w.axes, of_rows, of_cols, ROWS, COLS)
    refresh = coefficient(w.coef, client, REFRESH)
    second = covered_moment(smallest, g, w.nu, numbers, refresh, start + at, mask, ACCUMULATES)
    taken, moment = direction(g, load(w.m, start + at, mask), second, numbers, w.coef, client, FORMULA)
    store(w.x, start + at, rules.moved(x, taken, coefficient(w.coef, client, STEP)), mask)
    store(w.m, start + at, moment, mask)
    if not ACCUMULATES and refresh != 0:
        store(w.nu, start + at, second, mask)
        _raise_maxima(w.maxima + client * w.mu_size, w.axes, second, mask, of_rows, of_cols)


@triton.jit
def _cover_pass(
    w,
    source,
    numbers,
    tiles,
    count,
    PASS: tl.constexpr,
    FORMULA: tl.constexpr,
    ACCUMULATES: tl.constexpr,
    HAS_ALIGNED: tl.constexpr,
    HAS_ODD: tl.constexpr,
    HAS_ROW: tl.constexpr,
):
    """PASS over one tile, in the shape of its form; forms that the layout lacks are not compiled in."""
    tile = tl.program_id(0) % count
    client, entry = (tl.program_id(0) // count).to(tl.int64), tiles + tile.to(tl.int64) * _TILE_FIELDS
    if coefficient(w.coef, client, ACTIVE) == 0:
        return
    form = tl.load(entry)
    if HAS_ALIGNED:
        if form == _ALIGNED:
            PASS(client, entry, tile, count, w, source, numbers, FORMULA, ACCUMULATES, _TILE_ROWS, _TILE_COLS, True)
    if HAS_ODD:
        if form == _ODD:
            PASS(client, entry, tile, count, w, source, numbers, FORMULA, ACCUMULATES, _TILE_ROWS, _TILE_COLS, False)
    if HAS_ROW:
        if form == _ROW:
            PASS(client, entry, tile, count, w, source, numbers, FORMULA, ACCUMULATES, 1, _ROW_COLS, False)


@triton.jit
def _settle(
    mu, maxima, coef, numbers, size, ACCUMULATES: tl.constexpr, RESETS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Where clients refresh, mu becomes the maxima, or in SM3-I accumulates them; with RESETS the maxima begin again
    at zero."""
    client, at, mask = place(size, BLOCK)
    if coefficient(coef, client, ACTIVE) * coefficient(coef, client, REFRESH) == 0:
        return
    at += client * size
    value = tl.load(maxima + at, mask=mask).to(tl.float32, bitcast=True)
    if RESETS:
        tl.store(maxima + at, 0, mask=mask)
    if ACCUMULATES:
        value = rules.second_moment(load(mu, at, mask), value, numbers.beta2, numbers.gain2)
    store(mu, at, value, mask)


# ---- the passes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cover:
    """What the passes of a step share: the tables, and the maxima (bits) that will become mu, (clients, mu_size)."""

    tables: CoverTables
    maxima: Tensor

    def over_tiles(
        self, work: Any, call: ClientCall, coef: Tensor, x: Tensor | None, partials: Tensor | None = None
    ) -> None:
        """Launches a pass over all tiles of all clients."""
        t, state = self.tables, call.state
        w = Work(
            x=x,
            m=state.get("m"),
            nu=state.get("nu"),
            coef=coef,
            mu=state["mu"],
            maxima=self.maxima,
            partials=partials,
            axes=t.axes,
            mu_size=t.mu_size,
            size=call.x.shape[1],
        )
        args = (w, gradient_of(call), call.numbers.scalars, t.tiles, t.tile_count)
        constants = {"FORMULA": formula_of(call), "ACCUMULATES": _accumulates(call), **t.has}
        launch(
            _cover_pass,
            call.clients * t.tile_count,
            call.x,
            *args,
            PASS=work,
            **constants,
            warps=_TILE_WARPS,
            registers=_TILE_REGISTERS,
        )

    def settle(self, call: ClientCall, coef: Tensor, resets: bool = False) -> None:
        """Mu from the maxima, where clients refresh; with `resets` the maxima are then zero again."""
        size = self.tables.mu_size
        args = (call.state["mu"], self.maxima, coef, call.numbers.scalars, size)
        programs = call.clients * blocks_of(size)
        constants = {"ACCUMULATES": _accumulates(call), "RESETS": resets, "BLOCK": block_for(size)}
        launch(_settle, programs, call.x, *args, **constants)


def _accumulates(call: ClientCall) -> bool:
    return call.rule.cover == "I"


def _x_of_gradient(call: ClientCall) -> Tensor | None:
    return call.x if gradient_needs_x(call) else None


def open_cover(call: ClientCall) -> Cover:
    """The cover of the call's state, its maxima at zero."""
    mu = call.state["mu"]
    return Cover(tables_of(call.state["cover"], call.x.device), torch.zeros_like(mu, dtype=torch.int32))


def refresh_cover(call: ClientCall, coef: Tensor, cover: Cover) -> None:
    """SM3-I: mu accumulates the largest squares of the gradient, before anything reads it."""
    cover.over_tiles(_raise_by_gradient, call, coef, _x_of_gradient(call))
    cover.settle(call, coef)


def direction_squares(call: ClientCall, coef: Tensor, cover: Cover) -> Tensor:
    """Sum of squares of the direction, over the tensors (not the gaps between them)."""
    partials = new_partials(call.x, cover.tables.tile_count)
    cover.over_tiles(_sum_direction, call, coef, _x_of_gradient(call), partials)
    return fold(partials)


def update(call: ClientCall, coef: Tensor, cover: Cover) -> None:
    """x and m, and in SM3-II where clients refresh, nu and mu."""
    cover.over_tiles(_update, call, coef, call.x)
    if not _accumulates(call):
        cover.settle(call, coef)
