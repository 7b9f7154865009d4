"""Parameters of odd shapes, gradients for them, and runs of optimizers over both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

SHAPES: list[tuple[int, ...]] = [(5, 9), (7,), (), (3, 1, 2, 5), (0, 4), (70, 33), (1, 1025)]
Made = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Snapshot = list[dict[str, Tensor]]  # of every parameter: "x", and its state


def normals(seed: int, dtype: torch.dtype = torch.float32, shapes: Sequence[tuple[int, ...]] = SHAPES) -> list[Tensor]:
    """The same numbers for every dtype."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def parameters(dtype: torch.dtype = torch.float32, seed: int = 0) -> list[nn.Parameter]:
    return [nn.Parameter(tensor) for tensor in normals(seed, dtype)]


def gradients(step: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Those of a step; they shrink now and then, so that largest moments matter."""
    return [(0.3 if step % 3 else 1.0) * tensor for tensor in normals(100 + step, dtype)]


def give(params: Sequence[nn.Parameter], grads: Sequence[Tensor | None]) -> None:
    for p, g in zip(params, grads, strict=True):
        p.grad = None if g is None else g.clone()


def snapshot(optimizer: torch.optim.Optimizer) -> Snapshot:
    """Every parameter with its tensors, as they are now."""
    return [
        {"x": p.detach().clone()} | {k: v.clone() for k, v in optimizer.state[p].items() if isinstance(v, Tensor)}
        for group in optimizer.param_groups
        for p in group["params"]
    ]


def run(made: Made, steps: int, dtype: torch.dtype = torch.float32, first: int = 0) -> Snapshot:
    """The parameters and their state after so many steps along `gradients`."""
    params = parameters(dtype)
    optimizer = made(params)
    go_on(optimizer, params, range(first, first + steps))
    return snapshot(optimizer)


def go_on(optimizer: Any, params: Sequence[nn.Parameter], steps: range, **given: Any) -> None:
    for step in steps:
        give(params, gradients(step, params[0].dtype))
        optimizer.step(**given)


def same_bits(a: Snapshot, b: Snapshot) -> bool:
    return all(
        one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
        for one, other in zip(a, b, strict=True)
    )
