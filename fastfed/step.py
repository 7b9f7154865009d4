"""The step room: the global model, the server's state, and one fused kernel that moves both."""

from __future__ import annotations

import math
from collections import deque

import torch
from torch import Tensor

from . import kernels
from .aggregate import Aggregate
from .servers import Server


class ServerModel:
    """The packed model `x` (d,) and the state of its optimizer, by name.

    `history` further past models are kept, the newest first, for clients that start from an older one.
    """

    def __init__(self, server: Server, x: Tensor, history: int = 0) -> None:
        self.server, self.x = server, x
        self.state = kernels.server_state(server.rule, x, **server.state_options())
        self.past: deque[Tensor] = deque(maxlen=history)

    def step(self, aggregate: Aggregate, lr: float) -> bool:
        """Moves the model along the aggregate with learning rate `lr`; an aggregate that is not finite, so large that
        moments or model would overflow, or that no client is in, changes nothing. Whether it moved."""
        moves = aggregate.counted > 0 and aggregate.largest < self._limit(lr)  # NaN is below nothing
        if self.past.maxlen:
            self.past.appendleft(self.x.clone())
        if moves:
            options = self.server.step_options() | {"lr": lr}
            kernels.server_step(self.server.rule, self.x, aggregate.delta, self.state, **options)
        return moves

    def _limit(self, lr: float) -> float:
        """What an aggregate's numbers must stay below, with room for moments that grow over many rounds."""
        most = 0.01 * torch.finfo(self.x.dtype).max
        return math.sqrt(most) if "v" in self.state else most / max(lr, 1.0)

    def tensors(self) -> dict[str, Tensor]:
        """Model and state by name, for a checkpoint."""
        past = {f"past.{age}": model for age, model in enumerate(self.past)}
        return {"x": self.x, **{f"server.{name}": tensor for name, tensor in self.state.items()}, **past}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Takes over what `tensors` gave."""
        self.x.copy_(tensors["x"])
        for name, tensor in self.state.items():
            tensor.copy_(tensors[f"server.{name}"])
        self.past.clear()
        for age in range(sum(name.startswith("past.") for name in tensors)):
            self.past.append(tensors[f"past.{age}"].clone())
