"""One client step over whole tensors. SM3 is written with broadcasting over the tensors' own axes (or over explicit
cover sets), not as the matrix the fast backends use, so that the two check each other."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from .. import covers, passes
from ..client_call import ClientCall
from ..passes import ACTIVE, KEEP, REFRESH, ROOT_SCALE, SCALE, STEP
from ..torch_rules import rules
from .norms import squares


def client_step(call: ClientCall) -> None:
    passes.client_step(TorchPasses(), call)


def _column(coef: Tensor, index: int) -> Tensor:
    return coef[:, index, None]


def _write(target: Tensor, where: Tensor, value: Tensor) -> None:
    target.copy_(torch.where(where, value, target))


def _gradient(call: ClientCall, coef: Tensor) -> Tensor:
    n, zero = call.numbers, torch.zeros_like(call.x[:1])
    anchor = call.x if call.anchor is None else call.anchor
    correction = zero if call.correction is None else call.correction
    scale = _column(coef, SCALE)
    return rules.corrected_gradient(call.grad, call.x, anchor, correction, n.weight_decay, n.prox, scale)


def _direction(call: ClientCall, coef: Tensor, g: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    formula = getattr(rules, f"direction_{call.rule.formula}")
    m = call.state.get("m", torch.zeros_like(g[:1]))
    direction, m = formula(g, m, v, call.numbers.scalars, _column(coef, ROOT_SCALE), _column(coef, KEEP))
    return direction, m


class _Cover(Protocol):
    """Minima and maxima over cover sets; `inside` (1, d) marks the coordinates that belong to any."""

    inside: Tensor

    def minima(self, mu: Tensor, like: Tensor) -> Tensor:
        """The smallest mu of the sets around every coordinate: (clients, d), 0 where there is none."""

    def maxima(self, vector: Tensor, mu: Tensor) -> Tensor:
        """The largest entry of a non-negative `vector` (clients, d) in every set: the shape of mu."""


class _AxisCover:
    """One set per index of every axis of every packed tensor."""

    def __init__(self, layout: Tensor, x: Tensor) -> None:
        self.matrices = covers.decode(layout).matrices
        self.inside = torch.zeros_like(x[:1], dtype=torch.bool)
        for matrix in self.matrices:
            self.inside[:, matrix.offset : matrix.offset + matrix.rows * matrix.cols] = True

    def minima(self, mu: Tensor, like: Tensor) -> Tensor:
        smallest = torch.zeros_like(like)
        for matrix, span in self._spans():
            grid = torch.full_like(like[:, span], torch.inf).unflatten(1, matrix.shape)
            for position, (start, size) in enumerate(_axis_spans(matrix)):
                shape = [mu.shape[0]] + [1] * len(matrix.shape)
                shape[1 + position] = size
                grid = torch.minimum(grid, mu[:, start : start + size].view(shape))
            smallest[:, span] = grid.flatten(1)
        return smallest

    def maxima(self, vector: Tensor, mu: Tensor) -> Tensor:
        largest = torch.zeros_like(mu)
        for matrix, span in self._spans():
            grid = vector[:, span].unflatten(1, (1, *matrix.shape))
            for position, (start, size) in enumerate(_axis_spans(matrix)):
                largest[:, start : start + size] = grid.movedim(2 + position, -1).flatten(1, -2).amax(dim=1)
        return largest

    def _spans(self) -> list[tuple[covers.Matrix, slice]]:
        return [(matrix, slice(matrix.offset, matrix.offset + matrix.rows * matrix.cols)) for matrix in self.matrices]


def _axis_spans(matrix: covers.Matrix) -> list[tuple[int, int]]:
    """Where each axis vector of the tensor lies in mu."""
    return [(axis.mu_offset, axis.size) for axis in (*matrix.row_axes, *matrix.col_axes)]


class _ExplicitCover:
    """Any sets: ``state["sets"]`` (2, pairs) lists which set holds which coordinate."""

    def __init__(self, sets: Tensor, x: Tensor) -> None:
        self.set, self.coordinate = sets
        self.inside = torch.zeros_like(x[:1], dtype=torch.bool)
        self.inside[:, self.coordinate] = True

    def minima(self, mu: Tensor, like: Tensor) -> Tensor:
        index = self.coordinate.expand(mu.shape[0], -1)
        smallest = torch.full_like(like, torch.inf).scatter_reduce(1, index, mu[:, self.set], "amin")
        return torch.where(self.inside, smallest, torch.zeros_like(smallest))

    def maxima(self, vector: Tensor, mu: Tensor) -> Tensor:
        index = self.set.expand(mu.shape[0], -1)
        return torch.zeros_like(mu).scatter_reduce(1, index, vector[:, self.coordinate], "amax")


def cover_of(state: dict[str, Tensor], x: Tensor) -> _Cover:
    """The cover of an SM3 state, for vectors like x (clients, d)."""
    return _ExplicitCover(state["sets"], x) if "sets" in state else _AxisCover(state["cover"], x)


class TorchPasses:
    """`passes.Passes` in torch."""

    def gradient_squares(self, call: ClientCall, coef: Tensor) -> Tensor:
        return squares(_gradient(call, coef))

    def change_squares(self, call: ClientCall, coef: Tensor) -> Tensor:
        return squares(rules.change(_gradient(call, coef), call.gradient_before))

    def _second_moment(self, call: ClientCall, coef: Tensor, g: Tensor) -> Tensor:
        v = call.state.get("v")
        if v is None:
            return torch.zeros_like(g)
        fresh = rules.second_moment(v, g * g, call.numbers.beta2, call.numbers.gain2)
        return torch.where(_column(coef, REFRESH) > 0, fresh, v)

    def direction_squares(self, call: ClientCall, coef: Tensor) -> Tensor:
        g = _gradient(call, coef)
        return squares(_direction(call, coef, g, self._second_moment(call, coef, g))[0])

    def update(self, call: ClientCall, coef: Tensor) -> Tensor | None:
        g = _gradient(call, coef)
        v = self._second_moment(call, coef, g)
        old = call.x.clone()
        self._apply(call, _column(coef, ACTIVE) > 0, coef, g, v, {"v": v, "grad_prev": g})
        return squares(call.x - old) if call.rule.step_size == "delta_sgd" else None

    def _apply(
        self, call: ClientCall, where: Tensor, coef: Tensor, g: Tensor, v: Tensor, kept: dict[str, Tensor]
    ) -> None:
        direction, m = _direction(call, coef, g, v)
        _write(call.x, where, rules.moved(call.x, direction, _column(coef, STEP)))
        for name, value in {"m": m, **kept}.items():
            if name in call.state:
                _write(call.state[name], where, value)

    def open_cover(self, call: ClientCall) -> _Cover:
        return cover_of(call.state, call.x)

    def refresh_cover(self, call: ClientCall, coef: Tensor, cover: _Cover) -> None:
        n, mu, g = call.numbers, call.state["mu"], _gradient(call, coef)
        fresh = rules.second_moment(mu, cover.maxima(g * g, mu), n.beta2, n.gain2)
        _write(mu, (_column(coef, ACTIVE) * _column(coef, REFRESH)) > 0, fresh)

    def _covered_moment(self, call: ClientCall, coef: Tensor, cover: _Cover, g: Tensor) -> Tensor:
        smallest = cover.minima(call.state["mu"], g)
        if call.rule.cover == "I":
            return smallest
        fresh = rules.second_moment(smallest, g * g, call.numbers.beta2, call.numbers.gain2)
        return torch.where(_column(coef, REFRESH) > 0, fresh, call.state.get("nu", smallest))

    def cover_direction_squares(self, call: ClientCall, coef: Tensor, cover: _Cover) -> Tensor:
        g = _gradient(call, coef)
        direction, _ = _direction(call, coef, g, self._covered_moment(call, coef, cover, g))
        return squares(torch.where(cover.inside, direction, torch.zeros_like(direction)))

    def cover_update(self, call: ClientCall, coef: Tensor, cover: _Cover) -> None:
        g = _gradient(call, coef)
        nu = self._covered_moment(call, coef, cover, g)
        self._apply(call, (_column(coef, ACTIVE) > 0) & cover.inside, coef, g, nu, {"nu": nu})
        if call.rule.cover == "II":
            refreshed = (_column(coef, ACTIVE) * _column(coef, REFRESH)) > 0
            _write(call.state["mu"], refreshed, cover.maxima(nu, call.state["mu"]))
