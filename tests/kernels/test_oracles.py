"""Every rule against the literal loops of ``literal.py``, on every backend."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fastfed import kernels

from . import literal
from .cases import SERVER_OPTIONS
from .oracles import (
    SM3_RULES,
    D,
    Snapshots,
    agree,
    arrays,
    assert_floored_sometimes,
    client_run,
    gradients,
    seed_of,
    server_run,
    start,
    tensors,
    tiny_now_and_then,
)
from .support import normal

# ---- client rules, literally ----------------------------------------------------------------------------------------

ADAPTIVE: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "adagrad": (literal.agdu, {"lr": 0.1, "eps": 1e-3}),
    "adam": (literal.admu, {"lr": 0.03, "beta1": 0.5, "beta2": 0.9, "eps": 1e-3}),
}


@pytest.mark.parametrize("rule", ADAPTIVE)
@pytest.mark.parametrize("delay", [1, 2, 3])
@pytest.mark.parametrize("v0", [0.0, 0.3])
def test_delayed_second_moments(backend: str, rule: str, delay: int, v0: float) -> None:
    loop, options = ADAPTIVE[rule]
    name = f"delay {rule} {delay} {v0}"
    x, grads = start(name, torch.float32), gradients(name, 7)

    def oracle(dtype: torch.dtype) -> Snapshots:
        return tensors(loop(arrays([x], dtype)[0], arrays(grads, dtype), delay=delay, v0=v0, **options))

    agree(backend, client_run(rule, x, grads, {**options, "delay": delay}, {"v0": v0}), oracle)


@pytest.mark.parametrize("counted", [3, None])
def test_bias_corrections_that_count_from_later_on_or_are_not_made(backend: str, counted: int | None) -> None:
    loop, options = ADAPTIVE["adam"]
    name = f"bias from {counted}"
    x, grads = start(name, torch.float32), gradients(name, 7)

    def oracle(dtype: torch.dtype) -> Snapshots:
        given = {"delay": 2, "v0": 0.3, "counted_before": counted, **options}
        return tensors(loop(arrays([x], dtype)[0], arrays(grads, dtype), **given))

    ours = {**options, "delay": 2, "bias_from": math.inf if counted is None else float(counted)}
    agree(backend, client_run("adam", x, grads, ours, {"v0": 0.3}), oracle)


def test_delay_counted_in_epochs(backend: str) -> None:
    name, epochs = "epochs", [1, 1, 2, 2, 3, 3, 4]
    loop, options = ADAPTIVE["adam"]
    x, grads = start(name, torch.float32), gradients(name, len(epochs))

    def oracle(dtype: torch.dtype) -> Snapshots:
        return tensors(loop(arrays([x], dtype)[0], arrays(grads, dtype), delay=2, epochs=epochs, **options))

    run = client_run("adam", x, grads, {**options, "delay": 2}, each=lambda step, _: {"epoch": epochs[step]})
    agree(backend, run, oracle)


@pytest.mark.parametrize("rule", ADAPTIVE)
def test_update_floor(backend: str, rule: str) -> None:
    loop, options = ADAPTIVE[rule]
    name = f"floor {rule}"
    x = start(name, torch.float32)
    (grads,) = tiny_now_and_then(gradients(name, 6))
    usual = float(np.sqrt(D))  # the norm of a direction whose entries are about 1
    floor = {"adagrad": 0.1, "adam": 0.6}[rule] * usual  # adam's m forgets slowly

    def oracle(dtype: torch.dtype) -> Snapshots:
        return tensors(loop(arrays([x], dtype)[0], arrays(grads, dtype), floor=floor, **options))

    assert_floored_sometimes(x, agree(backend, client_run(rule, x, grads, {**options, "floor": floor}), oracle))


def around(name: str) -> dict[str, Any]:
    """FedProx, SCAFFOLD, weight decay and a clipping norm that binds at some steps only."""
    return {
        "weight_decay": 0.05,
        "prox": 0.3,
        "clip": 25.0,
        "anchor": normal(seed_of(name) + 100, D),
        "corrections": [normal(seed_of(name) + 101 + step, D) * 0.3 for step in range(6)],
    }


CORRECTED: dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]] = {  # rule: loop, its options, ours
    "sgd": (literal.sgd, {"lr": 0.1}, {"lr": 0.1}),
    "momentum": (literal.sgd, {"lr": 0.1, "momentum": 0.7}, {"lr": 0.1, "momentum": 0.7}),
    "adagrad": (literal.agdu, *[ADAPTIVE["adagrad"][1]] * 2),
    "adam": (literal.admu, *[ADAPTIVE["adam"][1]] * 2),
    "delta_sgd": (literal.delta_sgd, *[{"lr": 0.05, "gamma": 1.5, "delta": 0.2}] * 2),
    "sps": (literal.sps, *[{"c": 0.7, "f_star": 0.2, "lr_max": 0.3}] * 2),
}


def test_every_client_rule_has_an_oracle() -> None:
    assert CORRECTED.keys() | SM3_RULES.keys() == kernels.CLIENT_RULES.keys()


@pytest.mark.parametrize("rule", CORRECTED)
def test_corrections_come_before_the_rule_and_clipping_last(backend: str, rule: str) -> None:
    loop, theirs, ours = CORRECTED[rule]
    name = f"around {rule}"
    x, grads = start(name, torch.float32), gradients(name, 6)
    grads = [g * (0.1 if step % 2 else 2.0) for step, g in enumerate(grads)]
    extra, losses = around(name), [40.0, 0.9, 90.0, 2.0, 300.0, 1.2]
    positional = {"sps": (losses,)}.get(rule, ())
    numbers = {key: value for key, value in extra.items() if isinstance(value, float)}

    def oracle(dtype: torch.dtype) -> Snapshots:
        vectors = {"anchor": arrays([extra["anchor"]], dtype)[0], "corrections": arrays(extra["corrections"], dtype)}
        first = arrays([x], dtype)[0]
        return tensors(loop(first, arrays(grads, dtype), *positional, **numbers, **vectors, **theirs))

    def each(step: int, dtype: torch.dtype) -> dict[str, Any]:
        given = {"anchor": extra["anchor"].to(dtype), "correction": extra["corrections"][step].to(dtype)}
        return {**given, "loss": losses[step]} if rule == "sps" else given

    agree(backend, client_run(rule, x, grads, {**numbers, **ours}, each=each), oracle)
    free = corrected_norms(x, grads, extra)
    assert min(free) < extra["clip"] < max(free)


def corrected_norms(x: Tensor, grads: list[Tensor], extra: dict[str, Any]) -> list[float]:
    """Norms that clipping meets if x hardly moves: a check that the case exercises both sides."""
    pulled = [
        g + extra["weight_decay"] * x + extra["prox"] * (x - extra["anchor"]) + c
        for g, c in zip(grads, extra["corrections"], strict=True)
    ]
    return [float(v.norm()) for v in pulled]


def test_the_four_corrections_in_one_coordinate() -> None:
    """By hand: g = 1 + 0.5*2 (decay) + 0.25*(2 - 4) (prox) + 0.5 (correction) = 2, clipped to 1, step 0.5: 2 - 0.5."""
    x = torch.tensor([2.0])
    kernels.client_step(
        "sgd",
        x,
        torch.tensor([1.0]),
        {},
        lr=0.5,
        weight_decay=0.5,
        prox=0.25,
        anchor=torch.tensor([4.0]),
        correction=torch.tensor([0.5]),
        clip=1.0,
        backend="reference",
    )
    assert x.item() == 1.5


# ---- Delta-SGD and SPS ----------------------------------------------------------------------------------------------


def restless_and_calm(name: str, steps: int) -> list[Tensor]:
    """Gradients that change by much, then hardly, then not at all, then vanish: every branch of Delta-SGD's rule."""
    base = normal(seed_of(name), D)
    grads = [base + (2.0 if step % 3 == 1 else 0.02) * normal(seed_of(name) + 1 + step, D) for step in range(steps)]
    return [*grads, grads[-1].clone(), torch.zeros(D), torch.zeros(D), *grads[:2]]


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0.2},  # the paper's settings
        {"lr": 0.05, "gamma": 1.5, "delta": 0.3, "theta": 0.6},
        {"lr": 0.05, "grow_first": True, "lr_eps": 1e-3},  # the authors' code, with an epsilon that can be seen
    ],
    ids=["paper", "other", "authors"],
)
def test_delta_sgd(backend: str, options: dict[str, Any]) -> None:
    name = f"delta_sgd {sorted(options)}"
    x, grads = start(name, torch.float32), restless_and_calm(name, 7)

    def oracle(dtype: torch.dtype) -> Snapshots:
        return tensors(literal.delta_sgd(arrays([x], dtype)[0], arrays(grads, dtype), **options))

    exact = agree(backend, client_run("delta_sgd", x, grads, options), oracle)
    assert {int(shot["binds"]) for shot in exact} >= {1, 2}


def test_delta_sgd_on_the_same_batch(backend: str) -> None:
    """The authors' code: the previous gradient is evaluated again, on the current batch."""
    name = "same batch"
    x, grads = start(name, torch.float32), gradients(name, 6)
    previous = [g + (0.3, 9.0)[step % 2] * normal(seed_of(name) + 50 + step, D) for step, g in enumerate(grads)]
    options = {"lr": 0.05, "gamma": 1.5}

    def oracle(dtype: torch.dtype) -> Snapshots:
        again = arrays(previous, dtype)
        return tensors(literal.delta_sgd(arrays([x], dtype)[0], arrays(grads, dtype), previous=again, **options))

    def each(step: int, dtype: torch.dtype) -> dict[str, Any]:
        return {"previous_grad": previous[step].to(dtype)}

    run = client_run("delta_sgd", x, grads, options, {"same_batch": True}, each)
    exact = agree(backend, run, oracle)
    assert {int(shot["binds"]) for shot in exact} >= {1, 2}


def test_sps_has_no_bound_unless_one_is_given(backend: str) -> None:
    """And its eps keeps a vanishing gradient from an endless step."""
    name = "free sps"
    x, grads = start(name, torch.float32), [g * 1e-5**step for step, g in enumerate(gradients(name, 3))]

    def oracle(dtype: torch.dtype) -> Snapshots:
        return tensors(literal.sps(arrays([x], dtype)[0], arrays(grads, dtype), [3.0] * 3, c=0.5, f_star=0.0))

    exact = agree(backend, client_run("sps", x, grads, {}, each=lambda step, _: {"loss": 3.0}), oracle)
    assert [int(shot["binds"]) for shot in exact] == [1, 1, 1]
    assert float(exact[2]["lr"]) == pytest.approx(3.0 / 1e-8, rel=0.01)


def test_sps(backend: str) -> None:
    name = "sps"
    x, grads = start(name, torch.float32), gradients(name, 6)
    losses = [300.0, 2.5, 1e4, 0.9, 150.0, 3.0]
    options = {"c": 0.7, "f_star": 0.2, "lr_max": 0.3}

    def oracle(dtype: torch.dtype) -> Snapshots:
        return tensors(literal.sps(arrays([x], dtype)[0], arrays(grads, dtype), losses, **options))

    exact = agree(backend, client_run("sps", x, grads, options, each=lambda step, _: {"loss": losses[step]}), oracle)
    assert {int(shot["binds"]) for shot in exact} == {1, 2}


def test_sps_defaults(backend: str) -> None:
    """By hand, with f_star = 0, c = 0.5, eps = 1e-8: lr = loss / (c * ||g||^2 + eps) = 4 / (0.5 * 16 + 1e-8)."""
    x = torch.zeros(4)
    state = kernels.client_state("sps", x)
    kernels.client_step("sps", x, torch.full((4,), 2.0), state, loss=4.0, backend=backend)
    assert x.tolist() == [-1.0] * 4
    assert state["lr"].item() == 4 / (8 + 1e-8)


# ---- server rules, literally ----------------------------------------------------------------------------------------


def server_options(rule: str) -> dict[str, Any]:
    """The options of the rule's cases, and a first moment where it may have one."""
    usual = {"beta1": 0.4} if "beta1" in kernels.SERVER_RULES[rule].options else {}
    return {**usual, **SERVER_OPTIONS[rule]}


def server_agrees(backend: str, rule: str, options: dict[str, Any], made: dict[str, Any], **theirs: Any) -> Snapshots:
    name = f"server {rule} {sorted(options)} {sorted(made)}"
    x, deltas = start(name, torch.float32), gradients(name, 6)
    deltas = [d * (0.3 if step % 3 else 1.0) for step, d in enumerate(deltas)]

    def oracle(dtype: torch.dtype) -> Snapshots:
        return tensors(literal.server(rule, arrays([x], dtype)[0], arrays(deltas, dtype), **options, **theirs))

    return agree(backend, server_run(rule, x, deltas, options, made), oracle)


@pytest.mark.parametrize("followed", ["momentum", "delta"])
@pytest.mark.parametrize("v0", [None, 0.0, 0.5])
@pytest.mark.parametrize("rule", kernels.SERVER_RULES)
def test_server_rules(backend: str, rule: str, followed: str, v0: float | None) -> None:
    """Every rule of the table: one without an oracle fails here."""
    options = server_options(rule)
    if "v" not in kernels.SERVER_RULES[rule].moments:
        if v0 is not None or followed == "delta":
            pytest.skip("keeps no second moment")
        server_agrees(backend, rule, options, {"beta1": options["beta1"]} if "beta1" in options else {})
        return
    options = {**options, "second_moment_of": followed}
    made = {"tau": options["tau"], "beta1": options["beta1"], **({} if v0 is None else {"v0": v0})}
    server_agrees(backend, rule, options, made, v0=v0)


@pytest.mark.parametrize("followed", ["momentum", "delta"])
@pytest.mark.parametrize("rule", ["adam", "yogi", "ams"])
def test_authors_bias_corrections(backend: str, rule: str, followed: str) -> None:
    options = {**server_options(rule), "second_moment_of": followed, "bias_correction": True}
    start_at = {"v0": 0.0, **({"vmax0": 1e-3} if rule == "ams" else {})}
    server_agrees(backend, rule, options, {"bias_correction": True, **start_at}, **start_at)


@pytest.mark.parametrize("corrects", [False, True])
@pytest.mark.parametrize("followed", [None, "momentum"])
@pytest.mark.parametrize("rule", ["adagrad", "adam", "yogi", "ams"])
def test_torchs_convention_for_eps(backend: str, rule: str, followed: str | None, corrects: bool) -> None:
    """v starts at 0 and follows the delta unless it is said, and tau joins the corrected root."""
    if corrects and rule == "adagrad":
        pytest.skip("has no running mean to correct")
    asked = {"bias_correction": True} if corrects else {}
    options = {**server_options(rule), "eps": "torch", **asked, **({"second_moment_of": followed} if followed else {})}
    made = {"eps": "torch", "tau": options["tau"], "beta1": options["beta1"], **asked}
    server_agrees(backend, rule, options, made)


@pytest.mark.parametrize(
    ("rule", "papers"),
    [
        ("sgd", {"lr": 1.0}),
        ("momentum", {"lr": 1.0, "momentum": 0.9}),
        ("adagrad", {"beta1": 0.0, "tau": 1e-3, "second_moment_of": "momentum"}),
        ("adam", {"beta1": 0.9, "beta2": 0.99, "tau": 1e-3, "second_moment_of": "momentum"}),
        ("yogi", {"beta1": 0.9, "beta2": 0.99, "tau": 1e-3, "second_moment_of": "momentum"}),
        ("ams", {"beta1": 0.9, "beta2": 0.99, "tau": 1e-3, "second_moment_of": "delta"}),
    ],
)
def test_the_paper_is_the_default(rule: str, papers: dict[str, Any]) -> None:
    """Nothing set but the learning rate where there is no default: the settings of AFO and, for ams, of CC."""
    lr = {} if "lr" in papers else {"lr": 0.1}
    x, deltas = start(rule, torch.float64), [d.double() for d in gradients(rule, 4)]
    loop = literal.server(rule, x.numpy(), [d.numpy() for d in deltas], **papers, **lr)
    got = server_run(rule, x, deltas, lr, {})("reference", torch.float64)
    for g, e in zip(got, tensors(loop), strict=True):
        for name in g:
            torch.testing.assert_close(g[name], e[name], rtol=1e-12, atol=1e-14)
