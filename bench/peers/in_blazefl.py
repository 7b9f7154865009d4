"""BlazeFL in `bench peers`: its ThreadPoolClientTrainer, which it recommends, with as many threads as cores."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
import torch
from blazefl.core import ThreadPoolClientTrainer
from torch import Tensor, nn

from . import torch_tasks
from .serving import Task, serve


@dataclass
class _Package:
    """A model's parameters, one after the other."""

    parameters: Tensor


class _Clients(ThreadPoolClientTrainer[_Package, _Package]):
    """Clients whose steps run in threads, each thread with a module of its own."""

    def __init__(self, task: Task) -> None:
        self.task, self.steps, self.modules = task, task.steps(None), threading.local()
        self.num_parallels, self.device, self.device_count = task.threads, "cpu", 0
        self.cache: list[_Package] = []
        self.stop_event = threading.Event()

    def uplink_package(self) -> list[_Package]:
        packages, self.cache = self.cache, []
        return packages

    def worker(self, cid: int, device: str, payload: _Package, stop_event: threading.Event) -> _Package:
        module = self._module()
        with torch.no_grad():
            nn.utils.vector_to_parameters(payload.parameters, torch_tasks.trained(module))
        torch_tasks.train(module, self.task, cid, self.steps)
        return _Package(nn.utils.parameters_to_vector(torch_tasks.trained(module)).detach())

    def _module(self) -> nn.Module:
        if not hasattr(self.modules, "own"):
            torch.set_num_threads(1)
            self.modules.own = torch_tasks.module(self.task)
        module: nn.Module = self.modules.own
        return module


class InBlazefl:
    """The server's average, weights alike: all clients have as many examples."""

    def __init__(self, task: Task) -> None:
        self.task, self.clients = task, _Clients(task)

    def begin(self, steps: int | None) -> None:
        self.clients.steps = self.task.steps(steps)
        self.module = torch_tasks.module(self.task)
        self.x = nn.utils.parameters_to_vector(torch_tasks.trained(self.module)).detach()

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            self.clients.local_process(_Package(self.x), list(range(self.task.clients)))
            self.x = _sum(self.clients.uplink_package(), 1 / self.task.clients)

    def model(self) -> Sequence[np.ndarray]:
        with torch.no_grad():
            nn.utils.vector_to_parameters(self.x, torch_tasks.trained(self.module))
        return torch_tasks.taken(self.module)


def _sum(packages: Sequence[_Package], weight: float) -> Tensor:
    """The models added up, each times `weight`."""
    total = torch.zeros_like(packages[0].parameters)
    for package in packages:
        total.add_(package.parameters, alpha=weight)
    return total


if __name__ == "__main__":
    serve(InBlazefl, {"blazefl": version("blazefl"), "torch": torch.__version__})
