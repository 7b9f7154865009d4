"""Runs of a backend held against an oracle.

An oracle runs in float32 and in float64 on the same numbers. A backend may err from the float64 run by twice what the
oracle's float32 run does (``support.py``); where it computes in float64 itself, the two agree to rounding.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastfed import kernels

from . import literal
from .support import assert_runs_close, normal

D = 261  # odd; long enough for a vector loop and its remainder, short enough for loops in Python
SM3_RULES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # rule: form, our options, the loop's
    "sm3": ("II", {"eps": 1e-3}, {"eps": 1e-3}),
    "sm3_1": ("I", {"eps": 1e-3}, {"eps": 1e-3}),
    "sm3_adam": ("II", {"eps": 1e-3, "beta1": 0.8, "beta2": 0.9}, {"eps": 1e-3, "betas": (0.8, 0.9)}),
    "sm3_1_adam": ("I", {"eps": 1e-3, "beta1": 0.8, "beta2": 0.9}, {"eps": 1e-3, "betas": (0.8, 0.9)}),
}
FLOAT64_BACKENDS = ("reference", "cpp")
NUMPY = {torch.float32: np.float32, torch.float64: np.float64}
Snapshots = list[dict[str, Tensor]]
Run = Callable[[torch.dtype], Snapshots]


def agree(backend: str, run: Callable[[str, torch.dtype], Snapshots], oracle: Run) -> Snapshots:
    """Holds every tensor that the oracle exposes against the backend's, after every step; the float64 oracle."""
    plain, exact = oracle(torch.float32), oracle(torch.float64)
    exposed = [{name: t for name, t in shot.items() if name != "binds"} for shot in exact]
    assert_runs_close(run(backend, torch.float32), plain, exposed, exact[0]["x"])
    if backend in FLOAT64_BACKENDS:
        for g, e in zip(run(backend, torch.float64), exposed, strict=True):
            for name in e:
                torch.testing.assert_close(g[name], e[name], rtol=1e-11, atol=1e-13)
    return exact


def seed_of(name: str) -> int:
    return zlib.crc32(name.encode())


def gradients(name: str, steps: int, d: int = D) -> list[Tensor]:
    """Float32 gradients of very different size from one coordinate to the next."""
    scale = torch.exp(normal(seed_of(name) + 1, d))
    return [normal(seed_of(name) + 2 + step, d) * scale for step in range(steps)]


def start(name: str, dtype: torch.dtype, d: int = D) -> Tensor:
    return normal(seed_of(name), d, dtype=dtype)


def snapshot(x: Tensor, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"x": x.clone(), **{name: tensor.clone() for name, tensor in state.items()}}


def tensors(snapshots: literal.Snapshots) -> Snapshots:
    return [{name: torch.as_tensor(value) for name, value in shot.items()} for shot in snapshots]


def arrays(vectors: list[Tensor], dtype: torch.dtype) -> list[Any]:
    return [vector.numpy().astype(NUMPY[dtype]) for vector in vectors]


def client_run(
    rule: str,
    x0: Tensor,
    grads: list[Tensor],
    options: dict[str, Any],
    made: dict[str, Any] | None = None,
    each: Callable[[int, torch.dtype], dict[str, Any]] | None = None,
) -> Callable[[str, torch.dtype], Snapshots]:
    """A run of `client_step`; `each` gives the arguments that change from step to step."""

    def run(backend: str, dtype: torch.dtype) -> Snapshots:
        x = x0.to(dtype)
        x = x.clone() if x is x0 else x
        state = kernels.client_state(rule, x, **(made or {}))
        shots = []
        for step, g in enumerate(grads):
            given = options if each is None else {**options, **each(step, dtype)}
            kernels.client_step(rule, x, g.to(dtype), state, backend=backend, **given)
            shots.append(snapshot(x, state))
        return shots

    return run


def server_run(
    rule: str,
    x0: Tensor,
    deltas: list[Tensor],
    options: dict[str, Any],
    made: dict[str, Any],
    each: Callable[[int], dict[str, Any]] | None = None,
    prepare: Callable[[dict[str, Tensor]], None] | None = None,
) -> Callable[[str, torch.dtype], Snapshots]:
    """A run of `server_step`; `prepare` changes the state before the first."""

    def run(backend: str, dtype: torch.dtype) -> Snapshots:
        x = x0.to(dtype)
        x = x.clone() if x is x0 else x
        state = kernels.server_state(rule, x, **made)
        if prepare is not None:
            prepare(state)
        shots = []
        for step, delta in enumerate(deltas):
            given = options if each is None else {**options, **each(step)}
            kernels.server_step(rule, x, delta.to(dtype), state, backend=backend, **given)
            shots.append(snapshot(x, state))
        return shots

    return run


TINY_STEPS = (2, 3)  # counted from 0: not the first, where every coordinate of adagrad moves by lr


def tiny_now_and_then(*sequences: list[Tensor]) -> list[list[Tensor]]:
    """The same vectors, shrunk at a few steps so far that an update floor must take them away."""
    return [[v * 1e-4 if step in TINY_STEPS else v for step, v in enumerate(vectors)] for vectors in sequences]


def assert_floored_sometimes(x0: Tensor, exact: Snapshots) -> None:
    before = x0.double()
    moved = []
    for shot in exact:
        moved.append(not torch.equal(shot["x"], before))
        before = shot["x"]
    assert any(moved), "the floor took every step away"
    assert not all(moved), "the floor took no step away"
