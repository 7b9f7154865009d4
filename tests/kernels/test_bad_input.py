"""Bad input is refused at the door: the error begins with the argument's name, and nothing was modified.

The checks stand in front of every backend, so most of these tests run on whichever backend a call would get.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import fastfed as ff
from fastfed import kernels
from fastfed.kernels import registry

from .support import bits, packed_normal

D = 24
CLIENTS = 3
REFUSALS = (ValueError, TypeError, kernels.BackendUnavailable)


def every_tensor(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from every_tensor(item)


def refuses(argument: str, op: Callable[..., Any], *given: Any, says: str = "", **named: Any) -> None:
    """`op` raises an error that begins with `argument` (and contains `says`); every tensor it was given keeps its bits,
    and no name is added to or taken from a state."""
    tensors = [t for value in (*given, *named.values()) for t in every_tensor(value)]
    kept = [(t, bits(t).clone(), t.requires_grad) for t in tensors if t.device.type == "cpu"]
    states = [(value, set(value)) for value in given if isinstance(value, dict)]
    with pytest.raises(REFUSALS) as caught:
        op(*given, **named)
    message = str(caught.value)
    assert re.match(rf"{re.escape(argument)}(\[.*?\])?: ", message), f"does not begin with {argument!r}: {message}"
    assert says in message, f"does not say {says!r}: {message}"
    for tensor, before, needs_grad in kept:
        assert torch.equal(bits(tensor), before), f"{argument} was refused, but a tensor was modified"
        assert tensor.requires_grad == needs_grad
    for state, names in states:
        assert set(state) == names


def vector(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.linspace(-1, 1, math.prod(shape or (D,))).reshape(shape or (D,)).to(dtype)


def server(rule: str = "adam", **made: Any) -> tuple[str, Tensor, Tensor, dict[str, Tensor]]:
    """Arguments of a `server_step` that would be accepted."""
    x = vector()
    return rule, x, vector() * 0.1, kernels.server_state(rule, x, **made)


def client(
    rule: str = "adam", clients: int | None = None, **made: Any
) -> tuple[str, Tensor, Tensor, dict[str, Tensor]]:
    """Arguments of a `client_step` that would be accepted."""
    x = vector(D) if clients is None else vector(clients, D)
    return rule, x, x * 0.1, kernels.client_state(rule, x, **made)


PACKING = ff.Packing.from_shapes({"w": (4, 4), "b": (5,)})


def covered(rule: str = "sm3", **made: Any) -> tuple[str, Tensor, Tensor, dict[str, Tensor]]:
    x = packed_normal(PACKING, 0)
    return rule, x, packed_normal(PACKING, 1), kernels.client_state(rule, x, packing=PACKING, **made)


def aggregate(rule: str = "adam") -> tuple[str, Tensor, Tensor, Tensor, dict[str, Tensor]]:
    x = vector()
    return rule, x, vector(CLIENTS, D), torch.tensor([0.2, 0.5, 0.3]), kernels.server_state(rule, x)


def test_the_arguments_that_the_tests_spoil_are_accepted(backend: str) -> None:
    kernels.server_step(*server(), lr=0.1, backend=backend)
    kernels.client_step(*client(), lr=0.1, backend=backend)
    kernels.client_step(*client(clients=CLIENTS), lr=0.1, backend=backend)
    kernels.client_step(*covered(), lr=0.1, backend=backend)
    kernels.aggregate_step(*aggregate(), lr=0.1, backend=backend)


# ---- tensors --------------------------------------------------------------------------------------------------------

SPOILED: dict[str, Callable[[Tensor], Any]] = {
    "int": lambda t: t.to(torch.int64),
    "complex": lambda t: t.to(torch.complex64),
    "short": lambda t: t[..., :-1].contiguous(),
    "long": lambda t: torch.cat([t, t], dim=-1),
    "an axis too many": lambda t: t[None, None].contiguous(),
    "another device": lambda t: t.to("meta"),
    "strided": lambda t: torch.stack([t, t], dim=-1)[..., 0],
    "in a graph": lambda t: t.clone().requires_grad_(),
    "a list": lambda t: t.tolist(),
    "nothing": lambda t: None,
}


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


def refuses_overlap(one: str, other: str, op: Callable[..., Any], *given: Any, **named: Any) -> None:
    """The error names both tensors, either of them first."""
    try:
        refuses(one, op, *given, **named, says=f"overlaps {other}")
    except AssertionError:
        refuses(other, op, *given, **named, says=f"overlaps {one}")


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


# ---- numbers --------------------------------------------------------------------------------------------------------

NOT_FINITE = [math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("lr", [*NOT_FINITE, -0.1, "0.1", True, [0.1], None])
@pytest.mark.parametrize("op", ["server_step", "client_step", "aggregate_step"])
def test_learning_rates(op: str, lr: Any) -> None:
    arguments = {"server_step": server, "client_step": client, "aggregate_step": aggregate}[op]()
    refuses("lr", getattr(kernels, op), *arguments, lr=lr)


@pytest.mark.parametrize("lr", [*NOT_FINITE, -0.1])
def test_learning_rates_per_client(lr: float) -> None:
    refuses("lr", kernels.client_step, *client(clients=CLIENTS), lr=torch.tensor([0.1, lr, 0.1]))


@pytest.mark.parametrize("beta", [-0.1, 1.0, 1.5, math.nan, "0.9"])
@pytest.mark.parametrize("name", ["beta1", "beta2"])
def test_betas(name: str, beta: Any) -> None:
    refuses(name, kernels.server_step, *server(), lr=0.1, **{name: beta})
    refuses(name, kernels.client_step, *client(), lr=0.1, **{name: beta})
    if name == "beta1":
        refuses(name, kernels.server_state, "adam", vector(), beta1=beta)
        x = packed_normal(PACKING, 0)
        refuses(name, kernels.client_state, "sm3", x, packing=PACKING, beta1=beta)


@pytest.mark.parametrize("momentum", [-0.1, 1.0, math.nan])
def test_momentum(momentum: float) -> None:
    refuses("momentum", kernels.server_step, *server("momentum"), lr=0.1, momentum=momentum)
    refuses("momentum", kernels.client_step, *client("momentum"), lr=0.1, momentum=momentum)


@pytest.mark.parametrize("tau", [0.0, -1e-3, *NOT_FINITE, "1e-3"])
def test_tau(tau: Any) -> None:
    refuses("tau", kernels.server_step, *server(), lr=0.1, tau=tau)
    refuses("tau", kernels.aggregate_step, *aggregate(), lr=0.1, tau=tau)
    refuses("tau", kernels.server_state, "adam", vector(), tau=tau)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_starts_of_second_moments(value: float) -> None:
    refuses("v0", kernels.server_state, "adam", vector(), v0=value)
    refuses("vmax0", kernels.server_state, "ams", vector(), vmax0=value)
    refuses("v0", kernels.client_state, "adam", vector(), v0=value)


def test_starts_of_second_moments_as_tensors() -> None:
    refuses("v0", kernels.client_state, "adam", vector(), v0=-vector().abs())
    refuses("v0", kernels.client_state, "adam", vector(), v0=torch.full((D,), math.nan))
    refuses("v0", kernels.client_state, "adam", vector(), v0=torch.ones(D - 1))
    refuses("v0", kernels.client_state, "adam", vector(), v0=torch.ones(D, dtype=torch.float64))


@pytest.mark.parametrize(
    ("rule", "name", "values"),
    [
        ("adam", "eps", [0.0, -1.0, math.nan]),
        ("adam", "delay", [0, -1, 1.5, "2"]),
        ("adam", "floor", [-1.0, math.nan]),
        ("adam", "weight_decay", [-1.0, math.inf]),
        ("adam", "prox", [-1.0, math.nan]),
        ("adam", "clip", [0.0, -1.0, math.inf]),
        ("delta_sgd", "lr", [0.0]),
        ("delta_sgd", "gamma", [0.0, math.nan]),
        ("delta_sgd", "delta", [-0.1]),
        ("delta_sgd", "theta", [0.0]),
        ("delta_sgd", "grow_first", ["yes", None]),
        ("delta_sgd", "lr_eps", [-1e-8]),
        ("sps", "c", [0.0, -0.5]),
        ("sps", "f_star", [math.nan]),
        ("sps", "lr_max", [0.0, math.inf]),
    ],
)
def test_options_of_client_rules(rule: str, name: str, values: list[Any]) -> None:
    needed = {"adam": {"lr": 0.1}, "sps": {"loss": 1.0}}.get(rule, {})
    for value in values:
        refuses(name, kernels.client_step, *client(rule), **{**needed, name: value})


def test_a_step_size_per_client_that_cannot_grow_is_refused() -> None:
    """Delta-SGD divides by its last step size: a client that starts at 0 would become NaN."""
    lr = torch.tensor([0.1, 0.0, 0.1])
    refuses("lr", kernels.client_step, *client("delta_sgd", clients=CLIENTS), lr=lr)


@pytest.mark.parametrize(("seen", "name", "value"), [(1, "delay", True), (1, "delay", 1.0), (True, "grow_first", 1)])
def test_an_equal_value_of_another_type_is_refused_even_after_a_good_one(seen: Any, name: str, value: Any) -> None:
    """What was accepted before must not decide what is accepted now."""
    rule, needed = ("adam", {"lr": 0.1}) if name == "delay" else ("delta_sgd", {})
    kernels.client_step(*client(rule), **needed, **{name: seen})
    refuses(name, kernels.client_step, *client(rule), **needed, **{name: value})


def test_sm3_without_any_epsilon() -> None:
    refuses("eps", kernels.client_step, *covered(), lr=0.1, eps=0.0, says="root_eps")


@pytest.mark.parametrize("followed", ["mean", "Delta", None, 1])
def test_second_moment_of(followed: Any) -> None:
    refuses("second_moment_of", kernels.server_step, *server(), lr=0.1, second_moment_of=followed)


# ---- names ----------------------------------------------------------------------------------------------------------


def test_unknown_rules_suggest_the_nearest() -> None:
    _, x, delta, state = server()
    refuses("rule", kernels.server_step, "adan", x, delta, state, lr=0.1, says="Did you mean 'adam'?")
    refuses("rule", kernels.server_state, "yogy", x, says="Did you mean 'yogi'?")
    refuses("rule", kernels.client_step, "sm3_adma", x, delta, state, lr=0.1, says="Did you mean 'sm3_adam'?")
    refuses("rule", kernels.client_state, "delta-sgd", x, says="Did you mean 'delta_sgd'?")
    refuses("rule", kernels.aggregate_step, "zzz", x, vector(2, D), torch.ones(2), state, says="sgd, momentum, adagrad")
    refuses("rule", kernels.server_step, "sm3", x, delta, state, lr=0.1)  # a client rule
    refuses("rule", kernels.client_step, "yogi", x, delta, state, lr=0.1)  # a server rule


def test_unknown_options_suggest_the_nearest() -> None:
    refuses("beta_1", kernels.server_step, *server(), lr=0.1, beta_1=0.9, says="Did you mean 'beta1'?")
    refuses("weight_decai", kernels.client_step, *client(), lr=0.1, weight_decai=0.9, says="'weight_decay'")


@pytest.mark.parametrize(
    ("rule", "option"),
    [
        ("sgd", {"beta1": 0.9}),
        ("sgd", {"tau": 1e-3}),
        ("momentum", {"beta2": 0.9}),
        ("adam", {"momentum": 0.9}),
        ("adagrad", {"beta2": 0.9}),
        ("adagrad", {"bias_correction": True}),
        ("adam", {"v0": 0.1}),
        ("yogi", {"eps": 1e-3}),
    ],
)
def test_options_that_a_server_rule_would_ignore(rule: str, option: dict[str, Any]) -> None:
    refuses(next(iter(option)), kernels.server_step, *server(rule), lr=0.1, **option, says=repr(rule))


@pytest.mark.parametrize(
    ("rule", "option"),
    [
        ("sgd", {"eps": 1e-3}),
        ("sgd", {"momentum": 0.9}),
        ("momentum", {"delay": 2}),
        ("adagrad", {"beta2": 0.9}),
        ("adagrad", {"beta1": 0.9}),
        ("adagrad", {"root_eps": 1e-9}),
        ("adam", {"gamma": 2.0}),
        ("sgd", {"floor": 0.1}),
        ("sps", {"lr": 0.1}),
        ("sps", {"lr": torch.tensor(0.1)}),
        ("delta_sgd", {"c": 0.5}),
        ("delta_sgd", {"delay": 2}),
    ],
)
def test_options_that_a_client_rule_would_ignore(rule: str, option: dict[str, Any]) -> None:
    needed = {"sps": {"loss": 1.0}, "delta_sgd": {}}.get(rule, {"lr": 0.1})
    refuses(next(iter(option)), kernels.client_step, *client(rule), **needed, **option, says=repr(rule))


@pytest.mark.parametrize(
    ("rule", "option"),
    [
        ("sgd", {"tau": 1e-3}),
        ("sgd", {"beta1": 0.9}),
        ("momentum", {"v0": 0.1}),
        ("adam", {"vmax0": 0.1}),
        ("adagrad", {"bias_correction": True}),
    ],
)
def test_options_that_a_servers_state_would_ignore(rule: str, option: dict[str, Any]) -> None:
    refuses(next(iter(option)), kernels.server_state, rule, vector(), **option, says=repr(rule))


@pytest.mark.parametrize(
    ("rule", "option"),
    [
        ("sgd", {"v0": 0.1}),
        ("adam", {"packing": PACKING}),
        ("adagrad", {"cover": [[0]]}),
        ("adam", {"beta1": 0.9}),
        ("adagrad", {"delay_mode": "exact"}),
        ("adam", {"same_batch": True}),
    ],
)
def test_options_that_a_clients_state_would_ignore(rule: str, option: dict[str, Any]) -> None:
    refuses(next(iter(option)), kernels.client_state, rule, vector(), **option, says=repr(rule))


def test_sm3_needs_shapes() -> None:
    x = packed_normal(PACKING, 0)
    refuses("packing", kernels.client_state, "sm3", x)
    refuses("packing", kernels.client_state, "sm3", x, packing=PACKING, cover=[[0]])
    refuses("packing", kernels.client_state, "sm3", vector(), packing=PACKING, says=str(PACKING.size))
    refuses("delay_mode", kernels.client_state, "sm3", x, packing=PACKING, delay_mode="both")
    refuses("delay_mode", kernels.client_state, "sm3_1", x, packing=PACKING, delay_mode="exact")


@pytest.mark.parametrize(
    "cover",
    [[], [[]], [[0, 1]], [list(range(D + 1))], [[-1, *range(D)]]],
    ids=["none", "empty", "gaps", "beyond", "negative"],
)
def test_covers_hold_every_coordinate(cover: list[list[int]]) -> None:
    refuses("cover", kernels.client_state, "sm3", vector(), cover=cover)


# ---- what a rule needs, and what it has no use for ------------------------------------------------------------------


def test_learning_rate_missing() -> None:
    refuses("lr", kernels.server_step, *server(), says="needs it")
    refuses("lr", kernels.client_step, *client(), says="needs it")


def test_loss_missing_and_superfluous() -> None:
    refuses("loss", kernels.client_step, *client("sps"), says="sps")
    refuses("loss", kernels.client_step, *client("sgd"), lr=0.1, loss=1.0, says="'sgd'")
    refuses("loss", kernels.client_step, *client("sps", clients=CLIENTS), loss=torch.ones(CLIENTS + 1))
    refuses("loss", kernels.client_step, *client("sps", clients=CLIENTS), loss=torch.ones(CLIENTS, dtype=torch.int64))


def test_anchor_and_prox_come_together() -> None:
    refuses("anchor", kernels.client_step, *client(), lr=0.1, prox=0.1, says="prox")
    refuses("prox", kernels.client_step, *client(), lr=0.1, anchor=vector(), says="anchor")
    refuses("anchor", kernels.client_step, *client(), lr=0.1, prox=0.1, anchor=vector(D + 1))
    refuses("anchor", kernels.client_step, *client(clients=2), lr=0.1, prox=0.1, anchor=vector(3, D))
    refuses("anchor", kernels.client_step, *client(), lr=0.1, prox=0.1, anchor=vector(D).tolist())


def test_correction() -> None:
    for spoiled in (vector(D + 1), vector(dtype=torch.float64), vector().to("meta"), vector().requires_grad_()):
        refuses("correction", kernels.client_step, *client(), lr=0.1, correction=spoiled)
    refuses("correction", kernels.client_step, *client(clients=2), lr=0.1, correction=vector(3, D))


def test_previous_grad() -> None:
    refuses("previous_grad", kernels.client_step, *client("delta_sgd", same_batch=True), says="same_batch")
    refuses("previous_grad", kernels.client_step, *client("delta_sgd"), previous_grad=vector(), says="same_batch")
    refuses("previous_grad", kernels.client_step, *client("adam"), lr=0.1, previous_grad=vector(), says="'adam'")
    short = vector(D - 1)
    refuses("previous_grad", kernels.client_step, *client("delta_sgd", same_batch=True), previous_grad=short)


def test_epoch() -> None:
    refuses("epoch", kernels.client_step, *client("sgd"), lr=0.1, epoch=1, says="'sgd'")
    refuses("epoch", kernels.client_step, *client(), lr=0.1, delay=2, epoch=1.5)
    refuses("epoch", kernels.client_step, *client(clients=2), lr=0.1, delay=2, epoch=torch.tensor([1, 1, 1]))
    refuses("epoch", kernels.client_step, *client(clients=2), lr=0.1, delay=2, epoch=torch.tensor([1.0, 1.0]))


@pytest.mark.parametrize("epoch", [0, -1])
def test_epochs_count_from_one(epoch: int) -> None:
    refuses("epoch", kernels.client_step, *client(), lr=0.1, delay=2, epoch=epoch)


def test_finished() -> None:
    refuses("finished", kernels.client_step, *client(clients=2), lr=0.1, finished=torch.tensor([True, False, True]))
    refuses("finished", kernels.client_step, *client(clients=2), lr=0.1, finished=torch.tensor([1, 0]))
    refuses(
        "finished", kernels.client_step, *client(clients=2), lr=0.1, finished=torch.tensor([True, False]).to("meta")
    )


def test_per_client_learning_rates() -> None:
    refuses("lr", kernels.client_step, *client(clients=2), lr=torch.tensor([0.1, 0.1, 0.1]))
    refuses("lr", kernels.client_step, *client(), lr=torch.tensor([0.1]))
    refuses("lr", kernels.client_step, *client(clients=2), lr=torch.tensor([1, 1]))


@pytest.mark.parametrize("rule", ["sps", "sgd"])
def test_numbers_from_a_graph_leave_x_outside_it(rule: str) -> None:
    """A loss comes out of autograd: refused or detached, but never may x become part of its graph."""
    rule, x, grad, state = client(rule)
    number = torch.tensor(0.5, requires_grad=True) * 2
    with contextlib.suppress(ValueError):
        kernels.client_step(rule, x, grad, state, **{"loss" if rule == "sps" else "lr": number})
    assert not x.requires_grad
    assert not any(tensor.requires_grad for tensor in state.values())


# ---- states ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "of"),
    [
        ("sgd", "momentum"),
        ("sgd", "adam"),
        ("momentum", "adam"),
        ("adam", "ams"),
        ("adam", "momentum"),
        ("ams", "adam"),
    ],
)
def test_a_servers_state_of_another_rule(rule: str, of: str) -> None:
    _, x, delta, state = server(of)
    refuses("state", kernels.server_step, rule, x, delta, state, lr=0.1, says=f"server_state({rule!r}")


@pytest.mark.parametrize(
    ("rule", "of"),
    [("sgd", "momentum"), ("momentum", "adagrad"), ("adagrad", "adam"), ("adam", "adagrad"), ("delta_sgd", "adam")],
)
def test_a_clients_state_of_another_rule(rule: str, of: str) -> None:
    _, x, grad, state = client(of)
    refuses("state", kernels.client_step, rule, x, grad, state, lr=0.1, says=f"client_state({rule!r}")


@pytest.mark.parametrize(("rule", "of"), [("sm3", "sm3_adam"), ("sm3_adam", "sm3"), ("adagrad", "sm3")])
def test_an_sm3_state_of_another_rule(rule: str, of: str) -> None:
    _, x, grad, state = covered(of)
    with pytest.raises(ValueError, match=r"^(state|beta1): "):
        kernels.client_step(rule, x, grad, state, lr=0.1)


@pytest.mark.parametrize("name", ["m", "v", "step", "refreshes"])
def test_a_clients_state_that_lacks_something(name: str) -> None:
    rule, x, grad, state = client()
    del state[name]
    refuses("state", kernels.client_step, rule, x, grad, state, lr=0.1, says=name)


@pytest.mark.parametrize("name", ["mu", "cover"])
def test_an_sm3_state_that_lacks_its_cover(name: str) -> None:
    rule, x, grad, state = covered()
    del state[name]
    refuses("state", kernels.client_step, rule, x, grad, state, lr=0.1)


def test_a_servers_state_that_lacks_something() -> None:
    rule, x, delta, state = server(beta1=0.0)
    assert "m" not in state
    refuses("state", kernels.server_step, rule, x, delta, state, lr=0.1, beta1=0.9, says="m")
    rule, x, delta, state = server()
    refuses("state", kernels.server_step, rule, x, delta, state, lr=0.1, bias_correction=True, says="step")
    rule, x, delta, state = server(bias_correction=True)
    refuses("state", kernels.server_step, rule, x, delta, state, lr=0.1, says="step")  # it would be ignored


@pytest.mark.parametrize("state", [None, [], "adam"], ids=repr)
def test_no_state_at_all(state: Any) -> None:
    rule, x, delta, _ = server()
    refuses("state", kernels.server_step, rule, x, delta, state, lr=0.1)
    refuses("state", kernels.client_step, rule, x, delta, state, lr=0.1)


def test_sm3s_momentum_must_be_in_the_state() -> None:
    refuses("beta1", kernels.client_step, *covered(), lr=0.1, beta1=0.9, says="lacks m")
    refuses("beta1", kernels.client_step, *covered(beta1=0.9), lr=0.1, says="has m")


def test_the_state_of_a_batch_is_no_state_of_one() -> None:
    _, x, grad, _ = client()
    _, _, _, state = client(clients=CLIENTS)
    refuses("state", kernels.client_step, "adam", x, grad, state, lr=0.1)
    _, x, grad, _ = client(clients=CLIENTS)
    _, _, _, state = client()
    refuses("state", kernels.client_step, "adam", x, grad, state, lr=0.1)


# ---- sums, norms and random numbers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", SPOILED)
def test_weighted_sum_refuses_tensors(how: str) -> None:
    deltas, weights = vector(CLIENTS, D), torch.ones(CLIENTS)
    if how not in ("short", "long", "another device"):  # other lengths are fine; on another device the weights misfit
        refuses("deltas", kernels.weighted_sum, SPOILED[how](deltas), weights)
    if how != "nothing":
        refuses("weights", kernels.weighted_sum, deltas, SPOILED[how](weights))
        refuses("out", kernels.weighted_sum, deltas, weights, SPOILED[how](vector()))


def test_weighted_sum_into_its_own_input() -> None:
    deltas, weights = vector(CLIENTS, D), torch.ones(CLIENTS)
    refuses_overlap("deltas", "out", kernels.weighted_sum, deltas, weights, deltas[0])
    out = vector(dtype=torch.float64)
    refuses("out", kernels.weighted_sum, deltas, weights, out)


@pytest.mark.parametrize("how", SPOILED)
def test_trimmed_mean_refuses_tensors(how: str) -> None:
    deltas = vector(CLIENTS, D)
    if how not in (
        "short",
        "long",
        "another device",
    ):  # other lengths are fine, and so are other devices
        refuses("deltas", kernels.trimmed_mean, SPOILED[how](deltas), 1)
    if how != "nothing":
        refuses("out", kernels.trimmed_mean, deltas, 1, SPOILED[how](vector()))


def test_trimmed_mean_into_its_own_input() -> None:
    deltas = vector(CLIENTS, D)
    refuses_overlap("deltas", "out", kernels.trimmed_mean, deltas, 1, deltas[0])
    refuses("out", kernels.trimmed_mean, deltas, 1, vector(dtype=torch.float64))


@pytest.mark.parametrize("trim", [-1, (CLIENTS + 1) // 2, 10**30, 1.0, True, None, "1"])
def test_trim_leaves_some_clients(trim: Any) -> None:
    deltas = vector(CLIENTS, D)
    refuses("trim", kernels.trimmed_mean, deltas, trim)
    kernels.trimmed_mean(deltas, (CLIENTS - 1) // 2)


@pytest.mark.skipif(kernels.backends()["cpp"] is not True, reason="the compiled extension is missing")
def test_the_extension_trims_nothing_out_of_bounds() -> None:
    from fastfed import _core

    deltas, out = vector(CLIENTS, D), vector()
    for trim in (-1, (CLIENTS + 1) // 2, 2**62):
        with pytest.raises(ValueError, match="trim: must be less than half"):
            _core.trimmed_mean(deltas, trim, out)
    with pytest.raises(ValueError, match=r"deltas: must be \(clients, d\)"):
        _core.trimmed_mean(deltas, 1, out[1:])


@pytest.mark.parametrize("limit", [0.0, -1.0, *NOT_FINITE, "1", None])
def test_clip_limit(limit: Any) -> None:
    refuses("limit", kernels.clip, vector(), limit)


@pytest.mark.parametrize("how", ["int", "complex", "an axis too many", "strided", "in a graph", "a list", "nothing"])
def test_norms_and_clip_refuse_tensors(how: str) -> None:
    refuses("x", kernels.norms, SPOILED[how](vector()))
    refuses("x", kernels.clip, SPOILED[how](vector()), 1.0)


@pytest.mark.parametrize("op", ["uniform", "normal", "permutation"])
def test_draws(op: str) -> None:
    draw, stream = getattr(kernels, op), kernels.Stream(1)
    for n in (0, -1, 1.5, True, "3"):
        refuses("n", draw, n, stream)
    refuses("stream", draw, 3, 17)
    refuses("clients", draw, 3, stream, clients=[1, 2])
    refuses("clients", draw, 3, stream, clients=torch.tensor([1.0]))
    refuses("clients", draw, 3, stream, clients=torch.tensor([[1]]))
    refuses("clients", draw, 3, stream, clients=torch.tensor([-1]))
    refuses("clients", draw, 3, stream, clients=torch.tensor([2**32]))
    refuses("clients", draw, 3, stream, clients=torch.tensor([], dtype=torch.int64))
    refuses("clients", draw, 3, kernels.Stream(1, client=4), clients=torch.tensor([1]))


def test_shuffles() -> None:
    stream, ids, counts = kernels.Stream(1), torch.tensor([1, 2]), torch.tensor([3, 0])
    draw = kernels.shuffles
    refuses("stream", draw, counts, 17, clients=ids)
    for spoiled in ([1, 2], torch.tensor([1.0, 2.0]), torch.tensor([[1, 2]]), torch.tensor([1, -1]), ids[:0]):
        refuses("clients", draw, counts, stream, clients=spoiled)
    refuses("clients", draw, counts, kernels.Stream(1, client=4), clients=ids)
    for name in ("counts", "steps"):
        for spoiled in ([1, 2], torch.tensor([1.0, 2.0]), ids[:1], ids[:, None], torch.tensor([1, -1])):
            given = {"counts": counts, name: spoiled}
            refuses(name, draw, given.pop("counts"), stream, clients=ids, **given)
    refuses("steps", draw, counts, stream, clients=ids, steps=torch.tensor([0, 2**32]))
    refuses("steps", draw, counts, kernels.Stream(1, step=4), clients=ids, steps=ids)
    for width in (2, 0, -1, 3.0, True, "3"):
        refuses("width", draw, counts, stream, clients=ids, width=width)
    refuses("width", draw, counts.to("meta"), stream, clients=ids)


# ---- backends -------------------------------------------------------------------------------------------------------


def unavailable() -> list[str]:
    return [name for name, usable in kernels.backends().items() if usable is not True]


def test_unknown_backends_suggest_the_nearest() -> None:
    refuses("backend", kernels.server_step, *server(), lr=0.1, backend="nunba", says="Did you mean 'numba'?")
    refuses("backend", kernels.client_step, *client(), lr=0.1, backend="gpu", says="reference, cpp, numba")
    refuses("backend", kernels.norms, vector(), backend="gpu")


def test_a_backend_that_cannot_run_here_says_why() -> None:
    missing = unavailable()
    if not missing:
        pytest.skip("every backend runs here")
    for name in missing:
        reason = kernels.backends()[name]
        assert isinstance(reason, str)
        assert reason
        refuses("backend", kernels.server_step, *server(), lr=0.1, backend=name, says=reason)
        refuses("backend", kernels.client_step, *client(), lr=0.1, backend=name, says=reason)


def test_float32_backends_refuse_float64(backend: str) -> None:
    if torch.float64 in kernels.registry.BACKENDS[backend].dtypes:
        pytest.skip(f"{backend} computes in float64")
    x = vector(dtype=torch.float64)
    state = kernels.server_state("adam", x)
    refuses("backend", kernels.server_step, "adam", x, x * 0.1, state, lr=0.1, backend=backend, says="float64")
    refuses("backend", kernels.norms, x, backend=backend, says="'reference' and 'cpp'")


def test_explicit_covers_run_on_the_reference_only() -> None:
    x = vector()
    state = kernels.client_state("sm3", x, cover=[list(range(D))])
    refuses("backend", kernels.client_step, "sm3", x, x * 0.1, state, lr=0.1, backend="cpp", says="'reference' only")


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the backends that calls reach, in place of their kernels."""
    reached: list[str] = []

    class Recorder:
        def __init__(self, name: str) -> None:
            self.name = name

        def norms(self, x: Tensor, out: Tensor) -> None:
            reached.append(self.name)

    monkeypatch.setattr(kernels.registry.Backend, "load", lambda backend: Recorder(backend.name))
    for cached in (kernels.registry._asked, kernels.registry._fastest):
        cached.cache_clear()
    yield reached
    monkeypatch.undo()
    for cached in (kernels.registry._asked, kernels.registry._fastest):
        cached.cache_clear()


def test_the_environment_picks_and_the_argument_overrides(called: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "default", None)
    kernels.norms(vector(), backend="reference")
    monkeypatch.setattr(registry, "default", "numba")
    kernels.norms(vector())
    kernels.norms(vector(), backend="reference")
    monkeypatch.setattr(registry, "default", "")  # as good as unset
    kernels.norms(vector())
    fastest = next(name for name in ("cpp", "numba", "reference") if kernels.backends()[name] is True)
    assert called == ["reference", "numba", "reference", fastest]


def test_without_a_wish_float64_gets_a_backend_that_can(called: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "default", None)
    kernels.norms(vector(dtype=torch.float64))
    assert called == ["cpp" if kernels.backends()["cpp"] is True else "reference"]


def test_a_bad_wish_in_the_environment_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "default", "fastest")
    refuses("backend", kernels.norms, vector(), says="'fastest'")


def test_the_environment_is_read_at_import() -> None:
    code = "import torch; from fastfed import kernels; kernels.norms(torch.ones(3))"
    environment = {**os.environ, "FASTFED_BACKEND": "fastest"}
    failed = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert "backend: 'fastest' (FASTFED_BACKEND says so) is not one of" in failed.stderr


def test_backends_are_listed_with_true_or_a_reason() -> None:
    listed = kernels.backends()
    assert list(listed) == ["reference", "cpp", "numba", "triton", "cuda"]
    assert listed["reference"] is True
    assert all(usable is True or (isinstance(usable, str) and len(usable) > 10) for usable in listed.values())
