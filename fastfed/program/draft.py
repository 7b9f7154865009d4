"""A program being written: what an op's builder may say (`emit`, `number`, `slot`, `refuse`), and its book-keeping.

A reshape is only remembered until an op needs the numbers in that order, so that views of views cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from ..norms import Statistics, name_of
from ..packing import Packing
from .ir import ABSENT, Constants, Instruction, Kind, Unsupported, Value

_LINE = 16  # numbers: a constant begins on such a border
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


class Symbol:
    """What stands for a tensor while a record is walked."""


@dataclass(frozen=True)
class Activation(Symbol):
    """A tensor of the forward pass: the numbers of `value`, in torch's order, seen as `shape` (of one example)."""

    value: int
    shape: tuple[int, ...]
    reshaped_by: str = ""


@dataclass(frozen=True)
class Weight(Symbol):
    """A trainable parameter, by the name of its slot; or a constant, with the numbers that it has."""

    name: str
    shape: tuple[int, ...]
    constant: Tensor | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Withheld(Symbol):
    """What a layer returns beside its outputs, and the engine does not: may be unpacked, not used. `why` ends a
    sentence that begins with the user's name."""

    why: str


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
        self._spans: dict[str, set[tuple[int, int]]] = {}  # of parameters: which of their numbers are used
        self._constants: dict[tuple[str, tuple[int, ...]], tuple[int, Tensor]] = {}
        self._shared: set[int] = set()  # values that share memory in torch, but not here

    @property
    def layouts(self) -> dict[str, tuple[int, ...]]:
        """The slots that the engine holds permuted."""
        return {name: axes for name, axes in self._layouts.items() if axes != tuple(range(len(axes)))}

    @property
    def constants(self) -> Constants:
        """Those that instructions read."""
        numbers = torch.zeros(self._constants_end, dtype=self.packing.dtype)
        for offset, tensor in self._constants.values():
            numbers[offset : offset + tensor.numel()] = tensor.flatten()
        return Constants({offset: name for (name, _), (offset, _) in self._constants.items()}, numbers)

    @property
    def _constants_end(self) -> int:
        ends = [offset + tensor.numel() for offset, tensor in self._constants.values()]
        return -(-max(ends, default=0) // _LINE) * _LINE

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
        return self.newest(x.value)

    def newest(self, value: int) -> int:
        """What in-place operations have made of a value."""
        while value in self._overwritten:
            value = self._overwritten[value]
        return value

    def share(self, value: int) -> None:
        """Somebody has a part of this value: in-place operations would be seen there."""
        self._shared.add(value)

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
        """Where a parameter is: its offset, or the place of a constant; ABSENT for None. `axes` permute it into the
        engine's layout."""
        if weight is None:
            return ABSENT
        if not isinstance(weight, Weight):
            self.refuse(f"is given {plainly(weight)} as a weight; FastFed's engine takes parameters of the module")
        layout = axes or tuple(range(len(weight.shape)))
        if len(layout) != len(weight.shape):
            self.refuse(f"is given {plainly(weight)} of shape {weight.shape}, where a weight has {len(layout)} axes")
        if weight.constant is not None:
            return Constants.place(self.constant(weight.name, weight.constant.permute(layout), layout))
        self._note_layout(weight, layout)
        return self._span(weight, 0, math.prod(weight.shape))

    def part_slot(self, weight: Weight, begin: int, size: int) -> int:
        """Where these numbers of a trainable parameter are, in the order that it has in the module."""
        self._note_layout(weight, tuple(range(len(weight.shape))))
        return self._span(weight, begin, size)

    def constant(self, name: str, tensor: Tensor, layout: tuple[int, ...] = ()) -> int:
        """The place of a tensor among the constants. A layer that is called again may bring others under its name."""
        held = tensor.to(self.packing.dtype)
        while (name, layout) in self._constants:
            place, known = self._constants[name, layout]
            if torch.equal(known, held):
                return place
            name += ", again"
        self._constants[name, layout] = (offset := self._constants_end, held)
        return offset

    def _note_layout(self, weight: Weight, layout: tuple[int, ...]) -> None:
        if self._layouts.setdefault(weight.name, layout) != layout:
            self.refuse(
                f"shares parameter {weight.name!r} with a layer that FastFed's engine lays out differently; "
                "give each its own"
            )

    def _span(self, weight: Weight, begin: int, size: int) -> int:
        """Gradients of spans are stored one by one: two of them are the same, or have nothing in common."""
        span = (begin, begin + size)
        spans = self._spans.setdefault(weight.name, set())
        if any(other != span and span[0] < other[1] and other[0] < span[1] for other in spans):
            self.refuse(
                f"uses a part of parameter {weight.name!r} of which another part is used too, and they overlap; "
                "give each a parameter of its own"
            )
        spans.add(span)
        return self._slots[weight.name].offset + begin

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
        with self.fitting(), torch.no_grad():
            result: Tensor = function(*map(_empty, args), **kwargs)
        return tuple(result.shape[1:])

    def reshape(self, x: Activation, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Activation:
        """What `function` makes of `x`, reshaping it; torch tells, from a batch without contents."""
        with self.fitting():
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
    def fitting(self) -> Iterator[None]:
        """Refuses what torch's own functions refuse."""
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


def meta(x: Any) -> Tensor:
    """A batch of activations, or a weight, without contents; of what is `seen` in its own way, that."""
    seen: Tensor | None = getattr(x, "seen", None)
    if seen is not None:
        return seen
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
    if isinstance(x, Weight):
        return f"{'parameter' if x.constant is None else 'constant'} {x.name!r}"
    return str(x)


def _with_sizes(kind: Kind | None, shape: tuple[int, ...]) -> str:
    return f"{kind if kind else 'a tensor'} {shape} per example"


def _or(kinds: tuple[Kind, ...]) -> str:
    return " or ".join(SHAPES[kind] for kind in kinds)
