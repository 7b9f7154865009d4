"""Steps along the gradients of a model in parts: what an optimizer does to all its parameters, in one call.

The compiled backend takes the tensors where they are and touches each once. Where one of them is unusual (strided, of
another dtype, on a device), and on the other backends, the step goes part by part, over copies where it has to. Moments
have the sign of the gradient, as optimizers keep them: a server's formula goes along it with a negative learning rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import covers, extension, registry
from ..client_call import ClientCall
from ..table import CLIENT_RULES, NO_COVER, SERVER_RULES, client_numbers, server_numbers
from .common import numbers_of
from .common import scalar_rules as rules
from .server import corrected_at

Parts = list[Tensor]


class Sight(NamedTuple):
    """The gradient that a rule sees of g: ``scale * (g + weight_decay * x)``."""

    scale: float = 1.0
    weight_decay: float = 0.0

    @classmethod
    def of(cls, weight_decay: float, maximize: bool) -> Sight:
        """The gradient with weight decay; of a sum to be maximised, minus the gradient, with it."""
        return cls(-1.0, -weight_decay) if maximize else cls(1.0, weight_decay)

    def seen(self, grad: Tensor, x: Tensor) -> Tensor:
        """What is seen of `grad` at `x`, of its dtype."""
        grad = grad.detach().to(x.dtype)
        return grad if self == (1.0, 0.0) else self.scale * (grad + self.weight_decay * x)


class _Plain:
    """Tensors as plain vectors: on the same memory where that is possible, else as copies that `write_back` returns."""

    def __init__(self) -> None:
        self._copies: list[tuple[Tensor, Tensor]] = []

    def __call__(self, tensor: Tensor | None) -> Tensor | None:
        if tensor is None:
            return None
        tensor = tensor.detach()
        if tensor.is_contiguous():
            return tensor.view(-1)
        copy = tensor.contiguous().view(-1)
        self._copies.append((tensor, copy))
        return copy

    def write_back(self) -> None:
        for tensor, copy in self._copies:
            tensor.copy_(copy.view(tensor.shape))


def _compiled(x: Tensor, backend: str | None) -> ModuleType | None:
    """The extension, where its backend is the one for x."""
    return _extension() if registry.pick(backend, x).name == "cpp" else None


_extension = lru_cache(maxsize=1)(extension.load)  # to look for it among the modules takes a microsecond


@lru_cache(maxsize=1)
def _formulas() -> tuple[dict[str, int], dict[str, int], dict[str | None, int]]:
    """The numbers of server formulas, of directions and of covers in the extension."""
    known = extension.numbers("covers")
    named = {None if name == NO_COVER else name: number for name, number in known.items()}
    return extension.numbers("server_formulas"), extension.numbers("directions"), named


def server_gradient_step(
    rule: str,
    x: Parts,
    grad: Parts,
    moments: dict[str, Parts],
    sight: Sight,
    step: int,
    backend: str | None = None,
    **options: Any,
) -> None:
    """A step of a server rule down the gradients, of `step` counted from 1: x and moments in place."""
    entry = SERVER_RULES[rule]
    numbers = numbers_of(server_numbers, options, rule)
    if numbers.bias_correction:
        numbers = corrected_at(step, numbers)
    numbers = numbers._replace(lr=-numbers.lr)
    get = moments.get
    core = _compiled(x[0], backend)
    if core and core.gradient_parts(
        _formulas()[0][entry.formula], x, grad, get("m"), get("v"), get("vmax"), *sight, numbers
    ):
        return
    for i, (part, g) in enumerate(zip(x, grad, strict=True)):
        if part.numel() == 0:
            continue
        plain = _Plain()
        flat = plain(part)
        assert flat is not None
        m, v, vmax = (plain(moments[name][i] if name in moments else None) for name in ("m", "v", "vmax"))
        seen = sight.seen(g, part.detach()).reshape(-1).contiguous()
        registry.pick(backend, flat).server_step(entry, flat, seen, m, v, vmax, numbers)
        plain.write_back()


@lru_cache(maxsize=1024)
def cover_of(shape: tuple[int, ...]) -> Tensor:
    """The SM3 cover of one tensor of that shape."""
    return covers.encode(math.prod(shape), [0], [shape])


def sets_of(shape: Sequence[int]) -> int:
    """How many sets the cover of a tensor of that shape has."""
    return covers.decode(cover_of(tuple(shape))).mu_size


def covered_gradient_step(
    rule: str,
    x: Parts,
    grad: Parts,
    held: dict[str, Parts],
    sight: Sight,
    step: int,
    backend: str | None = None,
    **options: Any,
) -> None:
    """A step of an SM3 rule, of `step` counted from 1; `held` has mu and, where the rule keeps it, m: all in place."""
    entry = CLIENT_RULES[rule]
    numbers = numbers_of(client_numbers, options, rule, False)
    layouts = [cover_of(tuple(part.shape)) for part in x]
    core = _compiled(x[0], backend)
    if core:
        lr, root_scale = float(numbers.lr or 0.0), 1.0
        if entry.corrects_bias:
            lr /= rules.bias(numbers.beta1, step + numbers.bias_from)
            root_scale = 1.0 / math.sqrt(rules.bias(numbers.beta2, step + numbers.bias_from))
        _, directions, cover_forms = _formulas()
        which = directions[entry.formula], cover_forms[entry.cover]
        m, mu = held.get("m"), held["mu"]
        if core.covered_parts(*which, x, grad, m, mu, layouts, *sight, lr, root_scale, numbers):
            return
    for i, (part, g) in enumerate(zip(x, grad, strict=True)):
        if part.numel() == 0:
            continue
        plain = _Plain()
        flat = plain(part)
        assert flat is not None
        state = {name: plain(tensors[i]) for name, tensors in held.items()}
        counted = {name: torch.tensor(step - 1, device=flat.device) for name in ("step", "refreshes")}
        seen = sight.seen(g, part.detach()).reshape(-1).contiguous()
        call = ClientCall(entry, numbers, flat, seen, {**state, **counted, "cover": layouts[i]})  # type: ignore[dict-item]
        registry.pick(backend, flat).client_step(call)
        plain.write_back()


def gradient_squares(x: Parts, grad: Parts, sight: Sight, before: Parts | None = None) -> float:
    """The sum of squares of all gradients; or of what they differ from those `before` by, which are then these."""
    core = _compiled(x[0], None)
    found = core.squares_of_parts(x, grad, before, *sight) if core else None
    if found is not None:
        return float(found)
    seen = [sight.seen(g, part.detach()) for part, g in zip(x, grad, strict=True)]
    if before is None:
        return math.fsum(_squares(g) for g in seen)
    change = math.fsum(_squares(rules.change(g, last)) for g, last in zip(seen, before, strict=True))
    for g, last in zip(seen, before, strict=True):
        last.copy_(g)
    return change


def move(x: Parts, grad: Parts, sight: Sight, step: float, measured: bool = False) -> float:
    """Moves x by `step` down its gradients. The sum of squares of the move, if it shall be `measured`."""
    core = _compiled(x[0], None)
    found = core.move_parts(x, grad, *sight, step, measured) if core else None
    if found is not None:
        return float(found)
    squares = []
    for part, g in zip(x, grad, strict=True):
        held = part.detach()
        after = rules.moved(held, sight.seen(g, held), step)
        squares.append(_squares(after - held) if measured else 0.0)
        held.copy_(after)
    return math.fsum(squares)


def _squares(tensor: Tensor) -> float:
    return float(tensor.double().square().sum())


class Found(NamedTuple):
    """What Delta-SGD has found: the step size and its ratio to the last one."""

    step_size: float
    theta: float


def delta_sgd_step_size(last: Found | None, move: float, change: float, **options: Any) -> Found:
    """The next step size from the norms of the last move and of the gradients' change; at first, the `lr` given."""
    n = numbers_of(client_numbers, options, "delta_sgd", False)
    lr, theta = (n.lr, n.theta) if last is None else last
    if last is None and not n.grow_first:
        return Found(lr, theta)
    return Found(
        *rules.delta_sgd_step_size(0.0 if last is None else move, change, lr, theta, n.gamma, n.delta, n.lr_eps)
    )


def sps_step_size(loss: float, squares: float, **options: Any) -> float:
    """Polyak's step size from the loss and the sum of squares of the gradients."""
    n = numbers_of(client_numbers, options, "sps", False)
    return float(rules.sps_step_size(loss, squares, n.c, n.f_star, n.lr_max, n.eps))
