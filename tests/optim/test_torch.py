"""Optimizers that torch has, too: twenty steps, parameters and state, in float32 and float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import fastfed as ff
from fastfed.kernels import registry

from .support import gradients, parameters, run

STEPS = 20
TOLERANCE = {torch.float32: {"rtol": 2e-5, "atol": 2e-6}, torch.float64: {"rtol": 1e-11, "atol": 1e-13}}
AS_TORCH = {"bias_correction": True, "eps": "torch"}
ADAM = {"m": "exp_avg", "v": "exp_avg_sq"}
AMS = {**ADAM, "vmax": "max_exp_avg_sq"}
# ours, its options, torch's, its options, our names of what torch's state holds
PAIRS: dict[str, tuple[Any, dict[str, Any], Any, dict[str, Any], dict[str, str]]] = {
    "Adam": (
        ff.optim.FedAdam,
        {"lr": 0.03, "beta1": 0.8, "beta2": 0.95, "tau": 1e-4, **AS_TORCH},
        torch.optim.Adam,
        {"lr": 0.03, "betas": (0.8, 0.95), "eps": 1e-4},
        ADAM,
    ),
    "Adam by two options": (
        ff.optim.FedAdam,
        {"lr": 0.01, **AS_TORCH},
        torch.optim.Adam,
        {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-3},
        ADAM,
    ),
    "Adam with amsgrad": (
        ff.optim.FedAMS,
        {"lr": 0.03, "beta1": 0.8, "beta2": 0.9, "tau": 1e-4, **AS_TORCH},
        torch.optim.Adam,
        {"lr": 0.03, "betas": (0.8, 0.9), "eps": 1e-4, "amsgrad": True},
        AMS,
    ),
    "Adagrad": (
        ff.optim.FedAdagrad,
        {"lr": 0.2, "tau": 1e-5, "eps": "torch"},
        torch.optim.Adagrad,
        {"lr": 0.2, "eps": 1e-5},
        {"v": "sum"},
    ),
    "Adagrad from a start": (
        ff.optim.FedAdagrad,
        {"lr": 0.2, "tau": 1e-5, "v0": 0.04},
        torch.optim.Adagrad,
        {"lr": 0.2, "eps": 1e-5, "initial_accumulator_value": 0.04},
        {"v": "sum"},
    ),
    "SGD": (ff.optim.FedAvg, {"lr": 0.1}, torch.optim.SGD, {"lr": 0.1}, {}),
    "SGD with momentum": (
        ff.optim.FedAvgM,
        {"lr": 0.1, "momentum": 0.7},
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.7},
        {"m": "momentum_buffer"},
    ),
    "SGD, of DeltaSGD that may not change its step": (
        ff.optim.DeltaSGD,
        {"lr": 0.1, "delta": 0.0, "gamma": 1e9},
        torch.optim.SGD,
        {"lr": 0.1},
        {},
    ),
}
every_pair = pytest.mark.parametrize("name", PAIRS)


def agrees(name: str, dtype: torch.dtype, **both: Any) -> None:
    ours, options, theirs, their_options, names = PAIRS[name]
    found = run(lambda params: ours(params, **options, **both), STEPS, dtype)
    wanted = run(lambda params: theirs(params, **their_options, **both), STEPS, dtype)
    for mine, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine["x"], other["x"], **TOLERANCE[dtype])
        assert set(names) <= set(mine)
        for name_here, there in names.items():
            torch.testing.assert_close(mine[name_here], other[there], **TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.07])
@every_pair
def test_is_torchs(name: str, weight_decay: float, maximize: bool, dtype: torch.dtype) -> None:
    agrees(name, dtype, weight_decay=weight_decay, maximize=maximize)


@every_pair
def test_on_every_backend(name: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "default", backend)
    agrees(name, torch.float32, weight_decay=0.07, maximize=False)


@pytest.mark.parametrize("rule", ["FedAdam", "FedYogi", "FedAMS", "FedAdagrad", "FedAvgM", "FedAvg"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_server_is_itself(rule: str, dtype: torch.dtype) -> None:
    """The bits of `server_step` along minus the gradient, moments of the other sign."""
    options = {"lr": 0.03, **({"bias_correction": True} if rule in ("FedAdam", "FedYogi", "FedAMS") else {})}
    made, server = getattr(ff.optim, rule), getattr(ff.servers, rule)(**options)
    found = run(lambda params: made(params, **options), 5, dtype)
    for i, mine in enumerate(found):
        if mine["x"].numel() == 0:
            continue
        x = parameters(dtype)[i].detach().reshape(-1)
        state = ff.kernels.server_state(server.rule, x, **server.state_options())
        for step in range(5):
            delta = -gradients(step, dtype)[i].reshape(-1)
            ff.kernels.server_step(server.rule, x, delta, state, **server.step_options())
        assert torch.equal(mine["x"].reshape(-1), x)
        for name, sign in (("m", -1), ("v", 1), ("vmax", 1)):
            assert (name in mine) == (name in state)
            assert name not in mine or torch.equal(mine[name].reshape(-1), sign * state[name])


def test_the_papers_are_the_defaults() -> None:
    """A class repeats the defaults of the one in `ff.servers` or `ff.clients`."""
    compared = 0
    for name in ff.optim.__all__:
        made = getattr(ff.optim, name)
        if name == "Descent":
            continue
        needs_lr = {} if name in ("SPS", "DeltaSGD", "FedAvg", "FedAvgM") else {"lr": 0.1}
        optimizer = made(parameters(), **needs_lr)
        kinds = {"SM3": {}, "SM3I": {"cover": "I"}, "SM3Adam": {"form": "adam"}}
        settings = made.settings(**needs_lr, **kinds.get(name, {}))
        of_group = optimizer._settings(optimizer.param_groups[0])
        assert of_group == settings, name
        compared += 1
    assert compared == 11


@pytest.mark.parametrize("kind", [ff.servers.FedAdagrad, ff.servers.FedAdam, ff.servers.FedYogi])
def test_eps_that_is_changed_later_leaves_what_was_settled(kind: Any) -> None:
    """As docs/optim.md says: v goes on to be of what it was said to be of, and can be said, or settled, anew."""
    server, wanted = kind(lr=0.1), kind(lr=0.1, eps="torch")
    assert replace(server, eps="torch").second_moment_of == "momentum"
    assert replace(server, eps="torch", second_moment_of="delta") == wanted
    assert replace(server, eps="torch", second_moment_of=None) == wanted
