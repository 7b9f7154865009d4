"""Libraries as oracles of every backend: torch.optim and optax."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fastfed as ff

from .oracles import (
    NUMPY,
    Run,
    Snapshots,
    agree,
    client_run,
    gradients,
    seed_of,
    server_run,
    snapshot,
    start,
)
from .support import RANKS, normal, packed_normal

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what jax deprecates while it is imported is not ours
    import jax
    import optax


# ---- torch.optim ----------------------------------------------------------------------------------------------------


def torch_run(
    make: Callable[..., torch.optim.Optimizer],
    x0: Tensor,
    grads: list[Tensor],
    options: dict[str, Any],
    exposed: dict[str, str],
    flip: bool = False,
) -> Run:
    """A run of a torch optimizer; `exposed` maps our names of state to theirs. With `flip` m has the delta's sign."""

    def run(dtype: torch.dtype) -> Snapshots:
        x = torch.nn.Parameter(x0.to(dtype).clone())
        optimizer = make([x], foreach=False, **options)
        shots = []
        for g in grads:
            x.grad = g.to(dtype).clone()
            optimizer.step()
            state = {ours: optimizer.state[x][theirs] for ours, theirs in exposed.items()}
            if flip and "m" in state:
                state["m"] = -state["m"]
            shots.append(snapshot(x.detach(), state))
        return shots

    return run


@pytest.mark.parametrize("weight_decay", [0.0, 0.07])
def test_client_adam_is_torchs(backend: str, weight_decay: float) -> None:
    grads, x = gradients("adam", 6), start("adam", torch.float32)
    theirs = {"lr": 0.03, "betas": (0.8, 0.95), "eps": 1e-4, "weight_decay": weight_decay}
    ours = {"lr": 0.03, "beta1": 0.8, "beta2": 0.95, "eps": 1e-4, "weight_decay": weight_decay}
    oracle = torch_run(torch.optim.Adam, x, grads, theirs, {"m": "exp_avg", "v": "exp_avg_sq"})
    agree(backend, client_run("adam", x, grads, ours), oracle)


@pytest.mark.parametrize("weight_decay", [0.0, 0.07])
def test_client_adagrad_is_torchs(backend: str, weight_decay: float) -> None:
    grads, x = gradients("adagrad", 6), start("adagrad", torch.float32)
    options = {"lr": 0.2, "eps": 1e-5, "weight_decay": weight_decay}
    oracle = torch_run(torch.optim.Adagrad, x, grads, options, {"v": "sum"})
    agree(backend, client_run("adagrad", x, grads, options), oracle)


@pytest.mark.parametrize("weight_decay", [0.0, 0.07])
@pytest.mark.parametrize("momentum", [None, 0.7])
def test_client_sgd_is_torchs(backend: str, momentum: float | None, weight_decay: float) -> None:
    grads, x = gradients("sgd", 6), start("sgd", torch.float32)
    options = {"lr": 0.1, "weight_decay": weight_decay}
    theirs, ours = ({"momentum": momentum} if momentum else {}), ({"momentum": momentum} if momentum else {})
    exposed = {"m": "momentum_buffer"} if momentum else {}
    oracle = torch_run(torch.optim.SGD, x, grads, {**options, **theirs}, exposed)
    agree(backend, client_run("momentum" if momentum else "sgd", x, grads, {**options, **ours}), oracle)


def test_server_ams_is_torchs_amsgrad(backend: str) -> None:
    """torch keeps the largest *uncorrected* v and corrects it in the denominator: as FedAMS's authors, from v0 = 0."""
    grads, x = gradients("amsgrad", 8), start("amsgrad", torch.float32)
    grads = [g * (0.3 if step % 3 else 1.0) for step, g in enumerate(grads)]  # v falls, so that the maximum matters
    theirs = {"lr": 0.03, "betas": (0.8, 0.9), "eps": 1e-4, "amsgrad": True}
    exposed = {"m": "exp_avg", "v": "exp_avg_sq", "vmax": "max_exp_avg_sq"}
    ours = {"lr": 0.03, "beta1": 0.8, "beta2": 0.9, "tau": 1e-4, "bias_correction": True, "second_moment_of": "delta"}
    made = {"v0": 0.0, "vmax0": 0.0, "bias_correction": True}
    run = server_run("ams", x, [-g for g in grads], ours, made)
    exact = agree(backend, run, torch_run(torch.optim.Adam, x, grads, theirs, exposed, flip=True))
    assert (exact[-1]["vmax"] > exact[-1]["v"]).any()


def test_server_adam_is_torchs(backend: str) -> None:
    """The AFO authors add tau to the uncorrected root: with tau = eps * sqrt(1 - beta2^t) it is torch's Adam."""
    grads, x, beta2, eps = gradients("server adam", 6), start("server adam", torch.float32), 0.95, 1e-3
    theirs = {"lr": 0.03, "betas": (0.8, beta2), "eps": eps}
    ours = {"lr": 0.03, "beta1": 0.8, "beta2": beta2, "bias_correction": True, "second_moment_of": "delta"}
    made = {"v0": 0.0, "bias_correction": True}
    run = server_run(
        "adam", x, [-g for g in grads], ours, made, each=lambda t: {"tau": eps * (1 - beta2 ** (t + 1)) ** 0.5}
    )
    agree(backend, run, torch_run(torch.optim.Adam, x, grads, theirs, {"m": "exp_avg", "v": "exp_avg_sq"}, flip=True))


@pytest.mark.parametrize("rule", ["adam", "ams"])
def test_a_server_with_torchs_eps_is_torchs(backend: str, rule: str) -> None:
    """Two options, and the rest by default: moments that follow the delta from 0."""
    grads, x = gradients(f"torch's eps {rule}", 8), start(f"torch's eps {rule}", torch.float32)
    grads = [g * (0.3 if step % 3 else 1.0) for step, g in enumerate(grads)]
    theirs = {"lr": 0.03, "betas": (0.9, 0.99), "eps": 1e-3, "amsgrad": rule == "ams"}
    asked = {"bias_correction": True, "eps": "torch"}
    exposed = {"m": "exp_avg", "v": "exp_avg_sq", **({"vmax": "max_exp_avg_sq"} if rule == "ams" else {})}
    run = server_run(rule, x, [-g for g in grads], {"lr": 0.03, **asked}, asked)
    agree(backend, run, torch_run(torch.optim.Adam, x, grads, theirs, exposed, flip=True))


def test_server_adagrad_is_torchs(backend: str) -> None:
    grads, x = gradients("server adagrad", 6), start("server adagrad", torch.float32)
    theirs = {"lr": 0.2, "eps": 1e-3, "initial_accumulator_value": 0.04}
    run = server_run("adagrad", x, [-g for g in grads], {"lr": 0.2, "tau": 1e-3}, {"v0": 0.04})
    agree(backend, run, torch_run(torch.optim.Adagrad, x, grads, theirs, {"v": "sum"}))


def test_server_momentum_is_torchs_sgd(backend: str) -> None:
    grads, x = gradients("server momentum", 6), start("server momentum", torch.float32)
    theirs = {"lr": 0.3, "momentum": 0.8}
    oracle = torch_run(torch.optim.SGD, x, grads, theirs, {"m": "momentum_buffer"}, flip=True)
    agree(backend, server_run("momentum", x, [-g for g in grads], theirs, {}), oracle)


# ---- optax ----------------------------------------------------------------------------------------------------------


def optax_run(transform: Callable[[], Any], x0: Any, grads: list[Any], expose: Callable[[Any], dict[str, Any]]) -> Run:
    """A run of an optax optimizer over a tree of arrays; `expose` gives x and state from (parameters, its state)."""

    def run(dtype: torch.dtype) -> Snapshots:
        with jax.enable_x64(dtype is torch.float64):
            optimizer = transform()

            def cast(tree: Any) -> Any:
                return jax.tree.map(lambda leaf: jax.numpy.asarray(leaf, dtype=NUMPY[dtype]), tree)

            parameters = cast(x0)
            state, shots = optimizer.init(parameters), []
            for g in grads:
                updates, state = optimizer.update(cast(g), state, parameters)
                parameters = optax.apply_updates(parameters, updates)
                shots.append({k: torch.from_numpy(np.array(v)) for k, v in expose((parameters, state)).items()})
        return shots

    return run


YOGI = {"b1": 0.8, "b2": 0.95, "eps": 1e-2}


@pytest.mark.parametrize("initial", [1e-6, 0.5])  # optax's own default, and one that matters
def test_server_yogi_is_optaxs(backend: str, initial: float) -> None:
    """optax starts m as well as v at `initial`, and adds eps to the *corrected* root: m's start is set by hand, and
    tau = eps * sqrt(1 - b2^t) turns the AFO authors' bias correction into optax's."""
    name, b2 = f"yogi {initial}", YOGI["b2"]
    grads, x = gradients(name, 6), start(name, torch.float32)

    def transform() -> Any:
        if initial == 1e-6:
            return optax.yogi(0.03, **YOGI)
        scale = optax.scale_by_yogi(**YOGI, initial_accumulator_value=initial)
        return optax.chain(scale, optax.scale_by_learning_rate(0.03))

    def expose(reached: Any) -> dict[str, Any]:
        parameters, (adam, _) = reached
        return {"x": parameters, "m": -adam.mu, "v": adam.nu}

    ours = {"lr": 0.03, "beta1": YOGI["b1"], "beta2": b2, "second_moment_of": "delta", "bias_correction": True}
    run = server_run(
        "yogi",
        x,
        [-g for g in grads],
        ours,
        {"v0": initial, "bias_correction": True},
        each=lambda t: {"tau": YOGI["eps"] * (1 - b2 ** (t + 1)) ** 0.5},
        prepare=lambda state: state["m"].fill_(-initial),
    )
    oracle = optax_run(transform, x.numpy(), [g.numpy() for g in grads], expose)
    exact = agree(backend, run, oracle)
    assert (exact[-1]["v"] < exact[0]["v"]).any() or initial == 1e-6  # both signs of v - q were met
    assert (exact[-1]["v"] > exact[0]["v"]).any()


def test_client_sm3_is_optaxs(backend: str) -> None:
    """SM3's reference form: eps inside the root, momentum of the preconditioned gradient. optax knows no rank 0."""
    shapes = {name: shape for name, shape in RANKS.items() if shape}
    packing = ff.Packing.from_shapes(shapes)
    x = packed_normal(packing, seed_of("sm3"))
    grads = [packed_normal(packing, seed_of("sm3") + 1 + step) for step in range(6)]
    grads[3][packing.slots[1].span] = 0.0  # a whole tensor without gradient
    b1, eps = 0.85, 1e-4

    def tree(vector: Tensor) -> dict[str, Any]:
        return {name: view.numpy() for name, view in packing.views(vector).items()}

    def flat(leaves: dict[str, Any], dtype: Any) -> Any:
        vector = np.zeros(packing.size, dtype=dtype)
        for slot in packing.slots:
            vector[slot.span] = np.asarray(leaves[slot.name]).ravel()
        return vector

    def expose(reached: Any) -> dict[str, Any]:
        parameters, (sm3, _) = reached
        dtype = next(iter(parameters.values())).dtype
        mu = np.concatenate([np.asarray(axis).ravel() for slot in packing.slots for axis in sm3.mu[slot.name]])
        return {"x": flat(parameters, dtype), "m": flat(sm3.nu, dtype), "mu": mu}

    def transform() -> Any:
        return optax.chain(optax.scale_by_sm3(b1=b1, eps=eps), optax.scale(-0.1))

    oracle = optax_run(transform, tree(x), [tree(g) for g in grads], expose)
    ours = {"lr": 0.1, "eps": 0.0, "root_eps": eps, "beta1": b1}
    agree(backend, client_run("sm3", x, grads, ours, {"packing": packing, "beta1": b1}), oracle)


def test_client_sm3_is_optaxs_by_its_own_name() -> None:
    """The named optimizer (eps 1e-8), so that a change of optax's defaults is noticed."""
    packing = ff.Packing.from_shapes({"w": (8, 16)})  # no gap: the vector is the matrix
    x, grads = normal(1, 128), [normal(2 + step, 128) for step in range(4)]
    oracle = optax_run(
        lambda: optax.sm3(0.1, momentum=0.6),
        x.view(8, 16).numpy(),
        [g.view(8, 16).numpy() for g in grads],
        lambda reached: {"x": reached[0].ravel()},
    )
    options = {"lr": 0.1, "eps": 0.0, "root_eps": 1e-8, "beta1": 0.6}
    agree("reference", client_run("sm3", x, grads, options, {"packing": packing, "beta1": 0.6}), oracle)
