"""The step room: the global model, the server's state, and one fused kernel that moves both."""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import Tensor

from . import kernels
from .aggregate import Aggregate
from .servers import Server


class PastModels:
    """Past global models by version (the number of server steps before them), rows of one buffer on their device.

    A row is used again once nobody needs its model, so the buffer has at most twice the rows that were ever needed at
    once: it grows by doubling.
    """

    def __init__(self, like: Tensor) -> None:
        self._rows: dict[int, int] = {}
        self._models = like.new_empty(0, like.numel())

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, version: int, model: Tensor) -> None:
        """Keeps a copy of the model (d,)."""
        free = set(range(len(self._models))) - set(self._rows.values())
        if not free:
            grown = self._models.new_empty(max(2 * len(self._models), 2), self._models.shape[1])
            grown[: len(self._models)] = self._models
            free, self._models = {len(self._models)}, grown
        self._rows[version] = min(free)
        self._models[self._rows[version]] = model

    def keep(self, versions: Collection[int]) -> None:
        """Forgets all others."""
        self._rows = {version: row for version, row in self._rows.items() if version in versions}

    def get(self, version: int) -> Tensor:
        """The model (d,), a view."""
        return self._models[self._rows[version]]

    def tensors(self) -> dict[str, Tensor]:
        """`versions` (n,) int64 and `models` (n, d), for a checkpoint."""
        rows = list(self._rows.values())
        return {"versions": torch.tensor(list(self._rows), dtype=torch.int64), "models": self._models[rows]}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Takes over what `tensors` gave."""
        self._rows = {version: row for row, version in enumerate(tensors["versions"].tolist())}
        self._models = tensors["models"].to(self._models.device, copy=True)


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
