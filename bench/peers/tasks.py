"""The whole tasks of `bench peers`: data, model, settings and the accuracy that ends them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from ... import models
from ...data import Dataset, Federated, digits, dirichlet, natural, qmnist

SEED = 7


@dataclass(frozen=True)
class Whole:
    """FedAvg to a test accuracy of `target`, looked at every `every` rounds, for `rounds` at most.

    `fed(data)` makes the federation; `data` is the directory of real files.
    """

    name: str
    words: str
    fed: Callable[[Path], Federated]
    sizes: tuple[int, ...]
    cohort: int
    epochs: int
    batch: int
    lr: float
    target: float
    rounds: int
    every: int = 5

    def module(self) -> torch.nn.Module:
        """The model, its weights from a fixed seed."""
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(SEED)
            return models.mlp(*self.sizes)


def _digits(data: Path) -> Federated:
    return dirichlet(digits(), clients=100, alpha=0.3, seed=0)


def _writers(data: Path) -> Federated:
    found: Dataset = qmnist(data / "qmnist_writers", data / "mnist")
    return natural(found)


WHOLE_TASKS: dict[str, Whole] = {
    whole.name: whole
    for whole in (
        Whole("digits", "embedded digits to 95%, MLP 64-64-10", _digits, (64, 64, 10), 10, 2, 10, 0.1, 0.95, 300),
        Whole("writers", "QMNIST's 539 writers to 97%, MLP 784-200-200-10", _writers, (784, 200, 200, 10), 20, 5, 20,
              0.1, 0.97, 200),
    )
}  # fmt: skip
