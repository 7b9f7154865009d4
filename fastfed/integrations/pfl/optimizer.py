"""Any server of ``ff.servers`` as an optimizer of torch, which is what pfl steps its central model with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ...kernels import aggregate_step, server_state
from ...servers import Server

_DOWNHILL = -1.0  # pfl hands a delta over as the gradient that points the other way


class CentralOptimizer(torch.optim.Optimizer):
    """`server`, of ``ff.servers``, as the `central_optimizer` of a ``pfl.model.pytorch.PyTorchModel``.

    All parameters take one fused step (those that once had no gradient, and are behind, one of their own) along minus
    their gradients, which pfl fills with minus the averaged delta. The learning rate is ``param_groups[0]["lr"]``,
    `server`'s at the start, so that callbacks and schedulers may change it. Moments are kept by parameter, as torch's
    optimizers keep them: `state_dict`, and pfl's checkpoints, save them.
    """

    def __init__(self, params: Iterable[Tensor], server: Server) -> None:
        if not isinstance(server, Server):
            raise TypeError(f"server: must be one of fastfed.servers, got {server!r}")
        super().__init__(params, {"lr": server.lr})
        if len(self.param_groups) != 1:
            raise ValueError(
                f"params: must be one group, as a server has one learning rate, got {len(self.param_groups)}"
            )
        self.server = server

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One step of the server on the parameters that have gradients."""
        if closure is not None:
            raise ValueError("closure: a server steps along deltas that are there; it evaluates nothing")
        (group,) = self.param_groups
        moved = [p for p in group["params"] if p.grad is not None and p.numel()]
        for p in moved:
            if not self.state[p]:
                self.state[p] = _split(server_state(self.server.rule, [p.detach()], **self.server.state_options()))
        together: dict[tuple[torch.dtype, int], list[Tensor]] = {}  # one that once had no gradient is behind the others
        for p in moved:
            together.setdefault((p.dtype, int(self.state[p].get("step", 0))), []).append(p)
        for params in together.values():
            self._step_of(params, float(group["lr"]))

    def _step_of(self, params: list[Tensor], lr: float) -> None:
        state = _joined([self.state[p] for p in params])
        grads = [p.grad.contiguous() for p in params if p.grad is not None]
        options = {**self.server.step_options(), "lr": lr}
        x = [p.detach() for p in params]
        aggregate_step(self.server.rule, x, [grads], torch.tensor([_DOWNHILL], dtype=torch.float64), state, **options)
        if "step" in state:
            for p in params:
                self.state[p]["step"] = state["step"].clone()


def _split(state: dict[str, Any]) -> dict[str, Tensor]:
    """The state of one parameter, of lists, by moment."""
    return {name: held if name == "step" else held[0] for name, held in state.items()}


def _joined(states: list[dict[str, Tensor]]) -> dict[str, Any]:
    """The state of a model in parts, from its parameters' own, which have taken as many steps."""
    return {name: states[0][name].long() if name == "step" else [each[name] for each in states] for name in states[0]}
