"""A client optimizer at work for the length of a round: its state, its options, and what each step needs to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import kernels
from ..clients import Client
from ..kernels.table import CLIENT_RULES
from ..kernels.torch_rules import rules
from ..packing import Packing


@dataclass(frozen=True)
class StepContext:
    """What the rule meets besides gradients, for x (d,) or (clients, d).

    `anchor` (the start model) and `correction` have x's shape; anchor may also be (d,), shared by all clients. `lr`, a
    number or (clients,), is None where the rule finds its own. `preconditioner` (d,) starts second moments. For
    algorithms in Python: `steps`, a number or (clients,), `kept` with x's shape and `common` (d,).
    """

    packing: Packing
    anchor: Tensor
    lr: float | Tensor | None = None
    correction: Tensor | None = None
    preconditioner: Tensor | None = None
    round: int = 0
    steps: int | Tensor = 0
    kept: Tensor | None = None
    common: Tensor | None = None


class LocalOptimizer:
    """Moves models x, one (d,) or a batch (clients, d), by one client optimizer with a fresh state."""

    def __init__(self, client: Client, x: Tensor, context: StepContext) -> None:
        entry = CLIENT_RULES[client.rule]
        self.client, self.context = client, context
        self.options = client.options_in(context.round, context.preconditioner is not None)
        self.options.pop("lr", None)
        made = client.state_options()
        if entry.cover is not None:
            made["packing"] = context.packing
        if context.preconditioner is not None and entry.has_second_moment:
            made["v0"] = context.preconditioner
        self.state = kernels.client_state(client.rule, x, **made)
        self.same_batch = bool(made.get("same_batch", False))
        self.counts_epochs = getattr(client, "delay_unit", "step") == "epoch"
        self.anchored = client.prox > 0

    def step(
        self,
        step: int,
        x: Tensor,
        grad: Tensor,
        *,
        loss: float | Tensor,
        epoch: int | Tensor,
        previous_grad: Tensor | None = None,
        finished: Tensor | None = None,
    ) -> None:
        """Local step `step` and its `epoch` (both counted from 1): moves x in place along the raw gradient `grad`."""
        given: dict[str, Any] = dict(self.options)
        if self.context.lr is not None:
            given["lr"] = self.learning_rate(step)
        if self.anchored:
            given["anchor"] = self.context.anchor
        if CLIENT_RULES[self.client.rule].step_size == "sps":
            given["loss"] = loss
        if self.counts_epochs:
            given["epoch"] = epoch
        kernels.client_step(
            self.client.rule,
            x,
            grad,
            self.state,
            correction=self.context.correction,
            previous_grad=previous_grad,
            finished=finished,
            **given,
        )

    def corrected(self, grad: Tensor, x: Tensor) -> Tensor:
        """What the rule sees of a raw gradient at x: for Delta-SGD's comparison with the gradient before."""
        zero = torch.zeros_like(grad[..., :1])
        correction = zero if self.context.correction is None else self.context.correction
        anchor = self.context.anchor if self.anchored else x
        seen: Tensor = rules.corrected_gradient(
            grad, x, anchor, correction, self.client.weight_decay, self.client.prox, 1.0
        )
        if self.client.clip is not None:
            kernels.clip(seen, self.client.clip)
        return seen

    def learning_rate(self, step: int) -> Any:
        """The learning rate given to local step `step` (from 1): a number, (clients,), or None."""
        lr: Any = self.context.lr
        return None if lr is None else self.client.learning_rate(lr, step)

    def step_size(self, step: int) -> Any:
        """The step size that step took: a number or (clients,)."""
        return self.state["lr"] if self.client.finds_step_size else self.learning_rate(step)
