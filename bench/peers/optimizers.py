"""The alternatives a user has today: torch.optim in its three forms, optax under jit, plain torch."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..common.timing import Call

_LR = 1e-3
_TORCH: dict[str, tuple[Callable[..., torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9}),
    "adagrad": (torch.optim.Adagrad, {}),
    "adam": (torch.optim.Adam, {}),
    "ams": (torch.optim.Adam, {"amsgrad": True}),
}
_FORMS: dict[str, dict[str, bool]] = {
    "torch for-loop": {"foreach": False, "fused": False},
    "torch foreach": {"foreach": True},
    "torch fused": {"fused": True},
}
_OPTAX: dict[str, tuple[str, dict[str, float]]] = {
    "adagrad": ("adagrad", {"initial_accumulator_value": 0.0}),
    "adam": ("adam", {}),
    "yogi": ("yogi", {}),
    "ams": ("amsgrad", {}),
    "sm3": ("sm3", {"momentum": 0.0}),
}


def of_rule(rule: str, x: Tensor, grad: Tensor) -> dict[str, Call]:
    """Every peer that has `rule`, each stepping its own copy of `x` along the shared `grad`."""
    peers = {name: _torch(rule, form, x, grad) for name, form in _FORMS.items()} if rule in _TORCH else {}
    if rule in _OPTAX and has_optax() and x.is_cpu:  # its arrays are jax's, on the host here
        peers["optax jit"] = _optax(rule, x, grad)
    return peers


def has_optax() -> bool:
    """Whether optax, and jax under it, are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("jax", "optax"))


def _torch(rule: str, form: dict[str, bool], x: Tensor, grad: Tensor) -> Call:
    make, options = _TORCH[rule]
    parameter = torch.nn.Parameter(x.clone())
    parameter.grad = grad
    optimizer = make([parameter], lr=_LR, **options, **form)
    return optimizer.step


def _optax(rule: str, x: Tensor, grad: Tensor) -> Call:
    """One jitted step; model and state are donated, so that XLA may update them in place as everybody else does."""
    import jax
    import optax

    name, options = _OPTAX[rule]
    transform = getattr(optax, name)(_LR, **options)

    def step(model: Any, state: Any, gradient: Any) -> tuple[Any, Any]:
        updates, state = transform.update(gradient, state, model)
        return optax.apply_updates(model, updates), state

    jitted = jax.jit(step, donate_argnums=(0, 1))
    gradient = jax.numpy.array(grad.numpy())
    model = jax.numpy.array(x.numpy())
    kept = [model, transform.init(model)]

    def call() -> None:
        kept[:] = jax.block_until_ready(jitted(kept[0], kept[1], gradient))

    return call


def matrix_vector(deltas: Tensor, weights: Tensor) -> Call:
    """The weighted sum as torch's matrix-vector product, into a buffer that exists already."""
    out = torch.empty(deltas.shape[1], device=deltas.device)
    return lambda: torch.mv(deltas.T, weights, out=out)


def medians(deltas: Tensor) -> dict[str, Call]:
    """torch's median over clients, and the middle of its sort."""
    return {
        "torch.median": lambda: deltas.median(0).values,
        "torch.sort": lambda: deltas.sort(0).values[len(deltas) // 2],
    }


def clip(x: Tensor, limit: float) -> Call:
    """Norm, factor and scaling as one writes them in torch."""
    x = x.clone()

    def call() -> None:
        x.mul_((limit / torch.linalg.vector_norm(x)).clamp_(max=1.0))

    return call


def norm(x: Tensor) -> Call:
    """torch's Euclidean norm."""
    return lambda: torch.linalg.vector_norm(x)


def draws(kind: str, n: int, device: torch.device) -> Call:
    """torch's own generator of the device."""
    draw = {"uniform": torch.rand, "normal": torch.randn}[kind]
    return lambda: draw(n, device=device)


def square_side(size: int) -> int:
    """The side of the square matrix of about `size` numbers."""
    return max(1, round(math.sqrt(size)))
