"""Optimizers that find their step size: Delta-SGD and the stochastic Polyak step size.

Norms are those of all gradients in all groups together: what a parameter's group is makes no difference but for the
group's own options.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from .. import clients
from ..kernels.ops.gradients import Found, Sight, delta_sgd_step_size, gradient_squares, move, sps_step_size
from .base import Descent, Settings, State, Work, evaluated


class DeltaSGD(Descent):
    """x -= step_size * g, with a step size from the last two gradients; options as in `ff.clients.DeltaSGD`.

    `lr` is the first step's. What was found stands in every group: `step_size`, its ratio `growth` to the one before,
    and the norm `moved` of the last move. The state of a parameter holds its last gradient, `grad_prev`.
    """

    settings: ClassVar[type[Settings]] = clients.DeltaSGD

    def __init__(
        self,
        params: Any,
        lr: float = 0.2,
        *,
        gamma: float = 2.0,
        delta: float = 0.1,
        theta: float = 1.0,
        grow_first: bool = False,
        lr_eps: float = 0.0,
        weight_decay: float = 0.0,
        maximize: bool = False,
    ) -> None:
        own = {"gamma": gamma, "delta": delta, "theta": theta, "grow_first": grow_first, "lr_eps": lr_eps}
        found = {"step_size": None, "growth": None, "moved": None, "first_lr": None}
        super().__init__(params, lr=lr, **own, **found, weight_decay=weight_decay, maximize=maximize)

    def _start(self, settings: Any, sight: Sight, x: Tensor, grad: Tensor) -> State:
        # a gradient that has none before it has not changed
        return {"grad_prev": sight.seen(grad, x).clone(memory_format=torch.contiguous_format)}

    def _refuse(self, work: Work) -> None:
        began, lr = work.group["first_lr"], work.settings.lr
        if began is not None and lr != began:
            raise ValueError(
                f"lr: is that of DeltaSGD's first step, {began}, after which it finds its own; {lr} (of a scheduler?) "
                "would change nothing"
            )

    def _take(self, works: list[Work], loss: Any) -> None:
        change = math.sqrt(
            sum(gradient_squares(work.x, work.grad, work.sight, work.held("grad_prev")) for work in works)
        )
        last_move = max((group["moved"] or 0.0 for group in self.param_groups), default=0.0)
        for work in works:
            group = work.group
            last = None if group["step_size"] is None else Found(group["step_size"], group["growth"])
            found = delta_sgd_step_size(last, last_move, change, **work.settings.step_options())
            if last is None:
                group["first_lr"] = work.settings.lr
            group["step_size"], group["growth"] = found
        squares = [move(work.x, work.grad, work.sight, work.group["step_size"], measured=True) for work in works]
        for group in self.param_groups:
            group["moved"] = math.sqrt(sum(squares))


class SPS(Descent):
    """x -= step_size * g with step_size = min((loss - f_star) / (c * |g|^2 + eps), lr_max); options as in
    `ff.clients.SPS`.

    `step` needs the loss: from a closure, or as `loss`. What was found stands in every group as `step_size`. There is
    no `lr`, and a scheduler finds none.
    """

    settings: ClassVar[type[Settings]] = clients.SPS
    keeps_state: ClassVar[bool] = False

    def __init__(
        self,
        params: Any,
        *,
        c: float = 0.5,
        f_star: float = 0.0,
        lr_max: float | None = None,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        own = {"c": c, "f_star": f_star, "lr_max": lr_max, "eps": eps, "step_size": None}
        super().__init__(params, **own, weight_decay=weight_decay)

    def step(self, closure: Callable[[], Any] | None = None, *, loss: Any = None) -> Any:
        """One step of all parameters that have a gradient, from the loss that `closure` returns or from `loss`."""
        if (closure is None) == (loss is None):
            both = "both were given" if loss is not None else "neither was given"
            raise ValueError(f"loss: SPS needs either a closure that returns it or loss=, and {both}")
        loss = evaluated(closure) if loss is None else loss
        self._descend(loss)
        return loss

    def _take(self, works: list[Work], loss: Any) -> None:
        if loss is None or (isinstance(loss, Tensor) and loss.numel() != 1):
            raise ValueError(f"loss: must be one number, got {loss!r}")
        value = loss.item() if isinstance(loss, Tensor) else float(loss)
        squares = sum(gradient_squares(work.x, work.grad, work.sight) for work in works)
        for work in works:
            found = sps_step_size(value, squares, **work.settings.step_options())
            work.group["step_size"] = found
            move(work.x, work.grad, work.sight, found)
