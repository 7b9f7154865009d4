"""The passes of one client step, in their order: shared by every backend that is driven from Python.

A step is up to four passes over the packed vectors: a norm of the corrected gradient (clipping, SPS), what the
gradient changed by (Delta-SGD), a norm of the direction (update floor), and the update itself. A backend supplies the
passes (`Passes`); this file supplies their order and the handful of numbers per client between them. The C++ backend
does the same inside one call (``csrc/kernels/client_step.h``).
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from . import covers
from .client_call import ClientCall
from .torch_rules import rules

# Columns of the coefficient matrix (clients, 6), in x's dtype: what the passes need to know of each client.
ACTIVE, SCALE, REFRESH, KEEP, STEP, ROOT_SCALE = range(6)
COEFFICIENTS = 6


class Passes(Protocol):
    """What a backend supplies. `coef` is (clients, COEFFICIENTS); rows with ACTIVE 0 must stay untouched everywhere.

    Sums of squares come back as (clients,) float64, summed in an order that depends on d alone. "The gradient" is
    always ``rules.corrected_gradient`` with coef's SCALE.
    """

    def gradient_squares(self, call: ClientCall, coef: Tensor) -> Tensor:
        """Sum of the gradient's squares."""

    def change_squares(self, call: ClientCall, coef: Tensor) -> Tensor:
        """Sum of squares of ``rules.change(gradient, call.gradient_before)``."""

    def direction_squares(self, call: ClientCall, coef: Tensor) -> Tensor:
        """Sum of squares of the direction that `update` would take; nothing is written."""

    def update(self, call: ClientCall, coef: Tensor) -> Tensor | None:
        """One step of a rule without cover: x, m and v in place (v where REFRESH).

        For Delta-SGD it also keeps the gradient in state["grad_prev"] (where that exists) and returns the sum of
        squares of what x really moved by, after rounding.
        """

    def open_cover(self, call: ClientCall) -> Any:
        """The working form of state["mu"] for the three passes below."""

    def refresh_cover(self, call: ClientCall, coef: Tensor, cover: Any) -> None:
        """SM3-I, where REFRESH: ``mu = rules.second_moment(mu, max of gradient^2 over the set, beta2, gain2)``."""

    def cover_direction_squares(self, call: ClientCall, coef: Tensor, cover: Any) -> Tensor:
        """As `direction_squares`, for a rule with cover."""

    def cover_update(self, call: ClientCall, coef: Tensor, cover: Any) -> None:
        """One step of a rule with cover: x and m in place, and in form II, where REFRESH, mu = max of nu over the set.

        nu is, in form II where REFRESH, ``rules.second_moment(cover minimum, gradient^2, beta2, gain2)``; else it is
        state["nu"] if that exists, else the cover minimum. state["nu"], if it exists, keeps nu where REFRESH.
        """


def client_step(passes: Passes, call: ClientCall) -> None:
    """One step of every client that has not finished, all state in place."""
    call = call.as_rows()
    if call.rule.cover is not None:
        covers.check_state(call.state, call.x)
    coef = _starting_coefficients(call)
    _clip(passes, call, coef)
    _choose_step_size(passes, call, coef)
    if call.rule.has_second_moment:
        _second_moment_step(passes, call, coef)
    else:
        moved = passes.update(call, _cast(call, coef))
        if moved is not None:
            _keep_where_active(call.state["move"], coef, moved.sqrt())


def _cast(call: ClientCall, coef: Tensor) -> Tensor:
    return coef.to(call.x.dtype)


def _starting_coefficients(call: ClientCall) -> Tensor:
    """Float64 coefficients before any pass: nothing clipped, everything kept, the caller's learning rate."""
    coef = torch.ones((call.clients, COEFFICIENTS), dtype=torch.float64, device=call.x.device)
    if call.finished is not None:
        coef[:, ACTIVE] = (~call.finished).to(torch.float64)
    if call.lr is not None:
        coef[:, STEP] = call.lr
    elif call.numbers.lr is not None:
        coef[:, STEP] = call.numbers.lr
    return coef


def _keep_where_active(target: Tensor, coef: Tensor, value: Tensor) -> None:
    target.copy_(torch.where(coef[:, ACTIVE] > 0, value.to(target.dtype), target))


def _clip(passes: Passes, call: ClientCall, coef: Tensor) -> None:
    if call.numbers.clip is not None:
        norm = passes.gradient_squares(call, _cast(call, coef)).sqrt()
        coef[:, SCALE] = rules.clip_scale(norm, call.numbers.clip)


def _choose_step_size(passes: Passes, call: ClientCall, coef: Tensor) -> None:
    """Delta-SGD and SPS find the step size themselves and leave it in state["lr"]."""
    if call.rule.step_size == "delta_sgd":
        _delta_sgd_step_size(passes, call, coef)
    elif call.rule.step_size == "sps":
        n = call.numbers
        squares = passes.gradient_squares(call, _cast(call, coef))
        step = rules.sps_step_size(_proximal_loss(call), squares, n.c, n.f_star, n.lr_max, n.eps)
        _keep_where_active(call.state["lr"], coef, step)
        coef[:, STEP] = call.state["lr"]


_RUN = 4096


def _proximal_loss(call: ClientCall) -> Tensor | float:
    """The losses with the proximal term, which belongs to them as it does to the gradient. Squares are summed in runs,
    each by one thread, so that no sum depends on how many clients there are."""
    assert call.loss is not None
    if not call.numbers.prox > 0:
        return call.loss
    assert call.anchor is not None
    moved = (call.x - call.anchor).double()
    runs = torch.nn.functional.pad(moved * moved, (0, -moved.shape[1] % _RUN)).view(len(moved), -1, _RUN).sum(2)
    return call.loss + call.numbers.prox / 2 * runs.sum(1)


def _delta_sgd_step_size(passes: Passes, call: ClientCall, coef: Tensor) -> None:
    n, state = call.numbers, call.state
    first = state["step"] == 0
    start = coef[:, STEP].clone()  # the caller's lr: where every client begins
    lr = torch.where(first, start, state["lr"])
    theta = torch.where(first, torch.full_like(lr, n.theta), state["theta"])
    change = passes.change_squares(call, _cast(call, coef)).sqrt()
    move = torch.where(first, torch.zeros_like(lr), state["move"])
    step, ratio = rules.delta_sgd_step_size(move, change, lr, theta, n.gamma, n.delta, n.lr_eps)
    if not n.grow_first:
        step, ratio = torch.where(first, start, step), torch.where(first, theta, ratio)
    _keep_where_active(state["lr"], coef, step)
    _keep_where_active(state["theta"], coef, ratio)
    _keep_where_active(state["step"], coef, state["step"] + 1)
    coef[:, STEP] = step


def _second_moment_step(passes: Passes, call: ClientCall, coef: Tensor) -> None:
    bias1 = _advance_counters(call, coef)
    covered = call.rule.cover is not None
    cover = passes.open_cover(call) if covered else None
    if call.rule.cover == "I":
        passes.refresh_cover(call, _cast(call, coef), cover)
    if call.numbers.floor > 0:
        cast = _cast(call, coef)
        squares = passes.cover_direction_squares(call, cast, cover) if covered else passes.direction_squares(call, cast)
        coef[:, KEEP] = rules.floor_keep(squares.sqrt() / bias1, call.numbers.floor)
    if covered:
        passes.cover_update(call, _cast(call, coef), cover)
    else:
        passes.update(call, _cast(call, coef))


def _advance_counters(call: ClientCall, coef: Tensor) -> Tensor | float:
    """Counts the step, decides who refreshes, puts bias corrections into STEP and ROOT_SCALE; returns m's bias."""
    n, state = call.numbers, call.state
    step = state["step"] + 1
    clock = step if call.epoch is None else call.epoch
    refresh = rules.refreshes_at(clock, n.delay) | (state["refreshes"] == 0)  # there is nothing to reuse at first
    refreshes = state["refreshes"] + refresh.to(torch.int64)
    _keep_where_active(state["step"], coef, step)
    _keep_where_active(state["refreshes"], coef, refreshes)
    coef[:, REFRESH] = refresh.to(torch.float64)
    if not call.rule.corrects_bias:
        return 1.0
    bias1 = rules.bias(n.beta1, step.to(torch.float64) + n.bias_from)
    coef[:, STEP] /= bias1
    coef[:, ROOT_SCALE] = 1.0 / torch.sqrt(rules.bias(n.beta2, refreshes.to(torch.float64) + n.bias_from))
    return bias1
