"""Server and client steps with anything that hypothesis thinks of, against the reference in float64."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fastfed as ff
from fastfed import kernels

from .support import (
    SLOW,
    SM3,
    Snapshot,
    assert_runs_close,
    axis_sets,
    inside,
    normal,
    packed_normal,
    snapshot,
)

EXAMPLES = 8 if SLOW else 25
QUICK = settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None)
SEEDS = st.integers(0, 2**31)
LENGTHS = st.integers(1, 300 if SLOW else 3000)


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, tuple[int, ...]]:
    """Up to four tensors of rank 0 to 4."""
    several = st.lists(st.lists(st.integers(1, 7), max_size=4).map(tuple), min_size=1, max_size=4)
    return {f"t{number}": shape for number, shape in enumerate(draw(several))}


@st.composite
def server_options(draw: st.DrawFn) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """A rule, options of its step, options of its state."""
    rule = draw(st.sampled_from(sorted(kernels.SERVER_RULES)))
    options: dict[str, Any] = {"lr": draw(st.floats(1e-4, 1.0))}
    made: dict[str, Any] = {}
    known = kernels.SERVER_RULES[rule].options
    if "momentum" in known:
        options["momentum"] = draw(st.floats(0, 0.99))
    if "beta1" in known:
        made["beta1"] = options["beta1"] = draw(st.one_of(st.just(0.0), st.floats(0, 0.99)))
        made["tau"] = options["tau"] = draw(st.floats(1e-3, 0.1))
        options["second_moment_of"] = draw(st.sampled_from(["momentum", "delta"]))
        made["eps"] = options["eps"] = draw(st.sampled_from(["authors", "torch"]))
        if draw(st.booleans()):
            made["v0"] = draw(st.floats(0, 2.0))
    if "beta2" in known:
        options["beta2"] = draw(st.floats(0, 0.999))
        made["bias_correction"] = options["bias_correction"] = draw(st.booleans())
    return rule, options, made


@st.composite
def client_options(draw: st.DrawFn) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """A rule, options of its step, options of its state."""
    rule = draw(st.sampled_from(sorted(kernels.CLIENT_RULES)))
    entry = kernels.CLIENT_RULES[rule]
    options: dict[str, Any] = {}
    made: dict[str, Any] = {}
    ranges = {
        "lr": (1e-3, 0.5),
        "momentum": (0, 0.99),
        "beta1": (0, 0.99),
        "beta2": (0, 0.999),
        "eps": (1e-3, 0.1),
        "gamma": (0.5, 3.0),
        "delta": (0, 0.5),
        "theta": (0.1, 2.0),
        "c": (0.1, 2.0),
        "lr_max": (0.01, 1.0),
        "weight_decay": (0, 0.1),
        "prox": (1e-3, 0.5),
        "clip": (0.1, 30.0),
    }
    required = {"lr", "eps", "beta1"} & entry.options.keys()
    for name in ranges.keys() & entry.options.keys():
        if name in required or draw(st.booleans()):
            options[name] = draw(st.floats(*ranges[name]))
    if "delay" in entry.options:
        options["delay"] = draw(st.integers(1, 4))
    if entry.cover is not None and entry.formula == "adagrad":
        made["beta1"] = options["beta1"]
    if entry.cover == "II" and draw(st.booleans()):
        made["delay_mode"] = "exact"
    return rule, options, made


@given(chosen=server_options(), d=LENGTHS, clients=st.one_of(st.none(), st.integers(1, 9)), seed=SEEDS)
@QUICK
def test_any_server_step(
    backend: str, chosen: tuple[str, dict[str, Any], dict[str, Any]], d: int, clients: int | None, seed: int
) -> None:
    rule, options, made = chosen
    x0 = normal(seed, d)

    def run(backend: str, dtype: torch.dtype) -> list[Snapshot]:
        x = x0.to(dtype, copy=True)
        state, shots = kernels.server_state(rule, x, **made), []
        for step in range(3):
            deltas = normal(seed + 1 + step, clients or 1, d, dtype=dtype)
            if clients is None:
                kernels.server_step(rule, x, deltas[0], state, backend=backend, **options)
            else:
                weights = normal(seed + 10 + step, clients, dtype=dtype) / clients
                kernels.aggregate_step(rule, x, deltas, weights, state, backend=backend, **options)
            shots.append(snapshot(x, state))
        return shots

    plain, exact = run("reference", torch.float32), run("reference", torch.float64)
    assert_runs_close(run(backend, torch.float32), plain, exact, x0)


@given(
    chosen=client_options(), d=LENGTHS, tensors=shapes(), clients=st.one_of(st.none(), st.integers(1, 5)), seed=SEEDS
)
@QUICK
def test_any_client_step(
    backend: str,
    chosen: tuple[str, dict[str, Any], dict[str, Any]],
    d: int,
    tensors: dict[str, tuple[int, ...]],
    clients: int | None,
    seed: int,
) -> None:
    rule, options, made = chosen
    packing = ff.Packing.from_shapes(tensors) if rule in SM3 else None
    if packing is not None:
        made = {**made, "packing": packing}
    lead = () if clients is None else (clients,)

    def vectors(seed: int, dtype: torch.dtype) -> Tensor:
        if packing is None:
            return normal(seed, *lead, d, dtype=dtype)
        return packed_normal(packing, seed, *lead, dtype=dtype)

    def run(backend: str, dtype: torch.dtype) -> list[Snapshot]:
        x = vectors(seed, dtype)
        state, shots = kernels.client_state(rule, x, **made), []
        for step in range(4):
            given = dict(options)
            if "prox" in given:
                given["anchor"] = vectors(seed + 50, dtype)
            if seed % 2:
                given["correction"] = vectors(seed + 60 + step, dtype)
            if seed % 3 == 0 and clients is not None:
                given["finished"] = torch.arange(clients) % 3 == step % 3
            if rule == "sps":
                given["loss"] = normal(seed + 70 + step, *lead, dtype=dtype).abs() * 100
            kernels.client_step(rule, x, vectors(seed + 1 + step, dtype), state, backend=backend, **given)
            shots.append(snapshot(x, state))
        return shots

    plain, exact = run("reference", torch.float32), run("reference", torch.float64)
    assert_runs_close(run(backend, torch.float32), plain, exact, vectors(seed, torch.float32))


@given(tensors=shapes(), seed=SEEDS, rule=st.sampled_from(SM3), delay=st.integers(1, 3))
@QUICK
def test_any_packed_shapes_match_their_sets(
    tensors: dict[str, tuple[int, ...]], seed: int, rule: str, delay: int
) -> None:
    """The axes of packed tensors are one explicit cover among others: the reference knows both."""
    packing = ff.Packing.from_shapes(tensors)
    within = inside(packing)
    place = torch.full((packing.size,), -1)
    place[within] = torch.arange(int(within.sum()))
    sets = [place[members].tolist() for members in axis_sets(packing)]
    x = packed_normal(packing, seed, dtype=torch.float64)
    y = x[within].clone()
    by_axis, by_set = kernels.client_state(rule, x, packing=packing), kernels.client_state(rule, y, cover=sets)
    for step in range(4):
        grad = packed_normal(packing, seed + 1 + step, dtype=torch.float64)
        kernels.client_step(rule, x, grad, by_axis, lr=0.1, delay=delay, backend="reference")
        kernels.client_step(rule, y, grad[within].clone(), by_set, lr=0.1, delay=delay, backend="reference")
    torch.testing.assert_close(x[within], y, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(by_axis["mu"], by_set["mu"], rtol=1e-12, atol=1e-14)
    assert not x[~within].any()
