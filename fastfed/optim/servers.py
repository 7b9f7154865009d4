"""The server rules as optimizers: a gradient stands where a server has minus the aggregated delta."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from .. import servers
from ..kernels import SERVER_RULES, server_state
from ..kernels.ops.gradients import Sight, server_gradient_step
from .base import Descent, Settings, State, Work


class ServerDescent(Descent):
    """A server rule as an optimizer. The state holds m, v and vmax as the rule has them, like the parameter."""

    settings: ClassVar[type[Settings]]

    def _start(self, settings: Any, sight: Sight, x: Tensor, grad: Tensor) -> State:
        made = server_state(settings.rule, x.new_empty(max(1, x.numel())), **settings.state_options())
        made.pop("step", None)
        return {"step": 0, **{name: tensor[: x.numel()].view(x.shape) for name, tensor in made.items()}}

    def _refuse(self, work: Work) -> None:
        beta1 = getattr(work.settings, "beta1", 0.0)
        if beta1 > 0 and any(state and "m" not in state for state in work.states):
            raise ValueError(f"beta1: is {beta1}, but was 0 when the state began, which keeps no m")

    def _take(self, works: list[Work], loss: Any) -> None:
        for whole in works:
            rule, options = whole.settings.rule, whole.settings.step_options()
            for step, work in whole.by_step():
                named = {name: work.held(name) for name in SERVER_RULES[rule].moments}
                moments = {name: held for name, held in named.items() if held is not None}
                server_gradient_step(rule, work.x, work.grad, moments, work.sight, step, **options)
                for state in work.states:
                    state["step"] = step


class FedAvg(ServerDescent):
    """x -= lr * g: torch.optim.SGD."""

    settings = servers.FedAvg

    def __init__(self, params: Any, lr: float = 1.0, *, weight_decay: float = 0.0, maximize: bool = False) -> None:
        super().__init__(params, lr=lr, weight_decay=weight_decay, maximize=maximize)


class FedAvgM(ServerDescent):
    """m = momentum * m + g; x -= lr * m: torch.optim.SGD with momentum."""

    settings = servers.FedAvgM

    def __init__(
        self,
        params: Any,
        lr: float = 1.0,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay, maximize=maximize)


class FedAdagrad(ServerDescent):
    """v += q; x -= lr * m / (sqrt(v) + tau), without a first moment by default; options as in `ff.servers.FedAdagrad`.

    With `eps` "torch" it is torch.optim.Adagrad, whose eps is tau.
    """

    settings = servers.FedAdagrad

    def __init__(
        self,
        params: Any,
        lr: float,
        *,
        beta1: float = 0.0,
        tau: float = 1e-3,
        second_moment_of: str | None = None,
        v0: float | None = None,
        eps: str = "authors",
        weight_decay: float = 0.0,
        maximize: bool = False,
    ) -> None:
        moments = {"beta1": beta1, "tau": tau, "second_moment_of": second_moment_of, "v0": v0, "eps": eps}
        super().__init__(params, lr=lr, **moments, weight_decay=weight_decay, maximize=maximize)


class FedAdam(ServerDescent):
    """m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) q; x -= lr * m / (sqrt(v) + tau); options as in
    `ff.servers.FedAdam`.

    With `bias_correction` and `eps` "torch" it is torch.optim.Adam, whose eps is tau.
    """

    settings: ClassVar[type[Settings]] = servers.FedAdam

    def __init__(
        self,
        params: Any,
        lr: float,
        *,
        beta1: float = 0.9,
        beta2: float = 0.99,
        tau: float = 1e-3,
        second_moment_of: str | None = None,
        v0: float | None = None,
        bias_correction: bool = False,
        eps: str = "authors",
        weight_decay: float = 0.0,
        maximize: bool = False,
    ) -> None:
        moments = {"beta1": beta1, "beta2": beta2, "tau": tau, "second_moment_of": second_moment_of, "v0": v0}
        corrected = {"bias_correction": bias_correction, "eps": eps}
        super().__init__(params, lr=lr, **moments, **corrected, weight_decay=weight_decay, maximize=maximize)


class FedYogi(FedAdam):
    """`FedAdam` with v -= (1 - beta2) q sign(v - q)."""

    settings = servers.FedYogi


class FedAMS(ServerDescent):
    """`FedAdam` over the largest v so far, which starts at `vmax0`, by default v0; q is the gradient's square.

    With `bias_correction` and `eps` "torch" it is torch.optim.Adam with amsgrad, whose eps is tau.
    """

    settings = servers.FedAMS

    def __init__(
        self,
        params: Any,
        lr: float,
        *,
        beta1: float = 0.9,
        beta2: float = 0.99,
        tau: float = 1e-3,
        second_moment_of: str = "delta",
        v0: float | None = None,
        vmax0: float | None = None,
        bias_correction: bool = False,
        eps: str = "authors",
        weight_decay: float = 0.0,
        maximize: bool = False,
    ) -> None:
        moments = {"beta1": beta1, "beta2": beta2, "tau": tau, "second_moment_of": second_moment_of}
        own = {"v0": v0, "vmax0": vmax0, "bias_correction": bias_correction, "eps": eps}
        super().__init__(params, lr=lr, **moments, **own, weight_decay=weight_decay, maximize=maximize)
