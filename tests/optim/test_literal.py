"""SM3, Delta-SGD and Polyak's steps against loops in NumPy that know nothing of FastFed."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fastfed as ff
from fastfed.kernels import registry

from ..kernels import literal
from .support import SHAPES, give, go_on, gradients, normals, parameters, snapshot

STEPS = 6
EXACT = {"rtol": 1e-11, "atol": 1e-13}
NEAR = {"rtol": 3e-5, "atol": 3e-6}


def flat(tensors: list[Tensor]) -> np.ndarray:
    return torch.cat([tensor.detach().double().reshape(-1) for tensor in tensors]).numpy()


def sets_of(shapes: list[tuple[int, ...]]) -> list[list[int]]:
    """For every index of every axis of every tensor, the places in the flat vector."""
    found, first = [], 0
    for shape in shapes:
        places = np.arange(first, first + int(np.prod(shape, dtype=int))).reshape(shape if len(shape) > 1 else -1)
        first += places.size
        if places.size:
            for axis in range(places.ndim):
                found += [np.take(places, i, axis).reshape(-1).tolist() for i in range(places.shape[axis])]
    return found


SM3S: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "SM3": (ff.optim.SM3, {"lr": 0.1, "eps": 1e-3}, {"lr": 0.1, "eps": 1e-3}),
    "SM3 decays": (
        ff.optim.SM3,
        {"lr": 0.1, "eps": 1e-3, "v0": 0.2, "weight_decay": 0.05},
        {"lr": 0.1, "eps": 1e-3, "v0": 0.2, "weight_decay": 0.05},
    ),
    "SM3 as its reference": (
        ff.optim.SM3,
        {"lr": 0.1, "eps": 0.0, "root_eps": 1e-6, "beta1": 0.8},
        {"lr": 0.1, "root_eps": 1e-6, "momentum": 0.8},
    ),
    "SM3I": (ff.optim.SM3I, {"lr": 0.1, "eps": 1e-3}, {"lr": 0.1, "eps": 1e-3, "form": "I"}),
    "SM3Adam": (
        ff.optim.SM3Adam,
        {"lr": 0.02, "beta1": 0.8, "beta2": 0.95, "eps": 1e-3},
        {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-3},
    ),
    "SM3Adam I": (
        ff.optim.SM3Adam,
        {"lr": 0.02, "beta1": 0.8, "beta2": 0.95, "eps": 1e-3, "cover": "I", "weight_decay": 0.05},
        {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-3, "form": "I", "weight_decay": 0.05},
    ),
}


def sm3_agrees(name: str, dtype: torch.dtype, **tolerance: float) -> None:
    made, options, theirs = SM3S[name]
    params = parameters(dtype)
    optimizer = made(params, **options)
    go_on(optimizer, params, range(STEPS))
    grads = [flat(gradients(step, torch.float64)) for step in range(STEPS)]
    last = literal.sm3(flat(normals(0, torch.float64)), grads, sets_of(SHAPES), **theirs)[-1]
    found = snapshot(optimizer)
    for key in last:
        mine = flat([one[key] for one in found if key in one])
        np.testing.assert_allclose(mine, last[key], **tolerance)
    assert ("m" in last) == ("m" in found[0])


@pytest.mark.parametrize("name", SM3S)
def test_sm3(name: str) -> None:
    sm3_agrees(name, torch.float64, **EXACT)


@pytest.mark.parametrize("name", SM3S)
def test_sm3_on_every_backend(name: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "default", backend)
    sm3_agrees(name, torch.float32, **NEAR)


DELTA: dict[str, dict[str, Any]] = {
    "the paper's": {"lr": 0.05},
    "others": {"lr": 0.05, "gamma": 1.5, "delta": 0.2, "theta": 0.5, "weight_decay": 0.05},
    "the authors'": {"lr": 0.05, "grow_first": True, "lr_eps": 1e-3},
}


SHARES = (0.0, 1e-3, 3.0, 3.001, -1.0, 0.5)  # changes small and large: both bounds of the step size are met


def changing(step: int, dtype: torch.dtype) -> list[Tensor]:
    return [a + SHARES[step] * b for a, b in zip(normals(7, dtype), normals(8, dtype), strict=True)]


def delta_sgd_agrees(options: dict[str, Any], dtype: torch.dtype, groups: int = 1, **tolerance: float) -> set[int]:
    params = parameters(dtype)
    parted: Any = params if groups == 1 else [{"params": params[i::groups]} for i in range(groups)]
    optimizer = ff.optim.DeltaSGD(parted, **options)
    grads = [flat(changing(step, torch.float64)) for step in range(STEPS)]
    wanted = literal.delta_sgd(flat(normals(0, torch.float64)), grads, **options)
    for step, shot in enumerate(wanted):
        give(params, changing(step, dtype))
        optimizer.step()
        np.testing.assert_allclose(flat(list(params)), shot["x"], **tolerance)
        for group in optimizer.param_groups:
            np.testing.assert_allclose(group["step_size"], shot["lr"], rtol=tolerance["rtol"])
            np.testing.assert_allclose(group["growth"], shot["theta"], rtol=tolerance["rtol"])
    return {int(shot["binds"]) for shot in wanted}


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("name", DELTA)
def test_delta_sgd(name: str, groups: int) -> None:
    assert {1, 2} <= delta_sgd_agrees(DELTA[name], torch.float64, groups, **EXACT)


@pytest.mark.parametrize("name", DELTA)
def test_delta_sgd_on_every_backend(name: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "default", backend)
    delta_sgd_agrees(DELTA[name], torch.float32, rtol=1e-3, atol=1e-4)


POLYAK: dict[str, dict[str, Any]] = {
    "the paper's": {"c": 0.5, "f_star": 0.0},
    "bounded": {"c": 0.7, "f_star": 0.1, "lr_max": 0.05, "eps": 1e-3, "weight_decay": 0.05},
}
LOSSES = [9.5, 30.0, 4.0, 2.5, 8.0, 1.0]


def sps_agrees(options: dict[str, Any], dtype: torch.dtype, groups: int = 1, **tolerance: float) -> set[int]:
    params = parameters(dtype)
    parted: Any = params if groups == 1 else [{"params": params[i::groups]} for i in range(groups)]
    optimizer = ff.optim.SPS(parted, **options)
    grads = [flat(gradients(step, torch.float64)) for step in range(STEPS)]
    wanted = literal.sps(flat(normals(0, torch.float64)), grads, LOSSES, **options)
    for step, (shot, loss) in enumerate(zip(wanted, LOSSES, strict=True)):
        give(params, gradients(step, dtype))
        if step % 2:
            assert optimizer.step(lambda value=loss: torch.tensor(value, dtype=torch.float64)) == loss
        else:
            optimizer.step(loss=loss)
        np.testing.assert_allclose(flat(list(params)), shot["x"], **tolerance)
        for group in optimizer.param_groups:
            np.testing.assert_allclose(group["step_size"], shot["lr"], rtol=tolerance["rtol"])
    return {int(shot["binds"]) for shot in wanted}


@pytest.mark.parametrize("groups", [1, 3])
def test_sps(groups: int) -> None:
    met = [sps_agrees(options, torch.float64, groups, **EXACT) for options in POLYAK.values()]
    assert set(itertools.chain(*met)) == {1, 2}


@pytest.mark.parametrize("name", POLYAK)
def test_sps_on_every_backend(name: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "default", backend)
    sps_agrees(POLYAK[name], torch.float32, **NEAR)
