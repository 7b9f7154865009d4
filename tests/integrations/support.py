"""What the tests of hosts share: small federations, and how a missing host is skipped."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fastfed as ff
from fastfed.integrations import LocalTraining


def host(package: str) -> Any:
    """The package, or a skip of the whole file that says how to have it."""
    return pytest.importorskip(package, reason=f"{package} is not installed; make integrations-proof installs it apart")


def module(seed: int = 3) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 13), nn.ReLU(), nn.Linear(13, 10))


def federation(clients: int = 10) -> ff.data.Federated:
    return ff.data.dirichlet(ff.data.digits(), clients=clients, alpha=0.5, seed=1)


def local_training(**given: Any) -> LocalTraining:
    usual: dict[str, Any] = {"client": ff.clients.SGD(lr=0.1), "batch_size": 10, "seed": 5}
    return LocalTraining(module(), federation(), **{**usual, **given})


def simulated(server: Any, rounds: int, **given: Any) -> ff.Simulation:
    """FastFed's own run of the same clients, all of them in every round."""
    usual: dict[str, Any] = {"client": ff.clients.SGD(lr=0.1), "batch_size": 10, "seed": 5, "epochs": 1}
    sim = ff.Simulation(module(), federation(), server=server, cohort=len(federation()), **{**usual, **given})
    sim.run(rounds, evaluate_every=0, progress=False)
    return sim
