"""Numbers seen in another order than the engine holds them: transposed, cut, split into heads; parameters as data.

torch reckons the strides itself, on tensors without contents. Nothing is copied before somebody needs it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from .draft import BATCH, NUMBERS, Activation, Draft, Symbol, Weight, meta, plainly
from .ir import Value


@dataclass(frozen=True)
class View(Symbol):
    """Some numbers of `value`, times `factor`: where `seen`, a batch on torch's device "meta", has them; `by` names
    the operation that made it."""

    value: int
    seen: Tensor = field(compare=False)
    by: str
    factor: float = 1.0

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.seen.shape[1:])

    def __str__(self) -> str:
        return f"something seen as {tuple(self.shape)} per example by {self.by!r}"


@dataclass(frozen=True)
class Part(Symbol):
    """Some numbers of a trainable parameter, as data: where `seen`, on torch's device "meta", has them."""

    weight: Weight
    seen: Tensor = field(compare=False)

    def __str__(self) -> str:
        return f"a part of parameter {self.weight.name!r}"


Data = Activation | View
Parameter = Weight | Part


def stored(value: Value) -> Tensor:
    """A batch of a value without contents, with the strides that the engine has: images lie with channels last."""
    if value.kind != "image":
        return torch.empty((BATCH, *value.shape), device="meta")
    channels, height, width = value.shape
    return torch.empty((BATCH, height, width, channels), device="meta").permute(0, 3, 1, 2)


def view_of(draft: Draft, x: Data) -> View:
    """How numbers lie in the engine's memory."""
    if isinstance(x, View):
        return replace(x, value=draft.newest(x.value))
    value = draft.latest(x)
    held = draft.values[value]
    if held.kind not in NUMBERS:
        draft.refuse(f"is given {held.kind} {x.shape}; FastFed's engine takes tokens and sparse inputs as they come")
    with draft.fitting():
        return View(value, stored(held).view(BATCH, *x.shape), x.reshaped_by)


def look(draft: Draft, x: Data | Parameter, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What `function` makes of `x`: the same numbers in another order, or some of them; of several results each."""
    if isinstance(x, Weight | Part):
        return _look_at_parameter(draft, x, function, args, kwargs)
    view = view_of(draft, x)
    draft.share(view.value)
    with draft.fitting():
        found = function(view.seen, *args, **kwargs)
    several = isinstance(found, tuple | list)
    results = tuple(_looked(draft, view, one) for one in (found if several else (found,)))
    return results if several else results[0]


def _look_at_parameter(draft: Draft, x: Parameter, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    weight = x if isinstance(x, Weight) else x.weight
    before = meta(x)
    with draft.fitting():
        found = function(before, *args, **kwargs)
    several = isinstance(found, tuple | list)
    for one in found if several else (found,):
        if _memory(one) is not _memory(before):
            draft.refuse(f"copies parameter {weight.name!r} in another order; FastFed's engine takes it as it is")
    return tuple(Part(weight, one) for one in found) if several else Part(weight, found)


def _looked(draft: Draft, view: View, seen: Tensor) -> Data:
    if _memory(seen) is not _memory(view.seen):
        draft.refuse(
            f"would copy what {view.by!r} has put into another order; FastFed's engine reshapes numbers that lie in "
            "torch's order, and heads whose queries were split in the same way"
        )
    held = draft.values[view.value]
    size = math.prod(held.shape)
    if [axis for axis, stride in enumerate(seen.stride()) if stride == size and seen.shape[axis] == BATCH] == []:
        draft.refuse(
            "picks some of a batch's examples, or mixes them; FastFed's engine wants the axis of the batch left whole"
        )
    if seen.shape[:1] == (BATCH,) and seen.shape[1:].numel() == size and view.factor == 1.0:
        shape = tuple(seen.shape[1:])
        plain = _or_none(lambda: stored(held).view(BATCH, *shape))
        if plain is not None and _places(plain) == _places(seen):
            return Activation(view.value, shape, draft.place.name)
    return replace(view, seen=seen, by=draft.place.name)


def copied(draft: Draft, x: Any) -> Any:
    """A view as an activation, whose numbers the engine copies into their order; anything else as it is."""
    if not isinstance(x, View):
        return x
    value, seen = draft.newest(x.value), x.seen
    size = math.prod(draft.values[value].shape)
    if seen.dim() not in (2, 3) or seen.shape[0] != BATCH or seen.stride(0) != size:
        draft.refuse(f"is given {x}; FastFed's engine copies parts of numbers as vectors and sequences")
    shape = tuple(seen.shape[1:])
    row_step = int(seen.stride(1)) if len(shape) == 2 else 0
    settings = {"at": int(seen.storage_offset()), "row_step": row_step, "step": int(seen.stride(-1))}
    place, draft.place = draft.place, replace(draft.place, name=x.by)
    part = draft.emit("pick", (value,), shape, settings=settings, part=True)
    result = part if x.factor == 1.0 else draft.emit("scale", (part.value,), shape, settings={"factor": x.factor})
    draft.place = place
    return result


def rows_of(draft: Draft, x: Parameter) -> tuple[int, tuple[int, ...]]:
    """Where a parameter as data is, and its shape without a first axis that only stands for the batch."""
    weight = x if isinstance(x, Weight) else x.weight
    whole = weight.constant if isinstance(x, Weight) and weight.constant is not None else meta(x)
    is_batch = whole.dim() > 0 and (whole.shape[0] == 1 or (whole.shape[0] == BATCH and whole.stride(0) == 0))
    seen = whole[0] if is_batch else whole
    if weight.constant is not None:
        return draft.slot(replace(weight, shape=tuple(seen.shape), constant=seen)), tuple(seen.shape)
    if not seen.is_contiguous():
        draft.refuse(f"is given {plainly(x)} in another order; FastFed's engine takes it as it lies")
    return draft.part_slot(weight, int(seen.storage_offset()), seen.numel()), tuple(seen.shape)


def _memory(x: Tensor) -> Tensor:
    return x if x._base is None else x._base


def _places(x: Tensor) -> tuple[int, list[tuple[int, int]]]:
    """Where the numbers lie; axes of one number say nothing."""
    axes = zip(x.shape, x.stride(), strict=True)
    return int(x.storage_offset()), [(size, stride) for size, stride in axes if size != 1]


def _or_none(make: Callable[[], Tensor]) -> Tensor | None:
    try:
        return make()
    except RuntimeError:
        return None
