"""What FastFed's optimizers share: groups and their checks, closures, state, one call of a kernel for all tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..clients import Client
from ..kernels.check import FLOATS
from ..kernels.ops.gradients import Parts, Sight
from ..kernels.table import FLAG, NON_NEGATIVE
from ..servers import Server

Settings = Server | Client
State = dict[str, Any]  # of one parameter: tensors by the names of the kernels, and the number of its steps, "step"
_layout = operator.attrgetter("layout")


@dataclass(slots=True)
class Work:
    """What a step has to do in a group: its parameters that have gradients, and their states."""

    group: dict[str, Any]
    settings: Any
    sight: Sight
    x: Parts
    grad: Parts
    states: list[State]

    def held(self, name: str) -> Parts | None:
        """The tensors of that name of all states; None where they do without."""
        return [state[name] for state in self.states] if name in self.states[0] else None

    def by_step(self) -> Iterator[tuple[int, Work]]:
        """The work with the number of its step, counted from 1; in pieces where parameters differ in it."""
        steps = [state["step"] + 1 for state in self.states]
        if len(set(steps)) == 1:
            yield steps[0], self
            return
        for step in sorted(set(steps)):
            chosen = [i for i, each in enumerate(steps) if each == step]
            x, grad = [self.x[i] for i in chosen], [self.grad[i] for i in chosen]
            yield step, Work(self.group, self.settings, self.sight, x, grad, [self.states[i] for i in chosen])


@lru_cache(maxsize=512, typed=True)
def _made(kind: Any, names: tuple[str, ...], *values: Any) -> Any:
    """Settings, checked; cached, as a training loop asks for the same ones at every step."""
    return kind(**dict(zip(names, values, strict=True)))


class Descent(torch.optim.Optimizer):
    """The base of FastFed's optimizers: a `torch.optim.Optimizer` whose step is one call of a kernel.

    Parameters are float32 or float64, wherever they live; one without a gradient is left as it is. Options are those of
    the class in `fastfed.servers` or `fastfed.clients` that bears the rule, per group if need be, and are checked when
    a group comes in and at every step. `weight_decay` adds to the gradient, as in torch.optim.SGD and Adam; `maximize`
    goes up. The state of a parameter holds the kernel's tensors by their names, and `step`.
    """

    settings: ClassVar[type[Settings]]  # whose fields the options are
    keeps_state: ClassVar[bool] = True  # for every parameter

    def __init__(self, params: Any, **defaults: Any) -> None:
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group, if its parameters and options fit."""
        super().add_param_group(param_group)
        try:
            self._check(self.param_groups[-1])
        except (TypeError, ValueError):
            del self.param_groups[-1]
            raise

    def _check(self, group: dict[str, Any]) -> None:
        for i, p in enumerate(group["params"]):
            if p.dtype not in FLOATS:
                why = "complex numbers have no order" if p.is_complex() else "keep float32 ones, and use torch.autocast"
                raise TypeError(
                    f"params[{i}]: {type(self).__name__} steps float32 and float64 parameters, got {p.dtype}; {why}"
                )
        self._sight(group)
        self._settings(group)

    def _sight(self, group: dict[str, Any]) -> Sight:
        weight_decay, maximize = group["weight_decay"], group.get("maximize", False)
        if not NON_NEGATIVE.admits(weight_decay):
            raise ValueError(f"weight_decay: must be {NON_NEGATIVE.words}, got {weight_decay!r}")
        if not FLAG.admits(maximize):
            raise ValueError(f"maximize: must be {FLAG.words}, got {maximize!r}")
        return Sight.of(weight_decay, maximize)

    def _settings(self, group: dict[str, Any]) -> Any:
        """The group's options as settings of `fastfed.servers` or `fastfed.clients`, which check them."""
        kind: Any = self.settings
        names = _names(kind, tuple(self.defaults))
        values = [_number(group[name]) for name in names]
        try:
            return _made(kind, names, *values)
        except TypeError:  # an unhashable value is explained uncached
            return _made.__wrapped__(kind, names, *values)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of all parameters that have a gradient.

        `closure` reevaluates the model and returns the loss, which is then returned here.
        """
        loss = evaluated(closure)
        self._descend(loss)
        return loss

    @torch._disable_dynamo  # a compiled function calls it as it is: there is nothing in it that could be traced
    @torch.no_grad()
    def _descend(self, loss: Any) -> None:
        works = [work for group in self.param_groups if (work := self._work(group)) is not None]
        for work in works:
            self._refuse(work)
        for work in works:  # only now: what is refused leaves every group as it was
            self._begin(work)
        if works:
            self._take(works, loss)
            for work in works:  # for autograd, which could not know otherwise that their graphs are of old parameters
                torch.autograd.graph.increment_version(work.x)

    def _work(self, group: dict[str, Any]) -> Work | None:
        x: Parts = group["params"]
        grad = [p.grad for p in x]
        if any(g is None for g in grad):
            x = [p for p, g in zip(x, grad, strict=True) if g is not None]
            grad = [p.grad for p in x]
        if not x:
            return None
        layouts = set(map(_layout, grad)) - {torch.strided}
        if layouts:
            raise TypeError(
                f"grad: {type(self).__name__} steps along dense gradients, got {layouts.pop()}; use sparse=False"
            )
        settings, sight = self._settings(group), self._sight(group)
        states = list(map(self.state.__getitem__, x)) if self.keeps_state else []
        return Work(group, settings, sight, x, grad, states)  # type: ignore[arg-type]

    def _refuse(self, work: Work) -> None:
        """Refuses work whose options do not go with the states, which are empty before a first step."""

    def _begin(self, work: Work) -> None:
        if not all(work.states):
            for state, p, g in zip(work.states, work.x, work.grad, strict=True):
                if not state:
                    state.update(self._start(work.settings, work.sight, p.detach(), g))

    def _start(self, settings: Any, sight: Sight, x: Tensor, grad: Tensor) -> State:
        """The state of a parameter before its first step, along what is seen of that gradient."""
        raise NotImplementedError

    def _take(self, works: list[Work], loss: Any) -> None:
        """The step of all groups; the loss, if a closure gave one."""
        raise NotImplementedError


def evaluated(closure: Callable[[], Any] | None) -> Any:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _number(value: Any) -> Any:
    """An option as a number: schedulers may hold learning rates in tensors."""
    return float(value) if isinstance(value, Tensor) else value


@lru_cache(maxsize=64)
def _names(kind: Any, defaults: tuple[str, ...]) -> tuple[str, ...]:
    """The options of a group that are fields of these settings."""
    return tuple(field.name for field in fields(kind) if field.name in defaults)
