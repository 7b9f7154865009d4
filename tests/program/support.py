"""Small modules and inputs, and the check that a traced program computes what its module computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fastfed.data.store import Inputs, Sparse
from fastfed.program import Program, describe, trace

from . import interpreter


class Net(nn.Module):
    """A module out of a function (layers, x) and named layers or parameters."""

    def __init__(self, forward: Callable[[Any, Any], Any], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.function = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


class Block(nn.Module):
    """A submodule with a forward pass of its own."""

    def __init__(self, forward: Callable[[Any, Any], Any], **parts: nn.Module) -> None:
        super().__init__()
        self.function = forward
        self.parts = nn.ModuleDict(parts)

    def forward(self, x: Any) -> Any:
        return self.function(self.parts, x)


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape))


def vector(size: int = 6) -> Tensor:
    return torch.randn(3, size)


def sequence(length: int = 5, width: int = 4) -> Tensor:
    return torch.randn(3, length, width)


def picture(channels: int = 2, height: int = 7, width: int = 5) -> Tensor:
    return torch.randn(3, channels, height, width)


def tokens(length: int = 5, vocabulary: int = 11) -> Tensor:
    return torch.randint(vocabulary, (3, length))


def sparse(width: int = 9) -> Sparse:
    return Sparse.of(torch.randn(3, width) * (torch.rand(3, width) < 0.4))


def dense(inputs: Inputs) -> Tensor:
    return inputs if isinstance(inputs, Tensor) else inputs.dense(torch.arange(len(inputs)))


def shaken(module: nn.Module) -> nn.Module:
    """Double precision, and no parameter or running statistic left at a value such as 0 or 1 that would hide a
    mistake."""
    module = module.double()
    for p in module.parameters():
        p.data.add_(torch.randn_like(p), alpha=0.1)
    for buffer in module.buffers():
        if buffer.is_floating_point():
            buffer.add_(torch.rand_like(buffer))
    return module


@dataclass(frozen=True)
class Case:
    module: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]
    ops: str | None = None  # the instructions wanted, in order
    loss: str = "mse"


def check(case: Case) -> Program:
    torch.manual_seed(0)
    module, inputs = shaken(case.module()), case.inputs()
    traced = trace(module, inputs, case.loss)
    if case.ops is not None:
        assert " ".join(step.op for step in traced.instructions) == case.ops, describe(traced)
    x = dense(inputs)
    x = x if x.dtype is torch.int64 else x.double()
    engine = traced.to_engine(traced.packing.pack(module))
    layout = traced.statistics
    statistics = x.new_zeros(0) if layout is None else layout.pack(module, torch.float64)
    with torch.no_grad():
        outputs = interpreter.run(traced, engine, x, statistics)
        expected = module.eval()(x.clone())  # a clone: the module may work in place
    if case.loss == "mse":
        expected = expected.reshape(outputs.shape)
    torch.testing.assert_close(outputs, expected, rtol=1e-10, atol=1e-10)
    return traced


def conv(*args: Any, **kwargs: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Conv2d(2, *args, **kwargs))


def of(layer: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """A layer without parameters of its own, after one of each kind that has some."""
    return lambda: nn.Sequential(nn.Conv2d(2, 4, 1), layer())


def after_conv(forward: Callable[[Any], Any]) -> Callable[[], nn.Module]:
    return lambda: Net(lambda net, x: forward(net.conv(x)), conv=nn.Conv2d(2, 4, 1))


def linear_then(forward: Callable[[Any], Any]) -> Callable[[], nn.Module]:
    return lambda: Net(lambda net, x: forward(net.linear(x)), linear=nn.Linear(6, 6))
