"""What becomes of a parameter's gradient, a tile of it in registers: kept, or used up at once by the client rule.

Every kernel that makes gradients of parameters ends in `settle`. Under rules that look at one element at a time (and
under SM3, whose maxima are raised by atomic operations) the gradient never reaches memory.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import triton.language as tl

from ...sink import Sink
from ..compiled import device, largest, rules
from ..cover_step import bits_of, covered_moment, minimum_around, raise_around, smaller_of_sides
from ..gradient import REFRESH, STEP, coefficient, correct, direction, refreshed
from ..vectors import load, store

__all__ = ["Rule", "Sink", "settle"]  # engine files take all three from here


class Rule(NamedTuple):
    """The compiled part of a sink: the rule's formula, None where gradients are kept."""

    formula: Any = None

    @property
    def constants(self) -> dict[str, Any]:
        return {"FORMULA": self.formula}


@device
def _cover_minimum(
    sink, place, client, row, row_mask, col, col_mask, ROWS: tl.constexpr, COLS: tl.constexpr
):  # fmt: skip
    """The smallest mu of the sets that each element of a tile is in."""
    mu, r, c = sink.mu + client * sink.mu_size, row.to(tl.int64), col.to(tl.int64)
    by_row = minimum_around(mu, sink.axes, r, row_mask, place.rows, place.row_first, place.row_end, ROWS)
    by_col = minimum_around(mu, sink.axes, c, col_mask, place.cols, place.col_first, place.col_end, COLS)
    return smaller_of_sides(by_row, by_col)


@device
def _raise_maxima(sink, place, client, value, mask, row, row_mask, col, col_mask):
    """Every maximum over a set that has elements in a tile, to at least their `value`."""
    maxima, bits = sink.maxima + client * sink.mu_size, bits_of(value, mask)
    r, c = row.to(tl.int64), col.to(tl.int64)
    of_rows, of_cols = largest(bits, axis=1), largest(bits, axis=0)
    raise_around(maxima, sink.axes, r, row_mask, place.rows, place.row_first, place.row_end, of_rows)
    raise_around(maxima, sink.axes, c, col_mask, place.cols, place.col_first, place.col_end, of_cols)


@device
def settle(
    sink, coef, place, g, start, client, row, row_mask, col, col_mask, COLS: tl.constexpr, FORMULA: tl.constexpr,
    ADD: tl.constexpr, SMALL: tl.constexpr,
):  # fmt: skip
    """A tile `g` of the gradient of a matrix with `COLS` columns, at `row` and `col` of it; `start` is the same tile of
    the parameter. The parameter afterwards. `ADD`: another kernel has put a part of the gradient there already.

    `SMALL`: the tile has fewer elements than the program threads, so that several threads read each, and one writes: a
    barrier lets all of them read first."""
    ROWS: tl.constexpr = g.shape[0]
    TILE_COLS: tl.constexpr = g.shape[1]
    mask = row_mask[:, None] & col_mask[None, :]
    at = place.offset + row[:, None] * COLS + col[None, :]
    element = client * sink.size + at
    if FORMULA is None:
        if ADD:
            g = tl.load(sink.grad + element, mask=mask, other=0.0) + g
            if SMALL:
                tl.debug_barrier()
        tl.store(sink.grad + element, g, mask=mask)
        return start
    else:
        g = correct(sink, g, start, coef, client, at, mask)
        second = 0.0
        if sink.v is not None:
            second = refreshed(load(sink.v, element, mask), g, sink, coefficient(coef, client, REFRESH))
        if sink.mu is not None:
            smallest = _cover_minimum(sink, place, client, row, row_mask, col, col_mask, ROWS, TILE_COLS)
            refresh = coefficient(coef, client, REFRESH)
            second = covered_moment(smallest, g, sink.nu, sink, refresh, element, mask, False)
        taken, first = direction(g, load(sink.m, element, mask), second, sink, coef, client, FORMULA)
        end = rules.moved(start, taken, coefficient(coef, client, STEP))
        if SMALL:
            tl.debug_barrier()
        tl.store(sink.x + element, end, mask=mask)
        store(sink.m, element, first, mask)
        if sink.v is not None:
            if coefficient(coef, client, REFRESH) != 0:
                tl.store(sink.v + element, second, mask=mask)
        if sink.mu is not None:
            if coefficient(coef, client, REFRESH) != 0:
                store(sink.nu, element, second, mask)
                _raise_maxima(sink, place, client, second, mask, row, row_mask, col, col_mask)
        return end
