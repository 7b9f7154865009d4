"""The step room: the global model, the server's state, and what moves both: one fused kernel, or a server of the
user's own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from . import kernels
from .aggregate import Aggregate
from .packing import Packing
from .past import PastModels
from .servers import OwnServer, Server, State, server_name
from .train.total import largest


class ServerModel:
    """The packed model `x` (d,), the state of its optimizer by name, and past models while clients need them."""

    is_own = False  # whether it is the user's code that steps
    state: State

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


class OwnServerModel(ServerModel):
    """Moved by a server of the user's own, for a run with this many `clients`."""

    is_own = True

    def __init__(self, server: OwnServer, x: Tensor, packing: Packing, clients: int) -> None:
        self.own, self.x, self.past = server, x, PastModels(x)
        self.name = server_name(server)
        self._packing = packing
        with self._blamed("begin"):
            state = server.begin(x.clone(), clients)
        self.state = self._checked_state(state, "begin")

    def step(self, aggregate: Aggregate, lr: float) -> bool:
        """As that of our own rules: a model that would not be finite is not taken, nor the state beside it."""
        if aggregate.is_empty or not aggregate.total.is_below(self._limit(lr)):
            return False
        state, x = self._next(aggregate, lr)
        moves = largest(x) < math.inf
        if moves:
            self.state = state
            self.x.copy_(x)
            self._packing.clear_gaps(self.x)
        return moves

    @torch.no_grad()
    def _next(self, aggregate: Aggregate, lr: float) -> tuple[State, Tensor]:
        """What the user's code makes of copies, so that nothing has happened where it fails."""
        copies = {name: tensor.clone() for name, tensor in self.state.items()}
        with self._blamed("step"):
            found: Any = self.own.step(copies, self.x.clone(), aggregate, lr)
        if not isinstance(found, tuple) or len(found) != 2:
            raise TypeError(f"server: step of {self.name} must give (state, x), got {_kind(found)}")
        state, x = found
        if not isinstance(x, Tensor) or x.shape != self.x.shape or x.dtype is not self.x.dtype:
            raise TypeError(f"server: step of {self.name} must give an x like {_kind(self.x)}, got {_kind(x)}")
        return self._checked_state(state, "step"), x

    @contextmanager
    def _blamed(self, method: str) -> Iterator[None]:
        """What the user's code raises, as a sentence that says so."""
        try:
            yield
        except Exception as error:
            raise RuntimeError(f"server: {method} of {self.name} raised {type(error).__name__}: {error}") from error

    def _checked_state(self, state: object, made_by: str) -> State:
        """Copies: nothing that the user's code keeps is ours."""
        if not isinstance(state, dict) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
            held = {name: _kind(value) for name, value in state.items()} if isinstance(state, dict) else _kind(state)
            raise TypeError(f"server: {made_by} of {self.name} must give a state of tensors by name, got {held}")
        return {str(name): tensor.detach().clone() for name, tensor in state.items()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """The state may have other names than it began with, and other shapes."""
        held = {name.removeprefix("server."): t for name, t in tensors.items() if name.startswith("server.")}
        self.state = {name: tensor.to(self.x.device) for name, tensor in held.items()}
        super().load(tensors)


def _kind(value: object) -> str:
    """What a thing is, for errors."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return type(value).__name__
