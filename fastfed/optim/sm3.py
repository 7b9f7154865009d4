"""SM3 as optimizers: second moments per row and column of every tensor instead of per coordinate."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from .. import clients
from ..kernels import CLIENT_RULES
from ..kernels.ops.common import numbers_of
from ..kernels.ops.gradients import Sight, covered_gradient_step, sets_of
from ..kernels.table import client_numbers
from .base import Descent, Settings, State, Work


class CoveredDescent(Descent):
    """An SM3 rule as an optimizer. The state holds mu (one number for each index of each axis) and, where the rule has
    a first moment, m, like the parameter."""

    settings: ClassVar[type[Settings]] = clients.SM3

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        settings = self._settings(group)
        numbers_of(client_numbers, settings.step_options(), settings.rule, False)

    def _start(self, settings: Any, sight: Sight, x: Tensor, grad: Tensor) -> State:
        state: State = {"step": 0, "mu": x.new_full((sets_of(x.shape),), settings.v0 or 0.0)}
        if _keeps_m(settings):
            state["m"] = torch.zeros_like(x, memory_format=torch.contiguous_format)
        return state

    def _refuse(self, work: Work) -> None:
        keeps = _keeps_m(work.settings)
        if any(state and ("m" in state) != keeps for state in work.states):
            began = "without" if keeps else "with"
            raise ValueError(f"beta1: is {work.settings.beta1}, but the state began {began} m")

    def _take(self, works: list[Work], loss: Any) -> None:
        for whole in works:
            options = whole.settings.options_in(0, False)
            for step, work in whole.by_step():
                named = {name: work.held(name) for name in ("mu", "m")}
                held = {name: tensors for name, tensors in named.items() if tensors is not None}
                covered_gradient_step(
                    work.settings.rule, work.x, work.grad, held, work.sight, step, **{**options, "weight_decay": 0.0}
                )
                for state in work.states:
                    state["step"] = step


def _keeps_m(settings: Any) -> bool:
    return "m" in CLIENT_RULES[settings.rule].vectors or bool(settings.beta1)


class SM3(CoveredDescent):
    """SM3-II: AdaGrad whose second moment is bounded by one number for each index of each axis of a tensor.

    nu = min over axes of mu + g^2; mu = max of nu over the rest; x -= lr * g / (sqrt(nu + root_eps) + eps). With
    `beta1` > 0, a running mean of these steps, as in SM3's reference implementation. `v0` is where mu starts.
    """

    _cover = "II"

    def __init__(
        self,
        params: Any,
        lr: float,
        *,
        eps: float = 1e-8,
        root_eps: float | None = None,
        beta1: float | None = None,
        v0: float | None = None,
        weight_decay: float = 0.0,
        maximize: bool = False,
    ) -> None:
        own = {"form": "adagrad", "cover": self._cover, "root_eps": root_eps, "beta1": beta1, "v0": v0}
        super().__init__(params, lr=lr, eps=eps, **own, weight_decay=weight_decay, maximize=maximize)


class SM3I(SM3):
    """SM3-I: mu += max of g^2 over the rest of the axes; nu = min over axes of mu. Otherwise as `SM3`."""

    _cover = "I"


class SM3Adam(CoveredDescent):
    """Adam whose second moment is bounded as in `SM3` (`cover` "II", the default, or "I").

    m = beta1 m + (1 - beta1) g; nu = beta2 min mu + (1 - beta2) g^2; x -= lr * m / (sqrt(nu) + eps), with Adam's bias
    corrections (`bias_correction`: None, the default, makes them unless mu starts at a `v0`).
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        *,
        beta1: float | None = None,
        beta2: float | None = None,
        eps: float = 1e-8,
        cover: str = "II",
        v0: float | None = None,
        bias_correction: bool | None = None,
        weight_decay: float = 0.0,
        maximize: bool = False,
    ) -> None:
        own = {"form": "adam", "cover": cover, "v0": v0, "beta1": beta1, "beta2": beta2}
        corrected = {"bias_correction": bias_correction}
        super().__init__(params, lr=lr, eps=eps, **own, **corrected, weight_decay=weight_decay, maximize=maximize)
