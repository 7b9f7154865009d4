"""A small forward pass that tells what `batched` must know before it trains: where dropout falls, how much memory an
example takes, and whether padding a batch leaves its examples alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from .dropout import Dropout

FEW, MORE = 2, 3  # examples: two sizes of a batch show what grows with it


@dataclass(frozen=True)
class DropoutShape:
    """The shape of a dropout call's input, whose first axis has `per_example` entries for each example (0: the whole
    shape is the same for any batch)."""

    shape: tuple[int, ...]
    per_example: int

    def at(self, examples: int) -> tuple[int, ...]:
        """The shape for a batch of so many examples."""
        return (self.per_example * examples, *self.shape[1:]) if self.per_example else self.shape

    def numel(self, examples: int) -> int:
        return math.prod(self.at(examples))


@dataclass(frozen=True)
class Trial:
    """`dropouts` in their order; bytes that autograd keeps: of any batch, and of every example in it."""

    dropouts: tuple[DropoutShape, ...]
    fixed_bytes: int
    example_bytes: int

    def bytes_of(self, examples: int) -> int:
        """What autograd keeps of a batch of so many examples."""
        return self.fixed_bytes + self.example_bytes * examples


@dataclass
class _Observed:
    outputs: Tensor
    dropped: list[Tensor]  # the inputs of dropout
    kept: int  # bytes


def try_forward(forward: Callable[[int], Tensor]) -> Trial:
    """The trial of ``forward(n)``, which computes the outputs of the first n of `MORE` examples."""
    few, more = _observe(forward, FEW), _observe(forward, MORE)
    if not _continues(few.outputs, more.outputs):
        raise ValueError(
            "module: an example's outputs depend on the rest of its batch, which executor 'batched' pads; use "
            "executor='eager'"
        )
    if len(few.dropped) != len(more.dropped):
        raise ValueError("module: how often it calls dropout depends on the batch; use executor='eager'")
    dropouts = tuple(_dropout_shape(a, b) for a, b in zip(few.dropped, more.dropped, strict=True))
    example_bytes = max(0, more.kept - few.kept) // (MORE - FEW)
    return Trial(dropouts, max(0, few.kept - FEW * example_bytes), example_bytes)


def _observe(forward: Callable[[int], Tensor], examples: int) -> _Observed:
    dropped: list[Tensor] = []
    kept = 0

    def uniforms(call: int, input: Tensor) -> Tensor:
        dropped.append(input.detach())
        return torch.ones_like(input)

    def keep(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.numel() * tensor.element_size()
        return tensor

    with Dropout(uniforms), saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = forward(examples)
    return _Observed(outputs.detach(), dropped, kept)


def _continues(few: Tensor, more: Tensor) -> bool:
    """Whether the rows of the smaller batch are the first rows of the larger one, to rounding."""
    if few.shape[1:] != more.shape[1:]:
        return False
    return torch.allclose(few, more[: len(few)], rtol=1e-3, atol=1e-5, equal_nan=True)


def _dropout_shape(few: Tensor, more: Tensor) -> DropoutShape:
    if few.shape == more.shape:
        return DropoutShape(tuple(few.shape), 0)
    per_example = len(few) // FEW
    if len(few) != per_example * FEW or len(more) != per_example * MORE or not _continues(few, more):
        raise ValueError(
            f"module: the first axis of a tensor with dropout is not the batch: shape {tuple(few.shape)} for {FEW} "
            f"examples, {tuple(more.shape)} for {MORE}; use executor='eager'"
        )
    return DropoutShape(tuple(few.shape), per_example)
