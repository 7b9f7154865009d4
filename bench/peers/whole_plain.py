"""The plain PyTorch loop over clients on a whole task: as one writes it, without a framework."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .whole import Visit, WholeTask, reach


def mlp(task: WholeTask) -> nn.Sequential:
    """The task's model, with its start in it."""
    layers = [layer for pair in pairwise(task.told["sizes"]) for layer in (nn.Linear(*pair), nn.ReLU())]
    module = nn.Sequential(nn.Flatten(), *layers[:-1])
    with torch.no_grad():
        for parameter, array in zip(module.parameters(), task.start, strict=True):
            parameter.copy_(torch.from_numpy(array))
    return module


def sides(task: WholeTask, which: str = "") -> tuple[Tensor, Tensor]:
    """Inputs and targets, or `which` "test_" ones."""
    inputs, targets = (torch.from_numpy(task.array(f"{which}{side}")) for side in ("inputs", "targets"))
    return inputs, targets


@torch.no_grad()
def accuracy(module: nn.Module, test: tuple[Tensor, Tensor]) -> float:
    """The share of the test examples that a module has right."""
    return float((module(test[0]).argmax(1) == test[1]).float().mean())


class PlainLearner:
    """Client after client: copy the parameters, a fresh torch.optim.SGD, backward and step, add up what changed."""

    def __init__(self, task: WholeTask) -> None:
        torch.set_num_threads(task.threads)
        self.module, self.lr = mlp(task), task.told["lr"]
        (self.inputs, self.targets), self.test = sides(task), sides(task, "test_")

    def learn(self, visits: Sequence[Visit]) -> None:
        parameters = list(self.module.parameters())
        start = [parameter.detach().clone() for parameter in parameters]
        sums = [torch.zeros_like(parameter) for parameter in start]
        total = sum(visit.examples for visit in visits)
        for visit in visits:
            self._train(visit)
            with torch.no_grad():
                for added, parameter, before in zip(sums, parameters, start, strict=True):
                    added.add_(parameter, alpha=visit.examples / total)
                    parameter.copy_(before)
        with torch.no_grad():
            for added, parameter in zip(sums, parameters, strict=True):
                parameter.copy_(added)

    def accuracy(self) -> float:
        return accuracy(self.module, self.test)

    def _train(self, visit: Visit) -> None:
        optimizer = torch.optim.SGD(self.module.parameters(), lr=self.lr)
        for rows in map(torch.from_numpy, visit.batches):
            optimizer.zero_grad()
            F.cross_entropy(self.module(self.inputs[rows]), self.targets[rows]).backward()
            optimizer.step()


if __name__ == "__main__":
    reach(PlainLearner)
