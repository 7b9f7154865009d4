"""A program being written: what an op's builder may say (`emit`, `number`, `slot`, `refuse`), and its book-keeping.

A reshape is only remembered until an op needs the numbers in that order, so that views of views cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from ..norms import Statistics, name_of
from ..packing import Packing
from .ir import Instruction, Kind, Unsupported, Value

BATCH = 1009  # examples where a reshape is tried out: a prime that no layer is likely to have as a size
NUMBERS: tuple[Kind, ...] = ("vector", "sequence", "image")
KINDS: dict[int, Kind] = {1: "vector", 2: "sequence", 3: "image"}  # by the axes of one example
SHAPES = {
    "vector": "a vector (features)",
    "sequence": "a sequence (length, features)",
    "image": "an image (channels, height, width)",
    "tokens": "tokens (length)",
    "sparse": "a sparse vector (width)",
}


@dataclass(frozen=True)
class Activation:
    """A tensor of the forward pass: the numbers of `value`, in torch's order, seen as `shape` (of one example)."""

    value: int
    shape: tuple[int, ...]
    reshaped_by: str = ""


@dataclass(frozen=True)
class Weight:
    """A trainable parameter, by the name of its slot."""

    name: str
    shape: tuple[int, ...]


class FinalState:
    """What an LSTM returns beside its outputs: may be unpacked, not used."""


@dataclass(frozen=True)
class Place:
    """Where in the model we are: `name` for instructions, `label` for the beginning of an error."""

    name: str
    label: str


class Draft:
    """The instructions so far. `place` is set by whoever walks the graph; `statistics` are those of batch norms."""

    def __init__(self, packing: Packing, given: Value, statistics: Statistics | None = None) -> None:
        self.packing, self.statistics = packing, statistics
        self.values = [given]
        self.instructions: list[Instruction] = []
        self.place = Place("", "")
        self._slots = {slot.name: slot for slot in packing.slots}
        self._layouts: dict[str, tuple[int, ...]] = {}
        self._reshaped: dict[tuple[int, tuple[int, ...]], int] = {}
        self._overwritten: dict[int, int] = {}
        self._shared: set[int] = set()  # values that share memory in torch, but not here

    @property
    def layouts(self) -> dict[str, tuple[int, ...]]:
        """The slots that the engine holds permuted."""
        return {name: axes for name, axes in self._layouts.items() if axes != tuple(range(len(axes)))}

    def refuse(self, sentence: str) -> NoReturn:
        raise Unsupported(f"{self.place.label} {sentence}")

    def kind(self, x: Activation) -> Kind | None:
        """What `x` is to the engine; None if it has no such shape."""
        stored = self.values[self.latest(x)]
        return stored.kind if x.shape == stored.shape else KINDS.get(len(x.shape))

    def number(self, x: Any, *kinds: Kind) -> int:
        """The number of the value that holds `x`, which must be one of `kinds`; reshaped by instructions if need be."""
        if not isinstance(x, Activation):
            self.refuse(f"is given {plainly(x)}, where FastFed's engine takes {_or(kinds)}")
        kind = self.kind(x)
        if kind is None or kind not in kinds:
            self.refuse(f"is given {_with_sizes(kind, x.shape)}, where FastFed's engine takes {_or(kinds)}")
        value = self.latest(x)
        return value if x.shape == self.values[value].shape else self._reshape(value, x)

    def see(self, x: Activation, shape: tuple[int, ...]) -> Activation:
        """`x` reshaped: no instruction, until one needs it so."""
        if shape == x.shape:
            return x
        if self.values[self.latest(x)].kind not in NUMBERS:
            self.refuse(f"reshapes {x.shape} to {shape}; FastFed's engine takes tokens and sparse inputs as they come")
        return Activation(x.value, shape, self.place.name)

    def flat(self, x: Activation) -> int:
        """The number of a value with `x`'s numbers in torch's order, whatever their shape."""
        value = self.latest(x)
        if self.values[value].kind not in NUMBERS:
            self.refuse(f"is {_with_sizes(self.values[value].kind, x.shape)}, not numbers that a model made")
        return self._flatten(value, x) if self.values[value].kind == "image" else value

    def latest(self, x: Activation) -> int:
        """The value that holds `x` now: in-place operations have made new ones of it."""
        value = x.value
        while value in self._overwritten:
            value = self._overwritten[value]
        return value

    def overwrite(self, x: Activation, result: Activation) -> None:
        """An in-place operation: whoever looks at the numbers of `x`, in any shape, sees `result` from now on."""
        value = self.latest(x)
        if value in self._shared:
            self.refuse("changes a tensor in place of which a part was taken; use an operation that returns a new one")
        if value != result.value:
            self._overwritten[value] = result.value

    def emit(
        self,
        op: str,
        inputs: tuple[int, ...],
        shape: tuple[int, ...],
        params: tuple[int, ...] = (),
        settings: Mapping[str, float] | None = None,
        part: bool = False,
    ) -> Activation:
        """Appends an instruction whose result has this shape. `part`: torch's result is a view into the input."""
        self.values.append(Value(KINDS[len(shape)], shape))
        result = len(self.values) - 1
        numbers = {name: float(setting) for name, setting in (settings or {}).items()}
        self.instructions.append(Instruction(op, inputs, result, params, numbers, self.place.name))
        if part:
            self._shared.update((*inputs, result))
        return Activation(result, shape)

    def slot(self, weight: Any, *axes: int) -> int:
        """The offset of a parameter, -1 for None; `axes` permute it into the engine's layout."""
        if weight is None:
            return -1
        if not isinstance(weight, Weight):
            self.refuse(f"is given {plainly(weight)} as a weight; FastFed's engine takes parameters of the module")
        layout = axes or tuple(range(len(weight.shape)))
        if len(layout) != len(weight.shape):
            self.refuse(f"is given {plainly(weight)} of shape {weight.shape}, where a weight has {len(layout)} axes")
        if self._layouts.setdefault(weight.name, layout) != layout:
            self.refuse(
                f"shares parameter {weight.name!r} with a layer that FastFed's engine lays out differently; "
                "give each its own"
            )
        return self._slots[weight.name].offset

    def running(self, part: str) -> int:
        """Where a running statistic of the layer at hand begins in the vector of them."""
        places = {} if self.statistics is None else self.statistics.places
        name = name_of(self.place.name, part)
        if name not in places:
            self.refuse(
                "keeps no running statistics; FastFed's engine normalises by them in evaluation: leave out "
                "track_running_stats=False, or use nn.GroupNorm"
            )
        return places[name].start

    def shape(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[int, ...]:
        """The shape of one example in what a layer's `function` returns: torch tells, from a batch of none."""
        with self._fitting(), torch.no_grad():
            result: Tensor = function(*map(_empty, args), **kwargs)
        return tuple(result.shape[1:])

    def reshape(self, x: Activation, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Activation:
        """What `function` makes of `x`, reshaping it; torch tells, from a batch without contents."""
        with self._fitting():
            result: Tensor = function(meta(x), *args, **kwargs)
        if result.dtype is not torch.float32:
            self.refuse(f"reads numbers as {result.dtype}; FastFed's engine has no such view")
        if result.shape[:1] != (BATCH,):
            self.refuse(
                "mixes the examples of a batch; FastFed's engine wants the first axis left alone: "
                "write x.flatten(1) or x.view(x.size(0), ...)"
            )
        return self.see(x, tuple(result.shape[1:]))

    @contextmanager
    def _fitting(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            self.refuse(f"does not fit what it is given: {str(error).strip().splitlines()[0]}")

    def _reshape(self, value: int, x: Activation) -> int:
        if len(x.shape) == 2:
            self.refuse(
                f"is given {tuple(self.values[value].shape)} reshaped to a sequence {x.shape} by {x.reshaped_by!r}; "
                "FastFed's engine reshapes to vectors and images"
            )
        flat = self._flatten(value, x)
        return flat if len(x.shape) == 1 else self._once("image", flat, x.shape, x.reshaped_by)

    def _flatten(self, value: int, x: Activation) -> int:
        stored = self.values[value]
        if stored.kind == "vector":
            return value
        return self._once("flatten", value, (math.prod(stored.shape),), x.reshaped_by)

    def _once(self, op: str, value: int, shape: tuple[int, ...], name: str) -> int:
        if (value, shape) not in self._reshaped:
            here = self.place
            self.place = replace(here, name=name or here.name)
            self._reshaped[value, shape] = self.emit(op, (value,), shape).value
            self.place = here
        return self._reshaped[value, shape]


def meta(x: Activation | Weight) -> Tensor:
    """A batch of activations, or a weight, without contents."""
    return torch.empty((BATCH, *x.shape) if isinstance(x, Activation) else x.shape, device="meta")


def _empty(x: Any) -> Any:
    """A batch of no examples in place of an activation, a tensor of the right shape in place of a weight."""
    if isinstance(x, Activation | Weight):
        return torch.empty(()).expand((0, *x.shape) if isinstance(x, Activation) else x.shape)
    return x


def plainly(x: Any) -> str:
    """What `x` is, in a sentence."""
    if isinstance(x, Activation):
        return f"something computed, {x.shape} per example,"
    return f"parameter {x.name!r}" if isinstance(x, Weight) else repr(x)


def _with_sizes(kind: Kind | None, shape: tuple[int, ...]) -> str:
    return f"{kind if kind else 'a tensor'} {shape} per example"


def _or(kinds: tuple[Kind, ...]) -> str:
    return " or ".join(SHAPES[kind] for kind in kinds)
