"""One client step, chunk by chunk. Rules with a cover (SM3) go tile by tile instead; ``covers.py`` has the tiles.

A pass that measures runs the very code of the pass that writes, on copies of what it would write.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from .. import covers, passes
from ..client_call import ClientCall
from ..passes import ACTIVE, KEEP, REFRESH, ROOT_SCALE, SCALE, STEP
from ..table import DirectionScalars
from ..torch_rules import rules as torch_rules
from . import covers as tiling
from .compiled import (
    Array,
    add_in_order,
    chunks_of,
    floats,
    jit,
    launch,
    matrix,
    parallel,
    partials_of,
    piece,
    rules,
    span_of,
    square_sum,
)

# What the gradient is made of, each (clients, d) or (1, d) or, where the call does without, no row at all: grad,
# anchor, correction; and the numbers weight_decay, prox. Passed on as one tuple, because every pass needs all of it.
Sources = tuple[Array, Array, Array, np.float32, np.float32]

_change, _moved = rules.change, rules.moved
_corrected_gradient, _second_moment = rules.corrected_gradient, rules.second_moment


# ---- loops over one chunk -------------------------------------------------------------------------------------------


@jit
def _correct(
    out: Array, grad: Array, x: Array, anchor: Array, correction: Array, decay: Any, prox: Any, scale: Any
) -> None:
    for i in range(out.size):
        out[i] = _corrected_gradient(grad[i], x[i], anchor[i], correction[i], decay, prox, scale)


@jit
def _gradient(sources: Sources, x: Array, client: int, begin: int, end: int, scale: Any) -> Array:
    """The gradient that the rule sees, from `begin` to `end`; `x` is that part of the model."""
    grad, anchor, correction, decay, prox = sources
    out = np.empty(end - begin, np.float32)
    pull = x if anchor.shape[0] == 0 else piece(anchor, client, begin, end)
    _correct(out, grad[client, begin:end], x, pull, piece(correction, client, begin, end), decay, prox, scale)
    return out


@jit
def _copy(out: Array, values: Array) -> None:
    for i in range(out.size):
        out[i] = values[i]


@jit
def _copied(values: Array) -> Array:
    out = np.empty(values.size, np.float32)
    _copy(out, values)
    return out


@jit
def _subtract(values: Array, before: Array) -> None:
    for i in range(values.size):
        values[i] = _change(values[i], before[i])


@jit
def _refresh(v: Array, g: Array, beta2: Any, gain2: Any) -> None:
    for i in range(v.size):
        v[i] = _second_moment(v[i], g[i] * g[i], beta2, gain2)


@jit
def _square(values: Array) -> None:
    for i in range(values.size):
        values[i] = values[i] * values[i]


@jit
def _move(x: Array, direction: Array, step: Any) -> None:
    for i in range(x.size):
        x[i] = _moved(x[i], direction[i], step)


@cache
def _direction(formula: str) -> Any:
    """The loop that turns the gradient into the direction of one rule, m in place."""
    rule = getattr(rules, f"direction_{formula}")

    @jit
    def direct(g: Array, m: Array, v: Array, numbers: DirectionScalars, root_scale: Any, keep: Any) -> Array:
        direction = np.empty(g.size, np.float32)
        for i in range(g.size):
            direction[i], m[i] = rule(g[i], m[i], v[i], numbers, root_scale, keep)
        return direction

    return direct


# ---- passes without cover -------------------------------------------------------------------------------------------


@jit
def _change_chunk(client: int, begin: int, end: int, coef: Array, x: Array, sources: Sources, before: Array) -> float:
    if coef[client, ACTIVE] == 0:
        return 0.0
    g = _gradient(sources, x[client, begin:end], client, begin, end, coef[client, SCALE])
    if before.shape[0] > 0:
        _subtract(g, before[client, begin:end])
    return square_sum(g)


@parallel
def _change_squares(coef: Array, x: Array, sources: Sources, before: Array, partials: Array) -> None:
    """Sums of squares of the gradient, less the gradient `before` if there is one."""
    chunks = chunks_of(x.shape[1])
    for index in prange(x.shape[0] * chunks):
        client, chunk = index // chunks, index % chunks
        begin, end = span_of(chunk, x.shape[1])
        partials[client, chunk] = _change_chunk(client, begin, end, coef, x, sources, before)


@cache
def _step_kernel(formula: str) -> Callable[..., None]:
    """The pass of one rule: it moves x, m, v and the kept gradient, or (`measures`) only sums the direction's squares.

    With `measures_move` the sums are those of what x moved by.
    """
    direct = _direction(formula)

    @jit
    def one_chunk(
        client: int, begin: int, end: int, coef: Array, x: Array, sources: Sources, m: Array, v: Array, kept: Array,
        numbers: DirectionScalars, measures: bool, measures_move: bool,
    ) -> float:  # fmt: skip
        if coef[client, ACTIVE] == 0:
            return 0.0
        model = x[client, begin:end]
        g = _gradient(sources, model, client, begin, end, coef[client, SCALE])
        first, second = piece(m, client, begin, end), piece(v, client, begin, end)
        if measures:
            first, second = _copied(first), _copied(second)
        if v.shape[0] > 0 and coef[client, REFRESH] > 0:
            _refresh(second, g, numbers.beta2, numbers.gain2)
        direction = direct(g, first, second, numbers, coef[client, ROOT_SCALE], coef[client, KEEP])
        if measures:
            return square_sum(direction)
        if kept.shape[0] > 0:
            _copy(kept[client, begin:end], g)
        if not measures_move:
            _move(model, direction, coef[client, STEP])
            return 0.0
        old = _copied(model)
        _move(model, direction, coef[client, STEP])
        _subtract(old, model)
        return square_sum(old)

    @parallel
    def all_chunks(
        coef: Array, x: Array, sources: Sources, m: Array, v: Array, kept: Array,
        numbers: DirectionScalars, measures: bool, measures_move: bool, partials: Array,
    ) -> None:  # fmt: skip
        chunks = chunks_of(x.shape[1])
        for index in prange(x.shape[0] * chunks):
            client, chunk = index // chunks, index % chunks
            begin, end = span_of(chunk, x.shape[1])
            partials[client, chunk] = one_chunk(
                client, begin, end, coef, x, sources, m, v, kept, numbers, measures, measures_move
            )

    kernel: Any = all_chunks
    return kernel


# ---- passes with cover ----------------------------------------------------------------------------------------------


@jit
def _square_maxima_tile(client: int, tile: Array, coef: Array, x: Array, sources: Sources, maxima: Any) -> None:
    if coef[client, ACTIVE] == 0 or coef[client, REFRESH] == 0:
        return
    for row in range(tile[tiling.ROW], tile[tiling.ROW_END], tile[tiling.ROWS_AT_ONCE]):
        begin, end = tiling.span_of_rows(tile, row)
        g = _gradient(sources, x[client, begin:end], client, begin, end, coef[client, SCALE])
        _square(g)
        tiling.raise_maxima(g, client, tile, row, maxima)


@parallel
def _square_maxima(tiles: Array, coef: Array, x: Array, sources: Sources, maxima: Any) -> None:
    """The largest squares of the gradient in every tile's rows and columns."""
    for index in prange(x.shape[0] * tiles.shape[0]):
        client, tile = index // tiles.shape[0], index % tiles.shape[0]
        _square_maxima_tile(client, tiles[tile], coef, x, sources, maxima)


@cache
def _cover_kernel(formula: str) -> Callable[..., None]:
    """As `_step_kernel`. `of_gradient` is form II: the second moment follows this step's gradient where REFRESH."""
    direct = _direction(formula)

    @jit
    def second_moment(
        client: int, tile: Array, row: int, g: Array, nu: Array, minima: Any, numbers: DirectionScalars, refreshes: bool
    ) -> Array:
        begin, end = tiling.span_of_rows(tile, row)
        if nu.shape[0] > 0 and not refreshes:
            return nu[client, begin:end]
        out = np.empty(end - begin, np.float32)
        tiling.cover_minima(out, client, tile, row, minima)
        if refreshes:
            _refresh(out, g, numbers.beta2, numbers.gain2)
        return out

    @jit
    def some_rows(
        client: int, tile: Array, row: int, coef: Array, x: Array, sources: Sources, m: Array, nu: Array,
        minima: Any, maxima: Any, numbers: DirectionScalars, of_gradient: bool, measures: bool,
    ) -> float:  # fmt: skip
        begin, end = tiling.span_of_rows(tile, row)
        refreshes = of_gradient and coef[client, REFRESH] > 0
        model = x[client, begin:end]
        g = _gradient(sources, model, client, begin, end, coef[client, SCALE])
        second = second_moment(client, tile, row, g, nu, minima, numbers, refreshes)
        first = piece(m, client, begin, end)
        if measures:
            first = _copied(first)
        direction = direct(g, first, second, numbers, coef[client, ROOT_SCALE], coef[client, KEEP])
        if measures:
            return square_sum(direction)
        _move(model, direction, coef[client, STEP])
        if refreshes:
            tiling.raise_maxima(second, client, tile, row, maxima)
            if nu.shape[0] > 0:
                _copy(nu[client, begin:end], second)
        return 0.0

    @jit
    def one_tile(
        client: int, tile: Array, coef: Array, x: Array, sources: Sources, m: Array, nu: Array,
        minima: Any, maxima: Any, numbers: DirectionScalars, of_gradient: bool, measures: bool,
    ) -> float:  # fmt: skip
        total = 0.0
        if coef[client, ACTIVE] == 0:
            return total
        for row in range(tile[tiling.ROW], tile[tiling.ROW_END], tile[tiling.ROWS_AT_ONCE]):
            total += some_rows(
                client, tile, row, coef, x, sources, m, nu, minima, maxima, numbers, of_gradient, measures
            )
        return total

    @parallel
    def all_tiles(
        tiles: Array, coef: Array, x: Array, sources: Sources, m: Array, nu: Array,
        minima: Any, maxima: Any, numbers: DirectionScalars, of_gradient: bool, measures: bool, partials: Array,
    ) -> None:  # fmt: skip
        for index in prange(x.shape[0] * tiles.shape[0]):
            client, tile = index // tiles.shape[0], index % tiles.shape[0]
            partials[client, tile] = one_tile(
                client, tiles[tile], coef, x, sources, m, nu, minima, maxima, numbers, of_gradient, measures
            )

    kernel: Any = all_tiles
    return kernel


# ---- the passes -----------------------------------------------------------------------------------------------------


def _sources(call: ClientCall) -> Sources:
    decay, prox = floats(call.numbers.weight_decay, call.numbers.prox)
    return call.grad.numpy(), matrix(call.anchor), matrix(call.correction), decay, prox


def _numbers(call: ClientCall) -> DirectionScalars:
    return DirectionScalars._make(floats(*call.numbers.scalars))


def _refreshed(coef: Tensor) -> Tensor:
    return (coef[:, ACTIVE] * coef[:, REFRESH] > 0)[:, None]


class NumbaPasses:
    """`passes.Passes` in numba."""

    def gradient_squares(self, call: ClientCall, coef: Tensor) -> Tensor:
        return self._change_squares(call, coef, None)

    def change_squares(self, call: ClientCall, coef: Tensor) -> Tensor:
        return self._change_squares(call, coef, call.gradient_before)

    def _change_squares(self, call: ClientCall, coef: Tensor, before: Tensor | None) -> Tensor:
        partials = partials_of(*call.x.shape)
        launch(_change_squares, coef.numpy(), call.x.numpy(), _sources(call), matrix(before), partials)
        return add_in_order(partials)

    def direction_squares(self, call: ClientCall, coef: Tensor) -> Tensor:
        return self._step(call, coef, measures=True)

    def update(self, call: ClientCall, coef: Tensor) -> Tensor | None:
        moved = self._step(call, coef, measures=False)
        return moved if call.rule.step_size == "delta_sgd" else None

    def _step(self, call: ClientCall, coef: Tensor, measures: bool) -> Tensor:
        partials = partials_of(*call.x.shape)
        state = [matrix(call.state.get(name)) for name in ("m", "v", "grad_prev")]
        kernel, measures_move = _step_kernel(call.rule.formula), call.rule.step_size == "delta_sgd"
        batch = (coef.numpy(), call.x.numpy(), _sources(call))
        launch(kernel, *batch, *state, _numbers(call), measures, measures_move, partials)
        return add_in_order(partials)

    def open_cover(self, call: ClientCall) -> tiling.Cover:
        return tiling.Cover(covers.decode(call.state["cover"]), call.state["mu"])

    def refresh_cover(self, call: ClientCall, coef: Tensor, cover: tiling.Cover) -> None:
        launch(_square_maxima, cover.tiles, coef.numpy(), call.x.numpy(), _sources(call), cover.tile_maxima)
        n, mu = call.numbers, call.state["mu"]
        fresh = torch_rules.second_moment(mu, cover.maxima(), n.beta2, n.gain2)
        mu.copy_(torch.where(_refreshed(coef), fresh, mu))

    def cover_direction_squares(self, call: ClientCall, coef: Tensor, cover: tiling.Cover) -> Tensor:
        return self._cover_step(call, coef, cover, measures=True)

    def cover_update(self, call: ClientCall, coef: Tensor, cover: tiling.Cover) -> None:
        self._cover_step(call, coef, cover, measures=False)
        if call.rule.cover == "II":
            mu = call.state["mu"]
            mu.copy_(torch.where(_refreshed(coef), cover.maxima(), mu))

    def _cover_step(self, call: ClientCall, coef: Tensor, cover: tiling.Cover, measures: bool) -> Tensor:
        partials = np.zeros((call.clients, len(cover.tiles)), np.float64)
        state = [matrix(call.state.get(name)) for name in ("m", "nu")]
        batch = (cover.tiles, coef.numpy(), call.x.numpy(), _sources(call))
        extremes = (cover.minima(), cover.tile_maxima)
        of_gradient = call.rule.cover == "II"
        launch(
            _cover_kernel(call.rule.formula), *batch, *state, *extremes, _numbers(call), of_gradient, measures, partials
        )
        return add_in_order(partials)


def client_step(call: ClientCall) -> None:
    passes.client_step(NumbaPasses(), call)
