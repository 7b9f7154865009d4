"""SM3's passes: tensors as matrices, tile by tile, with the smallest and largest moments of rows and columns.

`_expand` turns mu, which is kept per axis, into minima per row and column; the passes over tiles read those and raise
the maxima beside them; `_spread` folds the maxima back onto the axes. Raising a maximum is an atomic operation, which
is exact in any order. It works on the bits: non-negative floats compare like integers, and a NaN is above them all.
"""


# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..phases import ClientCall
from . import tables
from .bound import device, largest, rules
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
    numbers_of,
    refreshed,
)
from .launch import WARPS, launch
from .tables import Form, Tables, tables_of
from .vectors import fold, load, new_partials, store, sum_of_squares

_TILE_WARPS = 2 * WARPS  # 16 elements of a tile per thread
_TILE_FIELDS = tl.constexpr(tables.TILE_FIELDS)
_PIECE_FIELDS = tl.constexpr(tables.PIECE_FIELDS)
_AXIS_FIELDS = tl.constexpr(tables.AXIS_FIELDS)
_SPREAD_FIELDS = tl.constexpr(tables.SPREAD_FIELDS)


# ---- between mu and the sides ---------------------------------------------------------------------------------------


@device
def _entry(table, count, FIELDS: tl.constexpr):
    """This program's client, and where its entry of a table of `count` starts."""
    program = tl.program_id(0)
    return (program // count).to(tl.int64), table + (program % count).to(tl.int64) * FIELDS


@device
def _smaller(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _expand(mu, minima, maxima, pieces, axes, piece_count, sides, mu_size, PIECE: tl.constexpr):
    """One piece of a side: the smallest mu around each of its elements; maxima at zero, ready to be raised."""
    client, entry = _entry(pieces, piece_count, _PIECE_FIELDS)
    side, length, first = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2)
    at = first + tl.arange(0, PIECE)
    mask = at < length
    smallest = tl.full((PIECE,), float("inf"), tl.float32)
    for axis in range(tl.load(entry + 3), tl.load(entry + 4)):
        description = axes + axis * _AXIS_FIELDS
        mu_offset, size, stride = tl.load(description), tl.load(description + 1), tl.load(description + 2)
        index = (at // stride) % size
        smallest = _smaller(smallest, tl.load(mu + client * mu_size + mu_offset + index, mask=mask))
    tl.store(minima + client * sides + side + at, smallest, mask=mask)
    tl.store(maxima + client * sides + side + at, tl.full((PIECE,), 0, tl.int32), mask=mask)


@triton.jit
def _spread(
    mu,
    maxima,
    coef,
    spreads,
    count,
    sides,
    mu_size,
    numbers,
    ACCUMULATES: tl.constexpr,
    INDICES: tl.constexpr,
    POSITIONS: tl.constexpr,
):
    """Some indices of an axis: mu becomes (or accumulates, in SM3-I) the largest maximum of each."""
    client, entry = _entry(spreads, count, _SPREAD_FIELDS)
    if coefficient(coef, client, ACTIVE) * coefficient(coef, client, REFRESH) == 0:
        return
    side, positions, first = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2)
    mu_offset, size, stride = tl.load(entry + 3), tl.load(entry + 4), tl.load(entry + 5)
    index = first + tl.arange(0, INDICES)
    bits = tl.full((INDICES, POSITIONS), 0, tl.int32)
    for begin in range(0, positions, POSITIONS):
        position = begin + tl.arange(0, POSITIONS)
        at = ((position // stride)[None, :] * size + index[:, None]) * stride + (position % stride)[None, :]
        mask = (index < size)[:, None] & (position < positions)[None, :]
        bits = tl.maximum(bits, tl.load(maxima + client * sides + side + at, mask=mask, other=0))
    value = largest(bits, axis=1).to(tl.float32, bitcast=True)
    at = client * mu_size + mu_offset + index
    if ACCUMULATES:
        value = rules.second_moment(load(mu, at, index < size), value, numbers.beta2, numbers.gain2)
        tl.debug_barrier()  # fewer indices than threads: each is read by several and written by one
    store(mu, at, value, index < size)


# ---- passes over tiles ----------------------------------------------------------------------------------------------


@device
def _tile(tiles, count, sides, ROWS: tl.constexpr, COLS: tl.constexpr, ALIGNED: tl.constexpr):
    """This program's client; the elements of its tile, and which exist; the same for the tile's rows and columns."""
    client, entry = _entry(tiles, count, _TILE_FIELDS)
    offset, rows, cols = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2)
    row_side, col_side = tl.load(entry + 3), tl.load(entry + 4)
    first_row, first_col = tl.load(entry + 5), tl.load(entry + 6)
    if ALIGNED:
        offset, cols, first_col = tl.multiple_of(offset, 4), tl.multiple_of(cols, 4), tl.multiple_of(first_col, 4)
    row = first_row + tl.arange(0, ROWS)
    col = first_col + tl.arange(0, COLS)
    at = offset + row[:, None] * cols + col[None, :]
    mask = (row < rows)[:, None] & (col < cols)[None, :]
    start = client * sides
    return client, at, mask, start + row_side + row, row < rows, start + col_side + col, col < cols


@device
def _cover_minimum(minima, row_at, row_mask, col_at, col_mask):
    rows, cols = tl.load(minima + row_at, mask=row_mask), tl.load(minima + col_at, mask=col_mask)
    return _smaller(rows[:, None], cols[None, :])


@device
def _raise_maxima(maxima, value, mask, row_at, row_mask, col_at, col_mask):
    bits = tl.abs(tl.where(mask, value, 0.0)).to(tl.int32, bitcast=True)  # abs: a NaN's sign must not make it small
    tl.atomic_max(maxima + row_at, largest(bits, axis=1), mask=row_mask, sem="relaxed")
    tl.atomic_max(maxima + col_at, largest(bits, axis=0), mask=col_mask, sem="relaxed")


@device
def _covered_moment(smallest, g, nu, numbers, refresh, at, mask, ACCUMULATES: tl.constexpr):
    """The second moment of this step: nu of ``phases.Passes.cover_update``."""
    if ACCUMULATES:
        return smallest
    fresh = refreshed(smallest, g, numbers, refresh)
    if nu is not None:
        fresh = tl.where(refresh != 0, fresh, tl.load(nu + at, mask=mask))
    return fresh


@triton.jit
def _gradient_maxima(
    x,
    source,
    coef,
    maxima,
    tiles,
    count,
    sides,
    size,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    client, at, mask, row_at, row_mask, col_at, col_mask = _tile(tiles, count, sides, ROWS, COLS, ALIGNED)
    if coefficient(coef, client, ACTIVE) * coefficient(coef, client, REFRESH) == 0:
        return
    g = corrected(source, load(x, client * size + at, mask), coef, client, size, at, mask)
    _raise_maxima(maxima, g * g, mask, row_at, row_mask, col_at, col_mask)


@triton.jit
def _cover_direction_squares(
    x,
    source,
    m,
    nu,
    coef,
    numbers,
    minima,
    partials,
    first,
    parts,
    tiles,
    count,
    sides,
    size,
    FORMULA: tl.constexpr,
    ACCUMULATES: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    client, at, mask, row_at, row_mask, col_at, col_mask = _tile(tiles, count, sides, ROWS, COLS, ALIGNED)
    if coefficient(coef, client, ACTIVE) == 0:
        return
    row = client * size
    g = corrected(source, load(x, row + at, mask), coef, client, size, at, mask)
    smallest = _cover_minimum(minima, row_at, row_mask, col_at, col_mask)
    refresh = coefficient(coef, client, REFRESH)
    second = _covered_moment(smallest, g, nu, numbers, refresh, row + at, mask, ACCUMULATES)
    taken, _ = direction(g, load(m, row + at, mask), second, numbers, coef, client, FORMULA)
    tile = tl.program_id(0) % count
    tl.store(partials + client * parts + first + tile, sum_of_squares(taken, mask))


@triton.jit
def _cover_update(
    x,
    source,
    m,
    nu,
    coef,
    numbers,
    minima,
    maxima,
    tiles,
    count,
    sides,
    size,
    FORMULA: tl.constexpr,
    ACCUMULATES: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    client, at, mask, row_at, row_mask, col_at, col_mask = _tile(tiles, count, sides, ROWS, COLS, ALIGNED)
    if coefficient(coef, client, ACTIVE) == 0:
        return
    row = client * size
    start = tl.load(x + row + at, mask=mask)
    g = corrected(source, start, coef, client, size, at, mask)
    smallest = _cover_minimum(minima, row_at, row_mask, col_at, col_mask)
    refresh = coefficient(coef, client, REFRESH)
    second = _covered_moment(smallest, g, nu, numbers, refresh, row + at, mask, ACCUMULATES)
    taken, moment = direction(g, load(m, row + at, mask), second, numbers, coef, client, FORMULA)
    store(x, row + at, rules.moved(start, taken, coefficient(coef, client, STEP)), mask)
    store(m, row + at, moment, mask)
    if not ACCUMULATES and refresh != 0:
        store(nu, row + at, second, mask)
        _raise_maxima(maxima, second, mask, row_at, row_mask, col_at, col_mask)


# ---- the passes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cover:
    """The working form of mu: minima (float32) and maxima (bits) of all sides, (clients, sides)."""

    tables: Tables
    minima: Tensor
    maxima: Tensor

    def expand(self, mu: Tensor) -> None:
        """Minima from mu, maxima at zero."""
        t, clients = self.tables, mu.shape[0]
        count = t.pieces.shape[0]
        args = (mu, self.minima, self.maxima, t.pieces, t.axes, count, t.sides, t.mu_size)
        launch(_expand, clients * count, mu, *args, PIECE=tables.PIECE)

    def spread(self, call: ClientCall, coef: Tensor) -> None:
        """Mu from the maxima, where clients refresh."""
        t, mu, accumulates = self.tables, call.state["mu"], call.rule.cover == "I"
        for form in t.spreads:
            args = (mu, self.maxima, coef, form.table, form.count, t.sides, t.mu_size, numbers_of(call))
            shape = {"INDICES": form.shape[0], "POSITIONS": form.shape[1]}
            launch(_spread, call.clients * form.count, mu, *args, ACCUMULATES=accumulates, **shape)

    def over_tiles(self, kernel: Any, call: ClientCall, form: Form, *args: Any, **constants: Any) -> None:
        """Launches `kernel` over the tiles of one form, of every client."""
        shape = {"ROWS": form.shape[0], "COLS": form.shape[1], "ALIGNED": form.aligned}
        place = (form.table, form.count, self.tables.sides, call.x.shape[1])
        programs = call.clients * form.count
        launch(kernel, programs, call.x, *args, *place, **constants, **shape, warps=_TILE_WARPS)


def _rule(call: ClientCall) -> dict[str, Any]:
    return {"FORMULA": formula_of(call), "ACCUMULATES": call.rule.cover == "I"}


def open_cover(call: ClientCall) -> Cover:
    """The cover of the call's state, expanded; in SM3-I too, because its maxima start at zero."""
    mu, t = call.state["mu"], tables_of(call.state["cover"], call.x.device)
    minima = mu.new_empty((call.clients, t.sides))
    cover = Cover(t, minima, torch.empty_like(minima, dtype=torch.int32))
    cover.expand(mu)
    return cover


def refresh_cover(call: ClientCall, coef: Tensor, cover: Cover) -> None:
    """SM3-I: mu accumulates the largest squares of the gradient, before anything reads its minima."""
    x = call.x if gradient_needs_x(call) else None
    for form in cover.tables.tiles:
        cover.over_tiles(_gradient_maxima, call, form, x, gradient_of(call), coef, cover.maxima)
    cover.spread(call, coef)
    cover.expand(call.state["mu"])


def direction_squares(call: ClientCall, coef: Tensor, cover: Cover) -> Tensor:
    """Sum of squares of the direction, over the tensors (not the gaps between them)."""
    partials = new_partials(call.x, cover.tables.tile_count)
    x = call.x if gradient_needs_x(call) else None
    m, nu = call.state.get("m"), call.state.get("nu")
    for form in cover.tables.tiles:
        parts = (partials, form.first, partials.shape[1])
        args = (x, gradient_of(call), m, nu, coef, numbers_of(call), cover.minima, *parts)
        cover.over_tiles(_cover_direction_squares, call, form, *args, **_rule(call))
    return fold(partials)


def update(call: ClientCall, coef: Tensor, cover: Cover) -> None:
    """x and m, and in SM3-II where clients refresh, nu and mu."""
    m, nu = call.state.get("m"), call.state.get("nu")
    for form in cover.tables.tiles:
        args = (call.x, gradient_of(call), m, nu, coef, numbers_of(call), cover.minima, cover.maxima)
        cover.over_tiles(_cover_update, call, form, *args, **_rule(call))
    if call.rule.cover == "II":
        cover.spread(call, coef)
