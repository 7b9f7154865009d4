"""The step room: the global model, the server's state, and one fused kernel that moves both."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from . import kernels
from .aggregate import Aggregate
from .past import PastModels
from .servers import Server


class ServerModel:
    """The packed model `x` (d,), the state of its optimizer by name, and past models while clients need them."""

    def __init__(self, server: Server, x: Tensor) -> None:
        self.server, self.x = server, x
        self.state = kernels.server_state(server.rule, x, **server.state_options())
        self.past = PastModels(x)

    def step(self, aggregate: Aggregate, lr: float) -> bool:
        """Moves the model along the aggregate with learning rate `lr`; an aggregate that is not finite, so large that
        moments or model would overflow, or that nothing is in, changes nothing. Whether it moved."""
        moves = not aggregate.is_empty and aggregate.total.is_below(self._limit(lr))
        if moves:
            options = self.server.step_options() | {"lr": lr}
            aggregate.total.step(self.server.rule, self.x, self.state, **options)
        return moves

    def _limit(self, lr: float) -> float:
        """What an aggregate's numbers must stay below, with room for moments that grow over many rounds."""
        most = 0.01 * torch.finfo(self.x.dtype).max
        return math.sqrt(most) if "v" in self.state else most / max(lr, 1.0)

    def starts(self, version: int, age: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The models that clients of these ages (n,) start from when the newest is this `version`: all from the newest,
        (d,) and None; else (models, d) and each client's row (n,) int64."""
        if age is None or not bool(age.any()):
            return self.x, None
        ages, row = age.unique(return_inverse=True)
        models = [self.x if old == 0 else self.past.get(version - old) for old in ages.tolist()]
        return torch.stack(models), row

    def tensors(self) -> dict[str, Tensor]:
        """Model and state by name, for a checkpoint."""
        tensors = {"x": self.x, **{f"server.{name}": tensor for name, tensor in self.state.items()}}
        return tensors | {f"past.{name}": tensor for name, tensor in self.past.tensors().items()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Takes over what `tensors` gave."""
        self.x.copy_(tensors["x"])
        for name, tensor in self.state.items():
            tensor.copy_(tensors[f"server.{name}"])
        self.past.load({name: tensors[f"past.{name}"] for name in ("versions", "models")})
