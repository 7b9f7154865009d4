"""A client algorithm of the user's own at work for the length of a round: one client, or several side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..clients import Algorithm, ClientRound
from ..packing import Packing
from .optimizer import LocalOptimizer, StepContext

GradientAt = Callable[[Tensor], Tensor]  # of the step's batch, at any model (d,)


class LocalAlgorithm:
    """Moves models x, one (d,) or a batch (clients, d), as `LocalOptimizer` does; a batch by ``torch.vmap``.

    The user's code gets copies, so that whatever it remembers stays as it was. `gradient_at` is for algorithms that ask
    for gradients anywhere.
    """

    same_batch = False

    def __init__(self, client: Algorithm, x: Tensor, context: StepContext, gradient_at: GradientAt | None) -> None:
        self.client, self.own, self.context, self.gradient_at = client, client.own, context, gradient_at
        self.is_batch = x.dim() == 2
        brought = {"lr": self._numbers(context.lr, x), "steps": self._numbers(context.steps, x)}
        brought["kept"] = None if context.kept is None else context.kept.clone()
        mapped = {name: value for name, value in brought.items() if value is not None}
        common = None if context.common is None else context.common.clone()

        def begin(start: Tensor, mapped: Mapping[str, Tensor]) -> dict[str, Any]:
            given: Any = {"lr": None, "steps": None, "kept": None, "common": common, **mapped}
            return self._checked_state(self.own.client_init(start, ClientRound(**given)), "client_init")

        self.state = self._called("client_init", begin, x.clone(), mapped)

    def _numbers(self, value: Any, x: Tensor) -> Tensor | None:
        """A number for each client of x, as tensors: (clients,), or ()."""
        if value is None:
            return None
        dtype = None if isinstance(value, Tensor) and not value.is_floating_point() else x.dtype
        found = torch.as_tensor(value, dtype=torch.int64 if isinstance(value, int) else dtype, device=x.device)
        return found.expand(len(x)) if self.is_batch and found.dim() == 0 else found

    @torch.no_grad()
    def _called(self, name: str, function: Callable[..., Any], *given: Any) -> Any:
        """What the user's code gives, for one client or, mapped, for all."""
        try:
            return torch.vmap(function)(*given) if self.is_batch else function(*given)
        except Exception as error:
            if getattr(error, "is_told", False):
                raise
            side = ", run side by side (vectorised)," if self.is_batch else ""
            raise RuntimeError(
                f"client: {name} of {self.client.rule}{side} raised {type(error).__name__}: {error}"
            ) from error

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
        """Local step `step` (from 1): moves x in place; `grad` is the raw gradient there."""
        gradient: Any = self.corrected(grad, x)
        params = x.clone()
        if self.gradient_at is not None:
            gradient = self._anywhere(params, gradient)

        def once(state: dict[str, Any], params: Tensor, gradient: Any) -> tuple[dict[str, Any], Tensor]:
            return self._checked_step(self.own.client_step(state, params, gradient, step), params)

        state, moved = self._called("client_step", once, self.state, params, gradient)
        if finished is None:
            self.state = state
            x.copy_(moved)
            return
        if state.keys() != self.state.keys():
            raise _told(
                f"client_step of {self.client.rule} must give back the names of its state, {_names(self.state)}"
            )
        self.state = {name: _kept(finished, self.state[name], tensor) for name, tensor in state.items()}
        x.copy_(_kept(finished, x, moved))

    def _anywhere(self, params: Tensor, gradient: Tensor) -> GradientAt:
        """The gradient of the batch as a function of the model; that at `params` itself is there already."""
        assert self.gradient_at is not None
        elsewhere = self.gradient_at

        def at(model: Tensor) -> Tensor:
            if model is params:
                return gradient.clone()
            self._checked_vector(model, gradient, "a call of gradient", "models")
            with torch.enable_grad():
                found = elsewhere(model)
            return self.corrected(found, model)

        return at

    def corrected(self, grad: Tensor, x: Tensor) -> Tensor:
        """What the algorithm sees of a raw gradient at x, a copy."""
        return grad.clone() if self.context.correction is None else grad + self.context.correction

    def learning_rate(self, step: int) -> Any:
        """The learning rate given to local step `step` (from 1): a number, (clients,), or None."""
        return self.context.lr

    def step_size(self, step: int) -> Any:
        """What the record tells of a step: the learning rate, if there is one."""
        return math.nan if self.context.lr is None else self.context.lr

    def final(self, x: Tensor) -> dict[str, Tensor]:
        """What clients keep and send, by name, a vector each; x becomes the models that deltas are taken from. A client
        whose vectors are not finite gets a model that is not, so that all of it is refused."""

        def end(state: dict[str, Any], params: Tensor) -> dict[str, Tensor]:
            return self._checked_final(self.own.client_final(state, params), params)

        found = self._called("client_final", end, self.state, x.clone())
        x.copy_(found.pop("params"))
        self.context.packing.clear_gaps(x)
        for vectors in found.values():
            x.masked_fill_(~torch.isfinite(vectors).all(-1, keepdim=True), math.nan)
        return found

    # ---- what the user's code gives ---------------------------------------------------------------------------------

    def _checked_state(self, state: object, made_by: str) -> dict[str, Any]:
        if not isinstance(state, dict):
            raise _told(f"{made_by} of {self.client.rule} must give a state, a dict, got {type(state).__name__}")
        return state

    def _checked_step(self, found: object, params: Tensor) -> tuple[dict[str, Any], Tensor]:
        if not isinstance(found, tuple) or len(found) != 2:
            raise _told(f"client_step of {self.client.rule} must give (state, params), got {type(found).__name__}")
        state, moved = found
        return self._checked_state(state, "client_step"), self._checked_vector(moved, params, "client_step", "params")

    def _checked_final(self, found: object, params: Tensor) -> dict[str, Tensor]:
        vectors = found if isinstance(found, dict) else {"params": found}
        wanted = {"params", *(["kept"] if self.client.keeps else []), *(["sent"] if self.client.sends else [])}
        if vectors.keys() != wanted:
            raise _told(
                f"client_final of {self.client.rule} must give {_names(wanted)}, as `keeps` and `sends` of it say, "
                f"got {_names(vectors)}"
            )
        return {name: self._checked_vector(one, params, "client_final", name) for name, one in vectors.items()}

    def _checked_vector(self, one: object, params: Tensor, made_by: str, name: str) -> Tensor:
        if isinstance(one, Tensor) and one.shape == params.shape and one.dtype is params.dtype:
            return one
        got = f"{one.dtype} {tuple(one.shape)}" if isinstance(one, Tensor) else type(one).__name__
        wanted = f"{params.dtype} {tuple(params.shape)}"
        raise _told(f"{made_by} of {self.client.rule} must give {name} like those it gets, {wanted}, got {got}")


def _told(sentence: str) -> TypeError:
    """An error that names its setting already."""
    error = TypeError(f"client: {sentence}")
    error.is_told = True  # type: ignore[attr-defined]
    return error


def _names(names: Any) -> str:
    return ", ".join(sorted(map(str, names)))


def _kept(finished: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """Of clients that have `finished` (clients,), the old."""
    return torch.where(finished.view(-1, *(1,) * (new.dim() - 1)), old, new)


def vectors_of(algorithm: Algorithm, packing: Packing) -> int:
    """How many vectors an algorithm has in mind besides the model that it begins with and what its clients keep."""
    known = start, kept = packing.zeros(), packing.zeros()
    number = None if algorithm.lr is None else start.new_tensor(algorithm.lr)
    given: Any = (
        number,
        torch.tensor(1),
        kept if algorithm.keeps else None,
        start.clone() if algorithm.sends else None,
    )
    try:
        state = algorithm.own.client_init(start, ClientRound(*given))
    except Exception as error:
        raise RuntimeError(f"client: client_init of {algorithm.rule} raised {type(error).__name__}: {error}") from error
    held = [one for one in state.values() if isinstance(one, Tensor)] if isinstance(state, dict) else []
    return sum(one.shape == start.shape and all(one is not other for other in known) for one in held)


def local_optimizer(
    client: Any, x: Tensor, context: StepContext, gradient_at: GradientAt | None = None
) -> LocalOptimizer | LocalAlgorithm:
    """What moves x by an optimizer, rule or algorithm."""
    if isinstance(client, Algorithm):
        return LocalAlgorithm(client, x, context, gradient_at if client.gradient_anywhere else None)
    return LocalOptimizer(client, x, context)
