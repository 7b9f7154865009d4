"""A small federation and a small model that every simulation test can afford."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import fastfed as ff

CLIENTS = 12


def small_federation(*, test: bool = True, seed: int = 3) -> ff.data.Federated:
    """12 clients with 3 to 36 examples of 6 numbers in 4 classes, and 100 test examples."""
    generator = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(4, 6, generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), torch.arange(3, 3 * CLIENTS + 1, 3).cumsum(0)])
    labels = torch.randint(0, 4, (int(offsets[-1]) + 100,), generator=generator)
    inputs = centres[labels] + torch.randn(len(labels), 6, generator=generator)
    n = int(offsets[-1])
    held_out = ff.data.Examples(inputs[n:], labels[n:]) if test else None
    rows = torch.randperm(n, generator=generator)
    return ff.data.Federated("small", ff.data.Examples(inputs[:n], labels[:n]), rows, offsets, test=held_out)


def small_model(seed: int = 0) -> nn.Module:
    """An MLP 6-5-4 of ff.models, with weights of its own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ff.models.mlp(6, 5, 4)


def simulation(fed: ff.data.Federated | None = None, **settings: Any) -> ff.Simulation:
    """Five clients a round, FedYogi over SGD, unless told otherwise."""
    defaults: dict[str, Any] = {
        "client": ff.clients.SGD(lr=0.1),
        "server": ff.servers.FedYogi(lr=0.05, tau=1e-2),
        "cohort": 5,
        "epochs": 2,
        "batch_size": 7,
        "seed": 11,
    }
    return ff.Simulation(small_model(), small_federation() if fed is None else fed, **(defaults | settings))
