"""What frameworks around PyTorch share in `bench peers`: a task's module and loss, its arrays, a client's SGD."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch  # before FastFed: threads wait as torch has it by itself
from torch import Tensor, nn

from fastfed.bench.peers.rounds import LOSSES, module_of
from fastfed.bench.rounds.rows import PLAIN
from fastfed.bench.rounds.workloads import PEERED

from .serving import Task


def module(task: Task) -> nn.Module:
    """The module that people would write, with the start model in it."""
    workload = PEERED[task.told["workload"]]
    made = module_of(workload, workload.peers[PLAIN])
    put(made, task.start)
    return made


def loss(task: Task) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss of outputs and targets."""
    return LOSSES[task.told["loss"]]


@torch.no_grad()
def put(module: nn.Module, arrays: Sequence[np.ndarray]) -> None:
    """Writes a model's arrays into the parameters that are trained."""
    for parameter, array in zip(trained(module), arrays, strict=True):
        parameter.copy_(torch.from_numpy(np.array(array)))


def taken(module: nn.Module) -> list[np.ndarray]:
    """The arrays of the parameters that are trained."""
    return [parameter.detach().numpy().copy() for parameter in trained(module)]


def trained(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that are trained, in the task's order."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def visited(task: Task, client: int, steps: int | None) -> tuple[Tensor, Tensor]:
    """A client's inputs and targets in the order of its batches."""
    inputs, targets = task.visit(client, steps)
    return torch.from_numpy(inputs), torch.from_numpy(targets)


def train(module: nn.Module, task: Task, client: int, steps: int | None) -> None:
    """One client's local steps of SGD, as one writes them."""
    optimizer = torch.optim.SGD(module.parameters(), lr=task.told["lr"])
    measured, size = loss(task), int(task.told["batch"])
    for inputs, targets in zip(*(side.split(size) for side in visited(task, client, steps)), strict=True):
        optimizer.zero_grad()
        measured(module(inputs), targets).backward()
        optimizer.step()
