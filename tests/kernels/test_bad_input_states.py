"""Bad input is refused at the door: what a rule needs or has no use for, and states of another."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

from fastfed import kernels

from .bad_input import (
    CLIENTS,
    D,
    client,
    covered,
    refuses,
    server,
    vector,
)

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
