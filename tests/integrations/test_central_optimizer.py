"""The central optimizer for pfl by itself: its file needs no pfl, which the package around it does."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

import fastfed as ff


def module_of_the_optimizer() -> ModuleType:
    path = Path(ff.__file__).parent / "integrations" / "pfl" / "optimizer.py"
    spec = importlib.util.spec_from_file_location("fastfed.integrations.pfl.optimizer", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def steps_with_gaps(made: torch.optim.Optimizer, params: list[nn.Parameter], missing: int) -> list[Tensor]:
    """Parameter number `missing` has no gradient at first, nor later on once."""
    generator = torch.Generator().manual_seed(2)
    for step in range(6):
        for place, p in enumerate(params):
            p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype)
            if place == missing and step in (0, 3):
                p.grad = None
        made.step()
    return [p.detach() for p in params]


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(n, generator=generator, dtype=torch.float64)) for n in (5, 3, 7)]


@pytest.mark.parametrize("missing", [0, 1, 2])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_every_parameter_has_its_own_bias_correction(missing: int, amsgrad: bool) -> None:
    kind = ff.servers.FedAMS if amsgrad else ff.servers.FedAdam
    server = kind(lr=0.05, beta1=0.8, beta2=0.95, tau=1e-3, bias_correction=True, eps="torch")
    ours, theirs = parameters(), parameters()
    made = module_of_the_optimizer().CentralOptimizer(ours, server)
    adam = torch.optim.Adam(theirs, lr=0.05, betas=(0.8, 0.95), eps=1e-3, amsgrad=amsgrad)
    found, wanted = (steps_with_gaps(*each, missing) for each in ((made, ours), (adam, theirs)))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    assert [int(made.state[p]["step"]) for p in ours] == [4 if place == missing else 6 for place in range(3)]
    for p, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(made.state[p]["v"], adam.state[other]["exp_avg_sq"], rtol=1e-12, atol=1e-12)
