"""Builders of everything that only looks at numbers differently: reshapes, sizes, selection."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .draft import NUMBERS, Activation, Draft, Weight, Withheld, meta, plainly
from .scores import TokenMask
from .table import builds
from .views import Part, View, look

_ALL = slice(None)


def _reshaped(draft: Draft, input: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Activations are only remembered in their new shape; masks change it by themselves."""
    if isinstance(input, TokenMask):
        return input.reshaped(draft, function, *args, **kwargs)
    if isinstance(input, Activation):
        return draft.reshape(input, function, *args, **kwargs)
    return look(draft, input, function, *args, **kwargs)


def _reshaper(function: Callable[..., Tensor]) -> Callable[..., Any]:
    def build(draft: Draft, input: Any, *args: Any, **kwargs: Any) -> Any:
        return _reshaped(draft, input, function, *args, **kwargs)

    return build


def _looker(function: Callable[..., Any]) -> Callable[..., Any]:
    def build(draft: Draft, input: Any, *args: Any, **kwargs: Any) -> Any:
        return look(draft, input, function, *args, **kwargs)

    return build


def _measurer(function: Callable[..., Any]) -> Callable[..., Any]:
    def build(draft: Draft, input: Activation, *args: Any, **kwargs: Any) -> Any:
        return function(meta(input), *args, **kwargs)

    return build


for _name in ("view", "reshape", "flatten", "unflatten", "unsqueeze"):
    builds(_name, seen=True, parameters=True)(_reshaper(getattr(Tensor, _name)))
for _function in (torch.flatten, torch.reshape, torch.unflatten, torch.unsqueeze):
    builds(_function, seen=True, parameters=True)(_reshaper(_function))
for _name in ("transpose", "permute", "swapaxes", "movedim", "chunk", "split", "unbind", "narrow", "expand"):
    builds(_name, seen=True, parameters=True)(_looker(getattr(Tensor, _name)))
for _looking in (
    torch.transpose, torch.permute, torch.swapaxes, torch.movedim, torch.chunk, torch.split, torch.unbind, torch.narrow
):  # fmt: skip
    builds(_looking, seen=True, parameters=True)(_looker(_looking))


@builds("contiguous", seen=True)
def contiguous(draft: Draft, input: Any) -> Any:
    """Whoever wants the numbers in torch's order gets them so."""
    return input


@builds(torch.squeeze, "squeeze", seen=True, parameters=True)
def squeeze(draft: Draft, input: Any, dim: Any = None) -> Any:
    if dim is None:
        draft.refuse("squeezes without a dim, which would drop the batch axis of a single example; name the axis")
    return _reshaped(draft, input, torch.squeeze, dim)


@builds("repeat", seen=True, parameters=True)
def repeat(draft: Draft, input: Any, *times: Any) -> Any:
    """Of a parameter, once for every example."""
    counts = times[0] if len(times) == 1 and isinstance(times[0], tuple | list) else times
    if isinstance(input, Activation | View) or any(count != 1 for count in counts[1:]):
        draft.refuse("repeats numbers; FastFed's engine repeats parameters only, for every example: use x.expand")
    return look(draft, input, Tensor.expand, counts[0], *[-1] * (len(counts) - 1))


@builds("float")
def as_float(draft: Draft, input: Activation) -> Activation:
    draft.number(input, *NUMBERS, "sparse")
    return input


@builds("long")
def as_tokens(draft: Draft, input: Activation) -> Activation:
    draft.number(input, "tokens")
    return input


for _name in ("size", "dim", "numel"):
    builds(_name, seen=True, parameters=True)(_measurer(getattr(Tensor, _name)))


@builds(getattr, seen=True, parameters=True)
def attribute(draft: Draft, input: Any, name: str) -> Any:
    if name == "mT":
        return look(draft, input, Tensor.transpose, -2, -1)
    if name not in ("shape", "ndim"):
        draft.refuse(f"asks for .{name}, which FastFed's engine does not know; of a tensor it knows .shape and .ndim")
    return getattr(meta(input), name)


@builds(operator.getitem, seen=True, parameters=True)
def getitem(draft: Draft, input: Any, index: Any) -> Any:
    if isinstance(input, Withheld):
        return input
    if isinstance(input, tuple):  # a shape, or several results
        return input[index]
    axes = index if isinstance(index, tuple) else (index,)
    if not all(axis is None or axis is Ellipsis or isinstance(axis, int | slice) for axis in axes):
        draft.refuse(f"picks {index} out of a tensor; FastFed's engine has parts that numbers and slices name")
    if isinstance(input, TokenMask) or (isinstance(input, Activation) and all(a is None or a == _ALL for a in axes)):
        return _reshaped(draft, input, operator.getitem, index)
    if isinstance(input, Activation) and _is_step(axes) and draft.kind(input) == "sequence":
        return select(draft, input, 1, axes[1])
    if not isinstance(input, Activation | View | Part | Weight):
        draft.refuse(f"picks {index} out of {plainly(input)}; FastFed's engine has no such part")
    return look(draft, input, operator.getitem, index)


def _is_step(axes: tuple[Any, ...]) -> bool:
    """x[:, i] or x[:, i, :]"""
    return len(axes) > 1 and axes[0] == _ALL and type(axes[1]) is int and all(axis == _ALL for axis in axes[2:])


@builds(torch.select, "select", seen=True, parameters=True)
def select(draft: Draft, input: Any, dim: int, index: int) -> Any:
    """A step of a sequence is an instruction of its own."""
    if not isinstance(input, Activation) or draft.kind(input) != "sequence" or dim not in (1, -2):
        return look(draft, input, torch.select, dim, index)
    value = draft.number(input, "sequence")
    shape = draft.shape(torch.select, input, dim, index)
    return draft.emit("select", (value,), shape, settings={"index": index % input.shape[0]}, part=True)
