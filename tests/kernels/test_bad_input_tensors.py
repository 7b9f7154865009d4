"""Bad input is refused at the door: tensors of a wrong kind, and tensors that overlap.

The checks stand in front of every backend, so most of these tests run on whichever backend a call would get.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fastfed as ff
from fastfed import kernels

from .bad_input import (
    CLIENTS,
    PACKING,
    SPOILED,
    D,
    aggregate,
    client,
    covered,
    refuses,
    refuses_overlap,
    server,
    vector,
)


def test_the_arguments_that_the_tests_spoil_are_accepted(backend: str) -> None:
    kernels.server_step(*server(), lr=0.1, backend=backend)
    kernels.client_step(*client(), lr=0.1, backend=backend)
    kernels.client_step(*client(clients=CLIENTS), lr=0.1, backend=backend)
    kernels.client_step(*covered(), lr=0.1, backend=backend)
    kernels.aggregate_step(*aggregate(), lr=0.1, backend=backend)


@pytest.mark.parametrize("how", SPOILED)
@pytest.mark.parametrize("position", [1, 2], ids=["x", "delta"])
def test_server_step_refuses_tensors(position: int, how: str) -> None:
    arguments = list(server())
    arguments[position] = SPOILED[how](arguments[position])
    elsewhere = {("x", "short"), ("x", "long"), ("x", "another device")}  # then the delta does not fit x
    name = ("x", "delta")[position - 1]
    refuses("delta" if (name, how) in elsewhere else name, kernels.server_step, *arguments, lr=0.1)


@pytest.mark.parametrize("how", SPOILED)
@pytest.mark.parametrize("position", [1, 2], ids=["x", "grad"])
@pytest.mark.parametrize("make", [client, lambda: client(clients=CLIENTS), covered], ids=["one", "batch", "sm3"])
def test_client_step_refuses_tensors(make: Callable[[], Any], position: int, how: str) -> None:
    arguments = list(make())
    arguments[position] = SPOILED[how](arguments[position])
    elsewhere = {("x", "short"), ("x", "long"), ("x", "another device")}  # then the gradient does not fit x
    name = ("x", "grad")[position - 1]
    refuses("grad" if (name, how) in elsewhere else name, kernels.client_step, *arguments, lr=0.1)


@pytest.mark.parametrize("how", SPOILED)
@pytest.mark.parametrize("position", [1, 2, 3], ids=["x", "deltas", "weights"])
def test_aggregate_step_refuses_tensors(position: int, how: str) -> None:
    arguments = list(aggregate())
    arguments[position] = SPOILED[how](arguments[position])
    elsewhere = {("x", "short"), ("x", "long"), ("x", "another device")}
    name = ("x", "deltas", "weights")[position - 1]
    refuses("deltas" if (name, how) in elsewhere else name, kernels.aggregate_step, *arguments, lr=0.1)


@pytest.mark.parametrize("how", SPOILED)
@pytest.mark.parametrize("moment", ["m", "v"])
@pytest.mark.parametrize("op", ["server_step", "client_step"])
def test_state_vectors_are_checked(op: str, moment: str, how: str) -> None:
    arguments = server() if op == "server_step" else client()
    arguments[3][moment] = SPOILED[how](arguments[3][moment])
    refuses("state", getattr(kernels, op), *arguments, lr=0.1, says=moment)


@pytest.mark.parametrize("how", SPOILED)
@pytest.mark.parametrize(("rule", "scalar"), [("adam", "step"), ("adam", "refreshes"), ("delta_sgd", "theta")])
def test_state_counters_are_checked(rule: str, scalar: str, how: str) -> None:
    """One number per client: shape, dtype and device matter as much as those of vectors."""
    if how == "short":
        pytest.skip("a number cannot be shortened")
    arguments = client(rule)
    good = arguments[3][scalar]
    spoilers = {
        "int": lambda t: t.to(torch.int32),
        "long": lambda t: t.repeat(2),
        "strided": lambda t: t.to(torch.float32),
        "in a graph": lambda t: t.to(torch.float64).requires_grad_() if scalar == "theta" else t.to(torch.float64),
    }
    arguments[3][scalar] = spoilers.get(how, SPOILED[how])(good)
    refuses("state", kernels.client_step, *arguments, lr=0.1, says=scalar)


@pytest.mark.parametrize("how", SPOILED)
def test_sm3s_axis_vectors_are_checked(how: str) -> None:
    arguments = covered()
    arguments[3]["mu"] = SPOILED[how](arguments[3]["mu"])
    refuses("state", kernels.client_step, *arguments, lr=0.1, says="mu")


@pytest.mark.parametrize("other", [{"w": (4, 4)}, {"w": (4, 4), "b": (5,), "c": (40,)}], ids=["smaller", "larger"])
def test_sm3s_state_of_another_model_is_refused(other: dict[str, tuple[int, ...]]) -> None:
    """Its per-axis vectors fit its own cover, so only the size of what it covers can tell."""
    _, x, grad, _ = covered()
    packing = ff.Packing.from_shapes(other)
    state = kernels.client_state("sm3", packing.zeros(), packing=packing)
    assert packing.size != PACKING.size
    refuses("state", kernels.client_step, "sm3", x, grad, state, lr=0.1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_models_and_gradients_are_not_half_width(dtype: torch.dtype) -> None:
    rule, x, delta, state = server()
    refuses("x", kernels.server_step, rule, x.to(dtype), delta, state, lr=0.1)
    refuses("state", kernels.server_step, rule, x, delta, {**state, "m": state["m"].to(dtype)}, lr=0.1)
    rule, x, grad, state = client()
    refuses("grad", kernels.client_step, rule, x, grad.to(dtype), state, lr=0.1)
    x = vector(dtype=torch.float64)
    refuses("delta", kernels.server_step, "sgd", x, delta.to(dtype), {})


def test_empty_tensors_are_refused() -> None:
    empty = torch.empty(0)
    refuses("x", kernels.server_state, "adam", empty)
    refuses("x", kernels.client_state, "adam", torch.empty(0, 5))
    refuses("x", kernels.norms, empty)
    refuses("deltas", kernels.weighted_sum, torch.empty(0, 3), torch.empty(0))
    refuses("deltas", kernels.trimmed_mean, torch.empty(0, 3), 0)
    refuses("deltas", kernels.trimmed_mean, torch.empty(3, 0), 0)


# ---- overlaps -------------------------------------------------------------------------------------------------------


def test_overlapping_tensors_are_refused() -> None:
    rule, x, _, state = server()
    refuses_overlap("x", "delta", kernels.server_step, rule, x, x, state, lr=0.1)
    buffer = vector(2 * D)
    refuses_overlap("x", "delta", kernels.server_step, rule, buffer[:D], buffer[D - 1 : 2 * D - 1], state, lr=0.1)
    refuses_overlap("x", "delta", kernels.server_step, rule, buffer[4 : D + 4], buffer[:D], state, lr=0.1)
    kernels.server_step(rule, buffer[:D], buffer[D:], state, lr=0.1)  # neighbours are no overlap


@pytest.mark.parametrize("moment", ["m", "v"])
@pytest.mark.parametrize("partly", [False, True])
def test_state_overlapping_x_is_refused(moment: str, partly: bool) -> None:
    buffer = vector(2 * D).abs()
    shared = buffer[D // 2 : D // 2 + D] if partly else buffer[:D]
    for op in (kernels.server_step, kernels.client_step):
        rule, _, other, state = server() if op is kernels.server_step else client()
        spoiled = {**state, moment: shared}
        refuses_overlap("x", f"state['{moment}']", op, rule, buffer[:D], other, spoiled, lr=0.1)


def test_two_moments_in_one_memory_are_refused() -> None:
    rule, x, delta, state = server()
    refuses("state", kernels.server_step, rule, x, delta, {**state, "v": state["m"]}, lr=0.1, says="overlaps")


def test_sm3s_axis_vectors_overlapping_x_are_refused() -> None:
    rule, x, grad, state = covered()
    spoiled = {**state, "mu": x[: state["mu"].numel()]}
    refuses_overlap("x", "state['mu']", kernels.client_step, rule, x, grad, spoiled, lr=0.1)


@pytest.mark.parametrize("name", ["anchor", "correction", "previous_grad"])
def test_what_is_read_must_not_be_written(name: str) -> None:
    rule = "delta_sgd" if name == "previous_grad" else "sgd"
    rule, x, grad, state = client(rule, **({"same_batch": True} if name == "previous_grad" else {}))
    options = {"lr": 0.1, "prox": 0.1} if name == "anchor" else {"lr": 0.1}
    refuses_overlap("x", name, kernels.client_step, rule, x, grad, state, **options, **{name: x})


def test_reading_one_memory_twice_is_fine() -> None:
    rule, x, grad, state = client()
    kernels.client_step(rule, x, grad, state, lr=0.1, correction=grad)


def test_aggregate_step_refuses_overlaps() -> None:
    rule, _, deltas, weights, state = aggregate()
    refuses_overlap("x", "deltas", kernels.aggregate_step, rule, deltas[0], deltas, weights, state, lr=0.1)
    x = vector()
    refuses_overlap("x", "weights", kernels.aggregate_step, rule, x, deltas, x[:CLIENTS], state, lr=0.1)
