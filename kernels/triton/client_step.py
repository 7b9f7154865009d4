"""One client step: the passes of ``passes.py`` over vectors, and those of SM3 handed on to `cover_step`."""


# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from .. import passes
from ..client_call import ClientCall
from . import cover_step
from .compiled import rules
from .cover_step import Cover
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
from .tiles import block_for, blocks_of
from .vectors import fold, load, new_partials, place, store, sum_of_squares


@triton.jit
def _gradient_squares(x, source, before, coef, partials, size, BLOCK: tl.constexpr):
    client, at, mask = place(size, BLOCK)
    if coefficient(coef, client, ACTIVE) == 0:
        return
    row = client * size
    g = corrected(source, load(x, row + at, mask), coef, client, size, at, mask)
    if before is not None:
        g = rules.change(g, load(before, row + at, mask))
    tl.store(partials + tl.program_id(0), sum_of_squares(g, mask))


@triton.jit
def _direction_squares(x, source, m, v, coef, numbers, partials, size, FORMULA: tl.constexpr, BLOCK: tl.constexpr):
    client, at, mask = place(size, BLOCK)
    if coefficient(coef, client, ACTIVE) == 0:
        return
    row = client * size
    g = corrected(source, load(x, row + at, mask), coef, client, size, at, mask)
    second = refreshed(load(v, row + at, mask), g, numbers, coefficient(coef, client, REFRESH))
    taken, _ = direction(g, load(m, row + at, mask), second, numbers, coef, client, FORMULA)
    tl.store(partials + tl.program_id(0), sum_of_squares(taken, mask))


@triton.jit
def _update(x, source, m, v, kept_gradient, coef, numbers, partials, size, FORMULA: tl.constexpr, BLOCK: tl.constexpr):
    client, at, mask = place(size, BLOCK)
    if coefficient(coef, client, ACTIVE) == 0:
        return
    row = client * size
    start = tl.load(x + row + at, mask=mask)
    g = corrected(source, start, coef, client, size, at, mask)
    second = load(v, row + at, mask)
    refresh = 0.0
    if v is not None:
        refresh = coefficient(coef, client, REFRESH)
        second = refreshed(second, g, numbers, refresh)
    taken, first = direction(g, load(m, row + at, mask), second, numbers, coef, client, FORMULA)
    end = rules.moved(start, taken, coefficient(coef, client, STEP))
    store(x, row + at, end, mask)
    store(m, row + at, first, mask)
    if refresh != 0:
        store(v, row + at, second, mask)
    store(kept_gradient, row + at, g, mask)
    if partials is not None:
        tl.store(partials + tl.program_id(0), sum_of_squares(rules.change(end, start), mask))


class TritonPasses:
    """`passes.Passes` as kernels."""

    def gradient_squares(self, call: ClientCall, coef: Tensor) -> Tensor:
        return self._gradient_squares(call, coef, None)

    def change_squares(self, call: ClientCall, coef: Tensor) -> Tensor:
        return self._gradient_squares(call, coef, call.gradient_before)

    def _gradient_squares(self, call: ClientCall, coef: Tensor, before: Tensor | None) -> Tensor:
        partials = new_partials(call.x)
        x = call.x if gradient_needs_x(call) else None
        _over_blocks(_gradient_squares, call, x, gradient_of(call), before, coef, partials)
        return fold(partials)

    def direction_squares(self, call: ClientCall, coef: Tensor) -> Tensor:
        partials = new_partials(call.x)
        x = call.x if gradient_needs_x(call) else None
        m, v = call.state.get("m"), call.state.get("v")
        args = (x, gradient_of(call), m, v, coef, call.numbers.scalars, partials)
        _over_blocks(_direction_squares, call, *args, FORMULA=formula_of(call))
        return fold(partials)

    def update(self, call: ClientCall, coef: Tensor) -> Tensor | None:
        partials = new_partials(call.x) if call.rule.step_size == "delta_sgd" else None
        m, v, kept_gradient = (call.state.get(name) for name in ("m", "v", "grad_prev"))
        args = (call.x, gradient_of(call), m, v, kept_gradient, coef, call.numbers.scalars, partials)
        _over_blocks(_update, call, *args, FORMULA=formula_of(call))
        return None if partials is None else fold(partials)

    def open_cover(self, call: ClientCall) -> Cover:
        return cover_step.open_cover(call)

    def refresh_cover(self, call: ClientCall, coef: Tensor, cover: Cover) -> None:
        cover_step.refresh_cover(call, coef, cover)

    def cover_direction_squares(self, call: ClientCall, coef: Tensor, cover: Cover) -> Tensor:
        return cover_step.direction_squares(call, coef, cover)

    def cover_update(self, call: ClientCall, coef: Tensor, cover: Cover) -> None:
        cover_step.update(call, coef, cover)


def _over_blocks(kernel: Any, call: ClientCall, *args: Any, **constants: Any) -> None:
    """Launches `kernel` over every block of every client."""
    clients, d = call.x.shape
    launch(kernel, clients * blocks_of(d), call.x, *args, d, **constants, BLOCK=block_for(d))


def client_step(call: ClientCall) -> None:
    passes.client_step(TritonPasses(), call)
