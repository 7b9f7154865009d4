"""Where a model splits into features and a head: the head's input is what a contrast compares."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn


@dataclass(frozen=True)
class Split:
    """Asks of an executor that the model splits at `head`, a layer's name (None: its last nn.Linear)."""

    head: str | None = None


class HeadCall(NamedTuple):
    """One call of the head: its positional arguments, its output, and how often that had been written to by then."""

    arguments: tuple[Any, ...]
    output: Any
    version: int


def head_of(module: nn.Module, head: str | None) -> str:
    """The full name of a module's head: the layer of the name `head`, or the last nn.Linear."""
    layers = dict(module.named_modules())
    if head is None:
        linears = [name for name, layer in layers.items() if isinstance(layer, nn.Linear)]
        if not linears:
            raise ValueError("head: the model has no nn.Linear that could be its head; name the layer as head=")
        return linears[-1]
    try:
        wanted = module.get_submodule(head)
    except AttributeError:
        names = ", ".join(name for name in layers if name)
        raise ValueError(f"head: the model has no layer {head!r}; it has: {names}") from None
    return next(name for name, layer in layers.items() if layer is wanted)  # a shared layer has several names


@contextmanager
def watched(layer: nn.Module) -> Iterator[list[HeadCall]]:
    """Lists the calls of a layer."""
    calls: list[HeadCall] = []

    def note(_: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        calls.append(HeadCall(arguments, output, getattr(output, "_version", 0)))

    handle = layer.register_forward_hook(note)
    try:
        yield calls
    finally:
        handle.remove()


def features_of(calls: list[HeadCall], head: str, examples: int) -> Tensor:
    """The features (examples, r) of a batch: the input of the head's only call."""
    if len(calls) != 1:
        raise ValueError(f"head: layer {head!r} must be used once in a forward pass, not {len(calls)} times")
    if len(calls[0].arguments) != 1 or not isinstance(calls[0].arguments[0], Tensor):
        raise ValueError(f"head: layer {head!r} must be called with one tensor, its input")
    (features,) = calls[0].arguments
    if features.dim() < 2 or len(features) != examples:
        raise ValueError(
            f"head: the input of layer {head!r} must have the {examples} examples of a batch in front, got shape "
            f"{tuple(features.shape)}"
        )
    return features.flatten(1)


def check_split(call: HeadCall, features: Tensor, outputs: Tensor, head: str) -> None:
    """Refuses a head that does not make the outputs, or has nothing that is trained before it."""
    made = call.output
    same = isinstance(made, Tensor) and (made.data_ptr(), made.numel()) == (outputs.data_ptr(), outputs.numel())
    if not same or made._version != call.version:
        raise ValueError(
            f"head: the model's outputs are not those of layer {head!r}; name the layer that makes them as head="
        )
    if not features.requires_grad:
        raise ValueError(f"head: nothing that is trained comes before layer {head!r}, so its input is always the same")
