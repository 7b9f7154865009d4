"""Dropout whose masks come from Philox streams, whichever module asks for it and whatever executor runs it.

Within a forward pass, call number j (from 0) of ``torch.nn.functional.dropout``, which is also what ``nn.Dropout``
calls, uses the uniform numbers number j, in the order of the input's elements; calls that drop nothing (p = 0, or not
training) do not count. An element is kept where u >= p, compared in float32, and scaled by 1 / (1 - p). Torch's own
random state is never touched: layers that would draw from it are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..kernels import Stream, uniform
from ..purposes import Purpose

Uniforms = Callable[[int, Tensor], Tensor]  # (call, input) -> float32 in [0, 1), shaped like the input

# Layers that draw from torch's generator in their own way, and the attribute that turns it on.
_OTHER_LAYERS: dict[type[nn.Module], str] = {
    nn.Dropout1d: "p",
    nn.Dropout2d: "p",
    nn.Dropout3d: "p",
    nn.AlphaDropout: "p",
    nn.FeatureAlphaDropout: "p",
    nn.RNNBase: "dropout",
    nn.MultiheadAttention: "dropout",
}


def refuse_other_dropouts(module: nn.Module) -> None:
    """An error that names the first layer whose dropout has no stream here."""
    for name, layer in module.named_modules():
        for kind, option in _OTHER_LAYERS.items():
            if isinstance(layer, kind) and getattr(layer, option) > 0:
                raise ValueError(
                    f"module: layer {name or type(module).__name__!r} ({type(layer).__name__}) has {option}="
                    f"{getattr(layer, option)}; of dropouts only nn.Dropout (F.dropout) has random streams in FastFed"
                )


class Dropout(TorchFunctionMode):
    """While active, F.dropout takes its numbers from `uniforms` (None: nothing is dropped). One instance serves one
    forward pass."""

    def __init__(self, uniforms: Uniforms | None) -> None:
        super().__init__()
        self.uniforms = uniforms
        self.calls = 0

    def __torch_function__(
        self, func: Any, types: Sequence[Any], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return (self._dropout if func is F.dropout else func)(*args, **(kwargs or {}))

    def _dropout(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not 0 <= p <= 1:
            raise ValueError(f"dropout: p must lie in [0, 1], got {p}")
        if p == 0 or not training or self.uniforms is None:
            return input
        uniforms = self.uniforms(self.calls, input)
        self.calls += 1
        mask = (uniforms >= p).to(input.dtype) * (1 / (1 - p) if p < 1 else 0.0)
        return input.mul_(mask) if inplace else input * mask


ANOTHER = 1 << 31  # added to a step's number: masks of their own for a second look at its batch


def stream_of(call: int, *, seed: int, round: int, step: int, client: int = 0) -> Stream:
    """The stream of a dropout call at a local step (both counted from 0)."""
    return Stream(seed, Purpose.DROPOUT + call, round, client, step)


def client_uniforms(*, seed: int, round: int, client: int, step: int) -> Uniforms:
    """The numbers of one client's forward pass at a local step."""

    def draw(call: int, input: Tensor) -> Tensor:
        stream = stream_of(call, seed=seed, round=round, step=step, client=client)
        return uniform(input.numel(), stream, device=input.device).view(input.shape)

    return draw


@contextmanager
def torch_random_state_guarded(device: torch.device) -> Iterator[None]:
    """Refuses, afterwards, what drew from torch's own generators, of the CPU and of `device`, and puts their states
    back."""
    on_device = None if device.type == "cpu" else torch.get_device_module(device)

    def states() -> list[Tensor]:
        return [torch.get_rng_state(), *([] if on_device is None else [on_device.get_rng_state(device)])]

    before = states()
    try:
        yield
        if not all(map(torch.equal, before, states())):
            raise ValueError(
                "module: it (or the loss) drew from torch's own random numbers, which would make the result depend on "
                "the order of the clients; of random layers only nn.Dropout (F.dropout) has streams in FastFed"
            )
    finally:
        torch.set_rng_state(before[0])
        if on_device is not None:
            on_device.set_rng_state(before[1], device)
