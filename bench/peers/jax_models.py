"""The workloads' models as functions of JAX: parameters in a list, in torch's order but in JAX's layouts.

Dense weights are (in, out), windows (height, width, in, out), pictures (n, height, width, channels), as XLA has them
quickest on a CPU; `from_torch` and `to_torch` are the way there and back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Array = Any
Model = Callable[[Sequence[Array], Array], Array]

_THERE = {2: (1, 0), 4: (2, 3, 1, 0)}  # torch's axes in JAX's order, by the number of dimensions
_BACK = {2: (1, 0), 4: (3, 2, 0, 1)}


def from_torch(arrays: Sequence[np.ndarray]) -> list[Array]:
    """Parameters in JAX's layouts."""
    return [jnp.asarray(_turned(each, _THERE)) for each in arrays]


def to_torch(parameters: Sequence[Array]) -> list[np.ndarray]:
    """Parameters in torch's layouts."""
    return [_turned(np.asarray(each), _BACK) for each in parameters]


def pictures(inputs: np.ndarray) -> np.ndarray:
    """Examples with channels last, where they are pictures."""
    return np.ascontiguousarray(inputs.transpose(0, 2, 3, 1)) if inputs.ndim == 4 else inputs


def loss_of(told: dict[str, Any]) -> Callable[[Sequence[Array], Array, Array], Array]:
    """The loss of a task's model: a function of parameters, inputs and targets; an error where there is no model."""
    if told["workload"] not in _MODELS:
        raise LookupError(f"no model for JAX of {told['workload']!r}")
    model, loss = _MODELS[told["workload"]](told), _LOSSES[told["loss"]]
    return lambda parameters, inputs, targets: loss(model(parameters, inputs), targets)


def _turned(array: np.ndarray, axes: dict[int, tuple[int, ...]]) -> np.ndarray:
    return np.ascontiguousarray(array.transpose(axes[array.ndim])) if array.ndim in axes else array


def _cross_entropy(outputs: Array, targets: Array) -> Array:
    """Of labels (n,), or of every position of sequences (n, length)."""
    chosen = jnp.take_along_axis(jax.nn.log_softmax(outputs), targets[..., None].astype(jnp.int32), -1)
    return -chosen.mean()


_LOSSES = {"cross_entropy": _cross_entropy, "mse": lambda outputs, targets: ((outputs - targets) ** 2).mean()}


# ---- layers


def _convolve(x: Array, weight: Array, stride: int = 1, padding: int = 0) -> Array:
    around = ((padding, padding), (padding, padding))
    return jax.lax.conv_general_dilated(
        x, weight, (stride, stride), around, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )  # fmt: skip


def _group_norm(x: Array, scale: Array, shift: Array, groups: int = 2) -> Array:
    n, height, width, channels = x.shape
    parts = x.reshape(n, height, width, groups, channels // groups)
    mean = parts.mean((1, 2, 4), keepdims=True)
    variance = parts.var((1, 2, 4), keepdims=True)
    return ((parts - mean) * jax.lax.rsqrt(variance + 1e-5)).reshape(x.shape) * scale + shift


def _layer_norm(x: Array, scale: Array, shift: Array, eps: float = 1e-6) -> Array:
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + eps) * scale + shift


def _recur(x: Array, of_input: Array, of_hidden: Array, bias: Array) -> Array:
    """An LSTM over (n, length, channels), from zeros; gates in the order i, f, g, o."""
    driven = (x @ of_input + bias).swapaxes(0, 1)
    zeros = jnp.zeros((x.shape[0], of_hidden.shape[0]), x.dtype)

    def step(state: tuple[Array, Array], now: Array) -> tuple[tuple[Array, Array], Array]:
        hidden, cell = state
        i, f, g, o = jnp.split(now + hidden @ of_hidden, 4, -1)
        cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
        return (hidden, cell), hidden

    return jax.lax.scan(step, (zeros, zeros), driven)[1].swapaxes(0, 1)


# ---- models


def dense_layers(activation: Callable[[Array], Array], last: Callable[[Array], Array] = lambda x: x) -> Model:
    """Dense layers with an activation between them, and `last` behind the last."""

    def model(p: Sequence[Array], x: Array) -> Array:
        x = x.reshape(x.shape[0], -1)
        for place in range(0, len(p), 2):
            x = x @ p[place] + p[place + 1]
            x = activation(x) if place < len(p) - 2 else last(x)
        return x

    return model


def _emnist_cnn(p: Sequence[Array], x: Array) -> Array:
    x = _convolve(x, p[0]) + p[1]
    x = jax.nn.relu(_convolve(x, p[2]) + p[3])
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = x.transpose(0, 3, 1, 2).reshape(x.shape[0], -1)  # torch's order of what the dense layer reads
    return jax.nn.relu(x @ p[4] + p[5]) @ p[6] + p[7]


def _shakespeare(p: Sequence[Array], x: Array) -> Array:
    x = p[0].T[x]
    for first in (1, 4):
        x = _recur(x, *p[first : first + 3])
    return x @ p[7] + p[8]


def _resnet18(p: Sequence[Array], x: Array) -> Array:
    rest: Iterator[Array] = iter(p)

    def convolved(x: Array, stride: int, padding: int) -> Array:
        return _group_norm(_convolve(x, next(rest), stride, padding), next(rest), next(rest))

    x = jax.nn.relu(convolved(x, 1, 1))
    for stage in range(4):
        for unit in range(2):
            stride = 2 if stage and not unit else 1
            body = convolved(jax.nn.relu(convolved(x, stride, 1)), 1, 1)
            x = jax.nn.relu(body + (convolved(x, stride, 0) if stride == 2 else x))
    return x.mean((1, 2)) @ next(rest) + next(rest)


def _vision_transformer(names: Sequence[str], heads: int) -> Model:
    """Parameters by the names that ``fastfed.models.VisionTransformer`` has for them."""

    def model(p: Sequence[Array], x: Array) -> Array:
        of = dict(zip(names, p, strict=True))

        def dense(x: Array, name: str) -> Array:
            return x @ of[f"{name}.weight"] + of[f"{name}.bias"]

        def normed(x: Array, name: str) -> Array:
            return _layer_norm(x, of[f"{name}.weight"], of[f"{name}.bias"])

        def attend(x: Array, name: str) -> Array:
            n, length, channels = x.shape
            parts = dense(x, f"{name}.inputs").reshape(n, length, 3, heads, channels // heads)
            query, key, value = parts.transpose(2, 0, 3, 1, 4)
            shares = jax.nn.softmax(query @ key.swapaxes(-2, -1) / jnp.sqrt(channels / heads))
            return dense((shares @ value).swapaxes(1, 2).reshape(n, length, channels), f"{name}.outputs")

        patches = of["patches.weight"]
        x = _convolve(x, patches, stride=patches.shape[0]) + of["patches.bias"]
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        x = jnp.concatenate([jnp.broadcast_to(of["token"], (x.shape[0], 1, x.shape[-1])), x], 1) + of["places"]
        for block in range(sum(name.endswith("attention.inputs.weight") for name in names)):
            own = f"blocks.{block}"
            x = x + attend(normed(x, f"{own}.first"), f"{own}.attention")
            inner = jax.nn.gelu(dense(normed(x, f"{own}.second"), f"{own}.dense.0"), approximate=False)
            x = x + dense(inner, f"{own}.dense.2")
        return dense(normed(x, "norm")[:, 0], "head")

    return model


def _always(model: Model) -> Callable[[dict[str, Any]], Model]:
    return lambda told: model


_MODELS: dict[str, Callable[[dict[str, Any]], Model]] = {
    "W1": _always(dense_layers(jax.nn.relu)),
    "W2": _always(dense_layers(jax.nn.relu)),
    "W2x5": _always(dense_layers(jax.nn.relu)),
    "W3": _always(_emnist_cnn),
    "LSTM": _always(_shakespeare),
    "ResNet10": _always(_resnet18),
    "AE": _always(dense_layers(jax.nn.sigmoid, last=jax.nn.sigmoid)),
    "ViT": lambda told: _vision_transformer(told["names"], told["heads"]),
}
