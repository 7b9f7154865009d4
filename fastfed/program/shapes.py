"""Builders of everything that only looks at numbers differently: reshapes, sizes, selection."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .draft import NUMBERS, Activation, Draft, FinalState, meta
from .table import builds

_ALL = slice(None)


def _reshaper(function: Callable[..., Tensor]) -> Callable[..., Activation]:
    def build(draft: Draft, input: Activation, *args: Any, **kwargs: Any) -> Activation:
        return draft.reshape(input, function, *args, **kwargs)

    return build


def _measurer(function: Callable[..., Any]) -> Callable[..., Any]:
    def build(draft: Draft, input: Activation, *args: Any, **kwargs: Any) -> Any:
        return function(meta(input), *args, **kwargs)

    return build


for _name in ("view", "reshape", "flatten", "unflatten", "unsqueeze", "contiguous"):
    builds(_name)(_reshaper(getattr(Tensor, _name)))
for _function in (torch.flatten, torch.reshape, torch.unflatten, torch.unsqueeze):
    builds(_function)(_reshaper(_function))


@builds(torch.squeeze, "squeeze")
def squeeze(draft: Draft, input: Activation, dim: Any = None) -> Activation:
    if dim is None:
        draft.refuse("squeezes without a dim, which would drop the batch axis of a single example; name the axis")
    return draft.reshape(input, torch.squeeze, dim)


@builds("float")
def as_float(draft: Draft, input: Activation) -> Activation:
    draft.number(input, *NUMBERS, "sparse")
    return input


@builds("long")
def as_tokens(draft: Draft, input: Activation) -> Activation:
    draft.number(input, "tokens")
    return input


MEASURES = ("size", "dim", "numel", getattr)  # of parameters, too
for _name in ("size", "dim", "numel"):
    builds(_name)(_measurer(getattr(Tensor, _name)))


@builds(getattr)
def attribute(draft: Draft, input: Any, name: str) -> Any:
    if name not in ("shape", "ndim"):
        draft.refuse(f"asks for .{name}, which FastFed's engine does not know; of a tensor it knows .shape and .ndim")
    return getattr(meta(input), name)


@builds(operator.getitem)
def getitem(draft: Draft, input: Any, index: Any) -> Any:
    if isinstance(input, FinalState):
        return input
    if isinstance(input, tuple):  # a shape, or what an LSTM returns
        return input[index]
    axes = index if isinstance(index, tuple) else (index,)
    if all(axis is None or axis == _ALL for axis in axes):
        return draft.reshape(input, operator.getitem, index)
    if axes[0] != _ALL or type(axes[1]) is not int or any(axis != _ALL for axis in axes[2:]):
        draft.refuse(f"picks {index} out of a tensor; FastFed's engine has x[:, i], one step of a sequence")
    return select(draft, input, 1, axes[1])


@builds(torch.select, "select")
def select(draft: Draft, input: Activation, dim: int, index: int) -> Activation:
    value = draft.number(input, "sequence")
    if dim not in (1, -2):
        draft.refuse(f"picks along axis {dim}; FastFed's engine has x[:, i], one step of a sequence")
    shape = draft.shape(torch.select, input, dim, index)
    return draft.emit("select", (value,), shape, settings={"index": index % input.shape[0]}, part=True)
