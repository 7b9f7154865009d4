"""Good arguments of every op, ways to spoil them, and what a refusal must be."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import fastfed as ff
from fastfed import kernels

from .support import bits, packed_normal

D = 24
CLIENTS = 3
REFUSALS = (ValueError, TypeError, kernels.BackendUnavailable)
NOT_FINITE = [math.nan, math.inf, -math.inf]


def every_tensor(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from every_tensor(item)


def refuses(argument: str, op: Callable[..., Any], *given: Any, says: str = "", **named: Any) -> None:
    """`op` raises an error that begins with `argument` (and contains `says`); every tensor it was given keeps its bits,
    and no name is added to or taken from a state."""
    tensors = [t for value in (*given, *named.values()) for t in every_tensor(value)]
    kept = [(t, bits(t).clone(), t.requires_grad) for t in tensors if t.device.type == "cpu"]
    states = [(value, set(value)) for value in given if isinstance(value, dict)]
    with pytest.raises(REFUSALS) as caught:
        op(*given, **named)
    message = str(caught.value)
    assert re.match(rf"{re.escape(argument)}(\[.*?\])?: ", message), f"does not begin with {argument!r}: {message}"
    assert says in message, f"does not say {says!r}: {message}"
    for tensor, before, needs_grad in kept:
        assert torch.equal(bits(tensor), before), f"{argument} was refused, but a tensor was modified"
        assert tensor.requires_grad == needs_grad
    for state, names in states:
        assert set(state) == names


def vector(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.linspace(-1, 1, math.prod(shape or (D,))).reshape(shape or (D,)).to(dtype)


def server(rule: str = "adam", **made: Any) -> tuple[str, Tensor, Tensor, dict[str, Tensor]]:
    """Arguments of a `server_step` that would be accepted."""
    x = vector()
    return rule, x, vector() * 0.1, kernels.server_state(rule, x, **made)


def client(
    rule: str = "adam", clients: int | None = None, **made: Any
) -> tuple[str, Tensor, Tensor, dict[str, Tensor]]:
    """Arguments of a `client_step` that would be accepted."""
    x = vector(D) if clients is None else vector(clients, D)
    return rule, x, x * 0.1, kernels.client_state(rule, x, **made)


PACKING = ff.Packing.from_shapes({"w": (4, 4), "b": (5,)})


def covered(rule: str = "sm3", **made: Any) -> tuple[str, Tensor, Tensor, dict[str, Tensor]]:
    x = packed_normal(PACKING, 0)
    return rule, x, packed_normal(PACKING, 1), kernels.client_state(rule, x, packing=PACKING, **made)


def aggregate(rule: str = "adam") -> tuple[str, Tensor, Tensor, Tensor, dict[str, Tensor]]:
    x = vector()
    return rule, x, vector(CLIENTS, D), torch.tensor([0.2, 0.5, 0.3]), kernels.server_state(rule, x)


SPOILED: dict[str, Callable[[Tensor], Any]] = {
    "int": lambda t: t.to(torch.int64),
    "complex": lambda t: t.to(torch.complex64),
    "short": lambda t: t[..., :-1].contiguous(),
    "long": lambda t: torch.cat([t, t], dim=-1),
    "an axis too many": lambda t: t[None, None].contiguous(),
    "another device": lambda t: t.to("meta"),
    "strided": lambda t: torch.stack([t, t], dim=-1)[..., 0],
    "in a graph": lambda t: t.clone().requires_grad_(),
    "a list": lambda t: t.tolist(),
    "nothing": lambda t: None,
}


def refuses_overlap(one: str, other: str, op: Callable[..., Any], *given: Any, **named: Any) -> None:
    """The error names both tensors, either of them first."""
    try:
        refuses(one, op, *given, **named, says=f"overlaps {other}")
    except AssertionError:
        refuses(other, op, *given, **named, says=f"overlaps {one}")
