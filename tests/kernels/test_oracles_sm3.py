"""SM3 over any cover, against the literal loops of ``literal.py``."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fastfed as ff

from . import literal
from .oracles import (
    SM3_RULES,
    Run,
    Snapshots,
    agree,
    arrays,
    assert_floored_sometimes,
    client_run,
    gradients,
    seed_of,
    start,
    tensors,
    tiny_now_and_then,
)
from .support import RANKS, SLOW, axis_sets, normal, packed_normal

SM3_STEPS = 5 if SLOW else 7  # two refreshes at least, with a delay of 3


DELAYS = [(1, False), (3, False), (1, True), (3, True)]


def sm3_oracle(x: Tensor, grads: list[Tensor], sets: list[list[int]], **options: Any) -> Run:
    def run(dtype: torch.dtype) -> Snapshots:
        given = dict(options)
        if "anchor" in given:
            given["anchor"] = arrays([given["anchor"]], dtype)[0]
        if "corrections" in given:
            given["corrections"] = arrays(given["corrections"], dtype)
        return tensors(literal.sm3(arrays([x], dtype)[0], arrays(grads, dtype), sets, **given))

    return run


def random_cover(seed: int, d: int, sets: int) -> list[list[int]]:
    """Overlapping sets of random size, in random order; what they miss comes as one more set."""
    draw = np.random.default_rng(seed)
    cover = [draw.choice(d, size=draw.integers(1, d // 2), replace=False).tolist() for _ in range(sets)]
    missed = sorted(set(range(d)) - {j for members in cover for j in members})
    return [*cover, missed] if missed else cover


@pytest.mark.parametrize("rule", SM3_RULES)
@pytest.mark.parametrize(("delay", "exact"), DELAYS)
@pytest.mark.parametrize(("d", "count"), [(1, 1), (23, 3), (40, 15)])
def test_sm3_over_arbitrary_covers(rule: str, delay: int, exact: bool, d: int, count: int) -> None:
    form, ours, theirs = SM3_RULES[rule]
    if exact and form == "I":
        pytest.skip("SM3-I needs no nu: its cover stands still between refreshes")
    name = f"{rule} {delay} {d}"
    cover = random_cover(seed_of(name), d, count) if d > 1 else [[0]]
    x, grads = start(name, torch.float32, d), gradients(name, 7, d)
    made = {"cover": cover, **({"delay_mode": "exact"} if exact else {})}
    oracle = sm3_oracle(x, grads, cover, lr=0.1, form=form, delay=delay, exact=exact, **theirs)
    agree("reference", client_run(rule, x, grads, {"lr": 0.1, "delay": delay, **ours}, made), oracle)


@pytest.mark.parametrize("rule", ["sm3", "sm3_1_adam"])
def test_sm3_starts_a_set_at_the_largest_v0_inside(rule: str) -> None:
    form, ours, theirs = SM3_RULES[rule]
    d, name = 30, f"v0 {rule}"
    cover, v0 = random_cover(seed_of(name), d, 6), normal(3, d).square()
    x, grads = start(name, torch.float32, d), gradients(name, 4, d)

    def run(backend: str, dtype: torch.dtype) -> Snapshots:
        made = {"cover": cover, "v0": v0.to(dtype)}
        return client_run(rule, x, grads, {"lr": 0.1, **ours}, made)(backend, dtype)

    oracle = sm3_oracle(x, grads, cover, lr=0.1, form=form, v0=v0.numpy(), **theirs)
    agree("reference", run, oracle)


@pytest.mark.parametrize("rule", SM3_RULES)
@pytest.mark.parametrize(("delay", "exact"), DELAYS)
def test_sm3_over_the_axes_of_packed_tensors(backend: str, rule: str, delay: int, exact: bool) -> None:
    form, ours, theirs = SM3_RULES[rule]
    if exact and form == "I":
        pytest.skip("SM3-I needs no nu: its cover stands still between refreshes")
    packing = ff.Packing.from_shapes(RANKS)
    seed = seed_of(f"axes {rule} {delay}")
    x = packed_normal(packing, seed)
    grads = [packed_normal(packing, seed + 1 + step) for step in range(SM3_STEPS)]
    made = {"packing": packing, **({"delay_mode": "exact"} if exact else {})}
    oracle = sm3_oracle(x, grads, axis_sets(packing), lr=0.1, form=form, delay=delay, exact=exact, **theirs)
    agree(backend, client_run(rule, x, grads, {"lr": 0.1, "delay": delay, **ours}, made), oracle)


@pytest.mark.parametrize("rule", SM3_RULES)
def test_sm3_with_corrections_and_floor(backend: str, rule: str) -> None:
    form, ours, theirs = SM3_RULES[rule]
    packing = ff.Packing.from_shapes(RANKS)
    seed = seed_of(f"around {rule}")
    x, anchor = packed_normal(packing, seed), packed_normal(packing, seed + 1)
    grads, corrections = tiny_now_and_then(
        [packed_normal(packing, seed + 2 + step) for step in range(6)],
        [packed_normal(packing, seed + 20 + step) * 0.1 for step in range(6)],
    )
    # No decay and no pull: a tiny gradient must stay tiny. The floor lies between tiny and usual directions.
    shared = {"lr": 0.1, "clip": 3.0, "floor": 1.0}
    if "betas" in theirs:  # a first moment that forgets quickly, or the floor would have nothing to take away
        ours, theirs = {**ours, "beta1": 0.2}, {**theirs, "betas": (0.2, theirs["betas"][1])}
    oracle = sm3_oracle(x, grads, axis_sets(packing), form=form, corrections=corrections, **shared, **theirs)

    def each(step: int, dtype: torch.dtype) -> dict[str, Any]:
        return {"correction": corrections[step].to(dtype)}

    exact = agree(backend, client_run(rule, x, grads, {**shared, **ours}, {"packing": packing}, each), oracle)
    assert_floored_sometimes(x, exact)

    pulled = {"lr": 0.1, "clip": 3.0, "prox": 0.3, "weight_decay": 0.05}
    oracle = sm3_oracle(x, grads, axis_sets(packing), form=form, anchor=anchor, **pulled, **theirs)
    run = client_run(
        rule, x, grads, {**pulled, **ours}, {"packing": packing}, lambda _, dtype: {"anchor": anchor.to(dtype)}
    )
    agree(backend, run, oracle)


# About the widths at which loops change.
NARROW = [(2, 1), (5, 2), (1200, 7), (257, 13), (700, 31), (300, 32), (90, 33)]


@pytest.mark.backend
@pytest.mark.parametrize("rule", SM3_RULES)
@pytest.mark.parametrize(
    "shape", [*NARROW[:2], (40, 7)] if SLOW else NARROW, ids=lambda shape: "x".join(map(str, shape))
)
def test_a_matrix_and_its_transpose_have_the_same_bits(backend: str, rule: str, shape: tuple[int, int]) -> None:
    """SM3 does not know rows from columns. The one is a matrix of many short rows, the other of few long ones, which
    loops work differently; with a given gradient and with one that is corrected, with and without stored moments."""
    dtypes = (torch.float32, torch.float64) if backend in ("reference", "cpp") else (torch.float32,)
    for dtype, options in itertools.product(dtypes, ({}, {"weight_decay": 0.1}, {"delay": 2})):
        kept = {"delay_mode": "exact"} if "delay" in options and "sm3_1" not in rule else {}
        upright, mu = _stepped(backend, rule, shape, False, dtype, kept, options)
        lying, swapped = _stepped(backend, rule, shape, True, dtype, kept, options)
        assert torch.equal(upright, lying.T)
        assert torch.equal(mu, torch.cat([swapped[shape[1] :], swapped[: shape[1]]]))


def _stepped(
    backend: str, rule: str, shape: tuple[int, int], lying: bool, dtype: torch.dtype, kept: Any, options: Any
) -> tuple[Tensor, Tensor]:
    """A matrix of this shape, or its transpose, after three steps, and its mu."""
    sizes = shape[::-1] if lying else shape
    packing = ff.Packing.from_shapes({"w": sizes})
    x = torch.zeros(packing.size, dtype=dtype)
    state = ff.kernels.client_state(rule, x, packing=packing, **kept)
    for step in range(3):
        gradient, packed = normal(step, *shape, dtype=dtype), torch.zeros_like(x)
        packed[packing.slots[0].span] = (gradient.T if lying else gradient).flatten()
        ff.kernels.client_step(rule, x, packed, state, lr=0.1, backend=backend, **options)
    return x[packing.slots[0].span].view(sizes), state["mu"]
