"""The program itself: values, instructions over the packed vector, and how the engine lays the parameters out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from ..losses import LossName
from ..norms import Statistics
from ..packing import Packing, Slot

Kind = Literal["vector", "sequence", "image", "tokens", "sparse"]


ABSENT = -1  # where a layer has no parameter

_TABLE = (1, 0)  # the axes of a sparse layer's weight
_DIGIT = 1 << 16  # of places: two of them are numbers that a float32 can be


class Unsupported(ValueError):
    """The native engine cannot run this model; the sentence names the layer and what would work."""


@dataclass(frozen=True)
class Value:
    """One tensor of the forward pass; `shape` is that of one example, as torch has it.

    vector (F,), sequence (T, F), image (C, H, W), tokens (T,), sparse (width,).
    """

    kind: Kind
    shape: tuple[int, ...]

    @property
    def spec(self) -> tuple[str, int, int, int, int]:
        """(kind, rows, channels, height, width): how the engine stores it, images with their channels last."""
        if self.kind == "image":
            channels, height, width = self.shape
            return (self.kind, height * width, channels, height, width)
        if self.kind == "tokens":
            return (self.kind, self.shape[0], 0, 0, 0)
        return (self.kind, math.prod(self.shape[:-1]), self.shape[-1], 0, 0)


@dataclass(frozen=True)
class Constants:
    """What instructions read and nobody trains, as one vector `numbers` (n,) in the engine's layout: frozen parameters,
    buffers and masks. `names` by their offsets there."""

    names: Mapping[int, str] = field(default_factory=dict)
    numbers: Tensor = field(default_factory=lambda: torch.zeros(0))

    @staticmethod
    def place(offset: int) -> int:
        """How an instruction's `params` say that a parameter is a constant."""
        return ABSENT - 1 - offset

    def name(self, place: int) -> str:
        return self.names[ABSENT - 1 - place]


@dataclass(frozen=True)
class Instruction:
    """One step of the forward pass: `op` makes value `output` out of `inputs`.

    `params` are offsets in the packed vector, `ABSENT` where there is none, and below that places of constants. `name`
    is the layer's or node's own name, for people to read.
    """

    op: str
    inputs: tuple[int, ...]
    output: int
    params: tuple[int, ...] = ()
    settings: Mapping[str, float] = field(default_factory=dict)
    name: str = ""


@dataclass(frozen=True)
class Program:
    """A model's forward pass and loss. Value 0 is the input, value `output` is what the loss sees.

    `layouts` names the slots that the engine holds with their axes permuted: an engine vector has the same offsets as
    the packed vector, but other numbers' places within these slots. `columns` names matrices whose columns the engine
    holds pixel by pixel, (channels, pixels) of the image that they read, where torch has them channel by channel.
    `statistics`: where running statistics of batch norms lie in a vector of their own; None without any. `constants`:
    what nobody trains.
    """

    values: tuple[Value, ...]
    instructions: tuple[Instruction, ...]
    packing: Packing
    loss: LossName
    output: int
    layouts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    columns: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    input: int = 0
    statistics: Statistics | None = None
    constants: Constants = field(default_factory=Constants)

    @property
    def dropouts(self) -> int:
        """How many dropout instructions there are; each has a random stream of its own."""
        return sum(instruction.op == "dropout" for instruction in self.instructions)

    @cached_property
    def engine_packing(self) -> Packing:
        """The packing of engine vectors: the same slots in the engine's shapes."""
        slots = (
            Slot(slot.name, slot.offset, tuple(slot.shape[axis] for axis in self._layout(slot)))
            for slot in self.packing.slots
        )
        return replace(self.packing, slots=tuple(slots))

    @property
    def moves(self) -> bool:
        """Whether numbers have other places in engine vectors, but for the weights of sparse layers."""
        return bool(self._moved(tables=False))

    def to_engine(self, x: Tensor, *, tables: bool = True, out: Tensor | None = None) -> Tensor:
        """The engine vector of packed `x` (d,) or (n, d); `x` itself if the layouts are the same. It may be written to
        `out`, which is zero where no parameter lies.

        `tables=False` leaves the weights of sparse layers as torch has them: of the model that a round starts from and
        of the sum of deltas the engine turns them itself, on all threads.
        """
        moved = self._rearrange(x, self.packing, self.engine_packing, self._moved(tables), out)
        return self._reordered(moved, self.columns)

    def from_engine(self, x: Tensor, *, tables: bool = True) -> Tensor:
        """The packed vector of engine vector `x` (d,) or (n, d); `x` itself if the layouts are the same."""
        moved = self._moved(tables)
        back = {name: tuple(axes.index(axis) for axis in range(len(axes))) for name, axes in moved.items()}
        torch_columns = self._reordered(x, {name: (p, c) for name, (c, p) in self.columns.items()})
        return self._rearrange(torch_columns, self.engine_packing, self.packing, back)

    @cached_property
    def places(self) -> Tensor | None:
        """Where in a packed vector each number of an engine vector is: (d,) int32; None if the layouts are the same."""
        if not self.layouts and not self.columns:
            return None
        there = torch.arange(self.packing.size)
        digits = torch.stack([there % _DIGIT, there // _DIGIT]).to(self.packing.dtype)  # which the dtype holds exactly
        low, high = self.to_engine(digits).long()
        return (high * _DIGIT + low).int()

    def spec(self) -> tuple[list[tuple], list[tuple]]:
        """Values and instructions as plain tuples, for the engine's constructor."""
        values: list[tuple] = [value.spec for value in self.values]
        instructions: list[tuple] = [
            (step.op, list(step.inputs), step.output, list(step.params), dict(step.settings))
            for step in self.instructions
        ]
        return values, instructions

    def _moved(self, tables: bool) -> Mapping[str, tuple[int, ...]]:
        """The layouts, with or without those of sparse layers: no other weight is a transposed matrix."""
        return self.layouts if tables else {name: axes for name, axes in self.layouts.items() if axes != _TABLE}

    def _layout(self, slot: Slot) -> tuple[int, ...]:
        return self.layouts.get(slot.name, tuple(range(len(slot.shape))))

    def _reordered(self, x: Tensor, columns: Mapping[str, tuple[int, int]]) -> Tensor:
        """With the columns of these matrices, outer x inner of them, inner by inner."""
        if not columns:
            return x
        out, tensors = x.clone(), self.engine_packing.views(x)
        for name, place in self.engine_packing.views(out).items():
            if name in columns:
                place.copy_(tensors[name].unflatten(-1, columns[name]).transpose(-1, -2).flatten(-2))
        return out

    @staticmethod
    def _rearrange(
        x: Tensor, source: Packing, target: Packing, axes: Mapping[str, tuple[int, ...]], out: Tensor | None = None
    ) -> Tensor:
        tensors = source.views(x)  # also refuses another size or dtype
        if not axes:
            return x
        is_new = out is None
        out = x.clone() if out is None else out
        batch = x.dim() - 1
        for name, place in target.views(out).items():
            if name not in axes and not is_new:
                place.copy_(tensors[name])
            elif name in axes:
                place.copy_(tensors[name].permute(*range(batch), *(batch + axis for axis in axes[name])))
        return out


def describe(program: Program) -> str:
    """The instructions as a table: name, op and settings, shapes, parameters.

    >>> import torch
    >>> from fastfed.program import trace
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    >>> print(describe(trace(model, torch.zeros(1, 4), "cross_entropy")))
    name  op      shapes      parameters
    0     linear  (4) -> (3)  0.weight 0.bias
    1     relu    (3) -> (3)
    2     linear  (3) -> (2)  2.weight 2.bias
    loss  cross_entropy of (2)
    """
    rows = [("name", "op", "shapes", "parameters")]
    for step in program.instructions:
        settings = ", ".join(_settings(step.settings))
        rows.append(
            (
                step.name,
                f"{step.op}({settings})" if settings else step.op,
                shapes_of(program, step),
                " ".join(_parameter(program, place) for place in step.params if place != ABSENT),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, f"loss  {program.loss} of {_sizes(program.values[program.output])}"])


def shapes_of(program: Program, step: Instruction) -> str:
    """Of what an instruction reads and makes, in words."""
    before = " + ".join(_sizes(program.values[number]) for number in step.inputs)
    return f"{before} -> {_sizes(program.values[step.output])}"


def _parameter(program: Program, place: int) -> str:
    """The name of the parameter there, or of the one that a part of is there."""
    if place < ABSENT:
        return f"{program.constants.name(place)} (frozen)"
    return next(slot.name for slot in program.packing.slots if slot.span.start <= place < slot.span.stop)


def _settings(settings: Mapping[str, float]) -> Iterator[str]:
    """name=value, and kernel=3x5 for kernel_h=3, kernel_w=5."""
    for name, setting in settings.items():
        stem, _, axis = name.rpartition("_")
        if axis == "h":
            yield f"{stem}={setting:g}x{settings[f'{stem}_w']:g}"
        elif axis != "w":
            yield f"{name}={setting:g}"


def _sizes(value: Value) -> str:
    return f"({' x '.join(map(str, value.shape))})"
