"""A client step as the ops hand it to a backend."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .table import ClientNumbers, ClientRule


@dataclass(slots=True)
class ClientCall:
    """One checked client step, of one client (d,) or a batch (clients, d).

    `anchor` and `correction` have x's shape, or (d,) for all clients. `lr`, `loss`, `epoch` and `finished` (the clients
    to leave alone) are (clients,) tensors or None; the loss of one client (d,) may be a number. `state` holds the
    caller's tensors under the table's names.
    """

    rule: ClientRule
    numbers: ClientNumbers
    x: Tensor
    grad: Tensor
    state: dict[str, Tensor]
    lr: Tensor | None = None
    loss: Tensor | float | None = None
    anchor: Tensor | None = None
    correction: Tensor | None = None
    previous_grad: Tensor | None = None
    epoch: Tensor | None = None
    finished: Tensor | None = None

    def as_rows(self) -> ClientCall:
        """The same call as a batch: vectors (clients, d) or, where shared by all, (1, d); scalars (clients,)."""
        if self.x.dim() == 2:
            shared = {
                n: t[None] for n in ("anchor", "correction") if (t := getattr(self, n)) is not None and t.dim() == 1
            }
            return replace(self, **shared)
        vectors = ("x", "grad", "anchor", "correction", "previous_grad")
        rows = {n: t[None] for n in vectors if (t := getattr(self, n)) is not None}
        state = {n: t if n in ("cover", "sets") else t[None] for n, t in self.state.items()}
        if isinstance(self.loss, float):
            rows["loss"] = torch.tensor([self.loss], dtype=torch.float64, device=self.x.device)
        return replace(self, state=state, **rows)

    @property
    def clients(self) -> int:
        return self.x.shape[0]

    @property
    def gradient_before(self) -> Tensor:
        """The gradient that Delta-SGD compares with: the caller's (same batch) or the one kept from the last step."""
        return self.state["grad_prev"] if self.previous_grad is None else self.previous_grad
