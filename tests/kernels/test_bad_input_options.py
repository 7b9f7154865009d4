"""Bad input is refused at the door: numbers outside their domain, and names that a rule does not know."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fastfed import kernels

from .bad_input import (
    CLIENTS,
    NOT_FINITE,
    PACKING,
    D,
    aggregate,
    client,
    covered,
    refuses,
    server,
    vector,
)
from .support import packed_normal

# ---- numbers --------------------------------------------------------------------------------------------------------


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
        ("adam", "bias_from", [-1.0, math.nan, -math.inf, True]),
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
        ("sps", "eps", [-1e-8, math.nan]),
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


@pytest.mark.parametrize("eps", ["Torch", 1e-8, None, True])
def test_conventions_of_eps(eps: Any) -> None:
    refuses("eps", kernels.server_step, *server(), lr=0.1, eps=eps)


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
        ("momentum", {"eps": "torch"}),
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
        ("sgd", {"eps": "torch"}),
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
