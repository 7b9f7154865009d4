"""A client's local training as the papers write it: a plain PyTorch loop over a copy of the module, in float64.

Independent of FastFed but for its random streams: batches are written out from the sentence that defines them, and the
update rules are torch.optim's or formulas of their own.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import fastfed as ff
from fastfed.data import Examples
from fastfed.purposes import Purpose
from fastfed.train import RoundWork

Parameters = list[nn.Parameter]


@dataclass
class Literal:
    """What the loop leaves: the packed D_i, losses, and gradients (flat, before corrections) of every step."""

    delta: Tensor
    losses: list[float] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)


def literal_batches(work: RoundWork, client: int, steps: int) -> Iterator[tuple[int, Tensor]]:
    """(epoch from 1, rows) of every step."""
    own = work.rows[work.offsets[client] : work.offsets[client + 1]]
    n, size, taken = len(own), work.batch_size, 0
    for epoch in range(10**6):
        stream = ff.kernels.Stream(work.seed, Purpose.SHUFFLE, work.round, int(work.ids[client]), epoch)
        shuffled = own[ff.kernels.permutation(n, stream)]
        for begin in range(0, n, size):
            if taken == steps:
                return
            taken += 1
            yield epoch + 1, shuffled[begin : begin + size]


def flat(tensors: Any) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def train_literally(
    module: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    examples: Examples,
    work: RoundWork,
    client: int,
    make_optimizer: Callable[[Parameters], Any],
    *,
    correct: Callable[[Parameters, Parameters], None] = lambda now, start: None,
    scale: Callable[[int], float] = lambda step: 1.0,
) -> Literal:
    """Trains a float64 copy of the module from its own parameters.

    `make_optimizer` gives an object with ``step(**what it may need)``, among it a `closure` that computes the gradients
    of the batch again; `correct(parameters, start)` changes gradients before the optimizer sees them; `scale`
    multiplies the learning rate of a step (from 1).
    """
    model = copy.deepcopy(module).double().train()
    trained = [p for p in model.parameters() if p.requires_grad]
    start = [nn.Parameter(p.detach().clone()) for p in trained]
    optimizer = make_optimizer(trained)
    result = Literal(torch.empty(0))
    for step, (epoch, rows) in enumerate(literal_batches(work, client, int(work.steps[client])), start=1):
        inputs, targets = examples.inputs[rows].double(), examples.targets[rows]  # type: ignore[index]

        def evaluate(inputs: Tensor = inputs, targets: Tensor = targets) -> Tensor:
            for p in trained:
                p.grad = torch.zeros_like(p)
            value = loss(model(inputs), targets)
            value.backward()
            return value.detach()

        def closure(evaluate: Callable[[], Tensor] = evaluate) -> None:
            evaluate()
            correct(trained, start)

        value = float(evaluate())
        result.losses.append(value)
        result.gradients.append(flat(p.grad for p in trained))
        correct(trained, start)
        _take_step(optimizer, scale(step), epoch=epoch, loss=value, closure=closure)
    packing = ff.Packing.of(module)
    result.delta = torch.zeros(packing.size, dtype=torch.float64)
    for slot, now, before in zip(packing.slots, trained, start, strict=True):
        result.delta[slot.span] = (now - before).detach().reshape(-1)
    return result


def _take_step(optimizer: Any, scale: float, **knows: Any) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        optimizer.step(**knows)
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] *= scale
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


class DelayedAdaGrad:
    """FedAda2's: v is refreshed at every z-th local epoch only."""

    def __init__(self, parameters: Parameters, lr: float, eps: float, delay: int) -> None:
        self.parameters, self.lr, self.eps, self.delay = parameters, lr, eps, delay
        self.v = [torch.zeros_like(p) for p in parameters]

    @torch.no_grad()
    def step(self, epoch: int, **_: Any) -> None:
        for p, v in zip(self.parameters, self.v, strict=True):
            if (epoch - 1) % self.delay == 0:
                v += p.grad**2
            p -= self.lr * p.grad / (v.sqrt() + self.eps)


class DeltaSGD:
    """Algorithm 1 of the Delta-SGD paper; `same_batch` evaluates the last model again on the current batch."""

    def __init__(self, parameters: Parameters, lr: float, gamma: float, delta: float, same_batch: bool) -> None:
        self.parameters, self.gamma, self.delta, self.same_batch = parameters, gamma, delta, same_batch
        self.sizes, self.theta = [lr], 1.0
        self.x_before: Tensor | None = None
        self.g_before: Tensor | None = None

    def step(self, closure: Callable[[], None], **_: Any) -> None:
        x, g = flat(self.parameters), flat(p.grad for p in self.parameters)
        if self.x_before is not None:
            g_before = self._gradient_at(self.x_before, x, closure) if self.same_batch else self.g_before
            assert g_before is not None
            smooth = self.gamma * float((x - self.x_before).norm()) / (2 * float((g - g_before).norm()))
            last = self.sizes[-1]
            self.sizes.append(min(smooth, math.sqrt(1 + self.delta * self.theta) * last))
            self.theta = self.sizes[-1] / last
        self.x_before, self.g_before = x, g
        self._write(x - self.sizes[-1] * g)

    def _gradient_at(self, there: Tensor, here: Tensor, closure: Callable[[], None]) -> Tensor:
        self._write(there)
        closure()
        gradient = flat(p.grad for p in self.parameters)
        self._write(here)
        return gradient

    @torch.no_grad()
    def _write(self, x: Tensor) -> None:
        for p, part in zip(self.parameters, x.split([p.numel() for p in self.parameters]), strict=True):
            p.copy_(part.view_as(p))


class SPS:
    """Stochastic Polyak step sizes."""

    def __init__(self, parameters: Parameters, c: float, f_star: float, lr_max: float) -> None:
        self.parameters, self.c, self.f_star, self.lr_max = parameters, c, f_star, lr_max
        self.sizes: list[float] = []

    @torch.no_grad()
    def step(self, loss: float, **_: Any) -> None:
        square = sum(float((p.grad**2).sum()) for p in self.parameters)
        self.sizes.append(min((loss - self.f_star) / (self.c * square + 1e-8), self.lr_max))
        for p in self.parameters:
            p -= self.sizes[-1] * p.grad
