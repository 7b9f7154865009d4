"""The functional front: rounds of a simulation, as functions that change nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fastfed as ff
from fastfed.integrations import functional

from .support import local_training, module, simulated


@pytest.mark.parametrize("server", [ff.servers.FedYogi(lr=0.05), ff.servers.FedAdam(lr=0.05, bias_correction=True)])
def test_rounds_are_those_of_a_simulation(server: Any) -> None:
    init, step = functional(local_training(), server)
    state = init(module())
    for _ in range(3):
        state, scalars = step(state, torch.arange(10))
    assert torch.equal(state.x, simulated(server, 3).params)
    assert state.round == 3
    assert scalars["mean_loss"].shape == (10,)


def test_a_state_may_be_gone_on_from_more_than_once() -> None:
    init, step = functional(local_training(), ff.servers.FedAdam(lr=0.05, bias_correction=True))
    first, _ = step(init(module()), torch.arange(10))
    kept = [first.x.clone(), *(moment.clone() for moment in first.moments.values())]
    one, _ = step(first, torch.tensor([3, 1]))
    other, _ = step(first, torch.tensor([3, 1]))
    assert torch.equal(one.x, other.x)
    assert all(torch.equal(a, b) for a, b in zip(kept, (first.x, *first.moments.values()), strict=True))


def test_arrays_by_name_are_a_start_too() -> None:
    init, _ = functional(local_training(), ff.servers.FedAvg())
    named = {name: tensor.numpy() for name, tensor in module().state_dict().items()}
    assert torch.equal(init(named).x, init(module()).x)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(TypeError, match=r"^training: "):
        functional(module(), ff.servers.FedAvg())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^server: "):
        functional(local_training(), "fedavg")  # type: ignore[arg-type]
