"""Blended clients against their pseudo-code: rules, numbers of steps, delays and weights of their own.

Which part a client draws is read from the plan, and its statistics are tested apart; where a function chooses, the
pseudo-code chooses itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import fastfed as ff
from fastfed.plan.round import LocalWork, PlanTemplate, Tuning
from fastfed.train.threads import one_thread_per_operation

from . import literal, literal_blend
from .literal import Rule, Server, Snapshot, Start
from .literal_async import Clients
from .literal_blend import Choice
from .literal_compare import (
    NETWORK,
    SIZES,
    batches_per_epoch,
    examples,
    federation,
    same_in_both,
    shuffled,
    simulation,
    start_model,
)

COHORTS = ((0, 4, 8), (1, 3, 6, 7), (2, 5, 8), (0, 1, 2, 3, 4, 5, 6, 7, 8), (6, 8, 0), (3, 4, 7))
BATCH, EPOCHS = 3, 2

Part, Blend = ff.clients.Part, ff.clients.Blend


@dataclass(frozen=True)
class Twin:
    """A part as the pseudo-code has it; without steps and epochs of its own it trains for `EPOCHS`. `own`: steps or
    weight by round and client."""

    rule: Callable[[Start], Rule]
    steps: int | None = None
    epochs: float | None = None
    weight: float = 1.0
    own: Callable[[int, int], dict[str, Any]] = lambda t, client: {}

    def at(self, t: int, client: int) -> Twin:
        return replace(self, **self.own(t, client))

    def steps_of(self, client: int) -> int:
        if SIZES[client] == 0 or self.steps is not None:
            return self.steps or 0
        epochs = EPOCHS if self.epochs is None else self.epochs
        whole = math.floor(epochs)
        return whole * batches_per_epoch(client, BATCH) + math.ceil(SIZES[client] * (epochs - whole) / BATCH)


@dataclass(frozen=True)
class Case:
    """`parts` as FastFed and as the pseudo-code has them. `settings` besides, `method` and `server` their twin;
    `choose` by a client's id, for blends that do not draw."""

    parts: tuple[tuple[ff.clients.Part, Twin], ...]
    settings: dict[str, Any] = field(default_factory=dict)
    server: dict[str, Any] = field(default_factory=dict)
    method: dict[str, Any] = field(default_factory=dict)
    choose: Callable[[int], int] | None = None
    blend: dict[str, Any] = field(default_factory=dict)
    poisoned: int | None = None

    def simulated(self) -> dict[str, Any]:
        blend = Blend([part for part, _ in self.parts], **self.blend)
        defaults = {"client": blend, "weights": "uniform", "epochs": EPOCHS, "batch_size": BATCH, "cohort": COHORTS}
        return {**defaults, "fed": federation(self.poisoned), **self.settings}


SGD = (ff.clients.SGD(lr=0.3), partial(literal.SGD, lr=0.3))
ADAM = (ff.clients.Adam(lr=0.05, beta2=0.9), partial(literal.Adam, lr=0.05, beta2=0.9))
ADAGRAD = (ff.clients.AdaGrad(lr=0.1, delay=2, eps=0.01), partial(literal.AdaGrad, lr=0.1, delay=2, eps=0.01))
SM3 = (ff.clients.SM3(lr=0.1, delay=3, eps=0.02), partial(literal.SM3, lr=0.1, delay=3, eps=0.02))
DELTA_SGD = (ff.clients.DeltaSGD(lr=0.5), partial(literal.DeltaSGD, lr=0.5))
MOMENTUM = (ff.clients.Momentum(lr=0.1), partial(literal.Momentum, lr=0.1, momentum=0.9))


def part(rules: tuple[ff.clients.Client, Callable[[Start], Rule]], share: float = 1.0, **own: Any) -> Any:
    return Part(rules[0], share=share, **own), Twin(rules[1], **own)


UNLIKE = (
    part(SGD, 2.0, steps=3, weight=0.5),
    part(ADAGRAD, 1.0, epochs=1.5, weight=2.0),
    part(SM3, 1.5, weight=1.25),
    part(ADAM, 0.5, steps=5),
)
FEDADAM = {"server": ff.servers.FedAdam(lr=0.05, tau=0.02, second_moment_of="delta")}
FEDADAM_TWIN = {"rule": "adam", "lr": 0.05, "tau": 0.02, "of": "delta"}
MEMORY = ("small", "large", "tiny", "large", "small", "tiny", "large", "small", "tiny")

CASES = {
    "two rules": Case((part(SGD), part(ADAM, 2.0))),
    "steps, delays and weights": Case(UNLIKE, FEDADAM, FEDADAM_TWIN),
    "by examples": Case(UNLIKE, {"weights": "examples"}, method={"weights": "examples"}),
    "one part": Case((part(MOMENTUM, 0.2, weight=0.4),), FEDADAM, FEDADAM_TWIN),
    "a part that never comes": Case((part(ADAM, 0.0, weight=3.0), part(SGD, weight=0.7))),
    "a weight of nothing": Case((part(ADAM, weight=0.0), part(SGD, weight=1.5))),
    "heavy weights": Case((part(DELTA_SGD, weight=3.0, steps=4), part(SGD, 2.0, weight=0.1))),
    "chosen by size": Case(
        (part(ADAGRAD, steps=2), part(SM3, epochs=3, weight=0.8), part(SGD, weight=1.2)),
        choose=lambda client: SIZES[client] % 3,
        blend={"choose": lambda of: of.examples % 3},
    ),
    "chosen by resources": Case(
        (part(ADAM, steps=6), part(SM3, weight=0.8), part(SGD, epochs=0.5, weight=1.2)),
        FEDADAM,
        FEDADAM_TWIN,
        choose=lambda client: ("large", "small", "tiny").index(MEMORY[client]) if client != 2 else 0,
        blend={
            "choose": lambda of: ("large", "small", "tiny").index(of.own) if of.client != 2 else 0,
            "resources": MEMORY,
        },
    ),
    "by round and client": Case(
        (
            (
                Part(SGD[0], steps=lambda of: 1 + (of.round + of.client) % 3, weight=lambda of: 0.5 + 0.25 * of.round),
                Twin(SGD[1], own=lambda t, client: {"steps": 1 + (t + client) % 3, "weight": 0.5 + 0.25 * t}),
            ),
            (
                Part(ADAM[0], weight=lambda of: 1.0 / (1 + of.client + of.examples)),
                Twin(ADAM[1], own=lambda t, client: {"weight": 1.0 / (1 + client + SIZES[client])}),
            ),
        ),
        FEDADAM,
        FEDADAM_TWIN,
    ),
    "scheduled": Case(
        UNLIKE,
        {"client_schedule": ff.schedules.Staircase(factor=0.5, every=2)},
        method={"factor": lambda round: 0.5 ** (round // 2)},
    ),
    "per step and clipped": Case(
        UNLIKE, {"divide_by_steps": True, "delta_clip": 0.1}, method={"divide_by_steps": True, "delta_clip": 0.1}
    ),
    "transmitted": Case(
        (part(ADAGRAD, weight=1.5), part(SM3, steps=4)),
        {**FEDADAM, "exchange": ff.exchange.Preconditioner()},
        FEDADAM_TWIN,
        {"transmit": True},
    ),
    "a poisoned client": Case(
        UNLIKE, {**FEDADAM, "weights": "examples"}, FEDADAM_TWIN, {"weights": "examples"}, poisoned=8
    ),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with one_thread_per_operation():
        yield


def choices(case: Case) -> list[list[Choice]]:
    """Who trains how, in every round."""
    sim = simulation(torch.float64, "eager", case.simulated())
    found = []
    for t, cohort in enumerate(COHORTS):
        plan = sim.planner.plan(t, sim.tuner.tuning)
        assert plan is not None
        assert plan.optimizer_index is not None
        assert plan.cohort.tolist() == sorted(cohort)
        drawn = dict(zip(plan.cohort.tolist(), plan.optimizer_index.tolist(), strict=True))
        made = []
        for client in cohort:
            twin = case.parts[drawn[client] if case.choose is None else case.choose(client)][1].at(t, client)
            made.append(Choice(client, twin.rule, shuffled(t, client, BATCH, twin.steps_of(client)), twin.weight))
        found.append(made)
    return found


@pytest.mark.parametrize("name", CASES)
def test_blended_rounds_are_their_pseudo_code(name: str) -> None:
    case = CASES[name]
    rounds = choices(case)
    clients = Clients(NETWORK, examples(case.poisoned), SGD[1])

    @cache
    def truth(dtype: str) -> list[Snapshot]:
        with np.errstate(invalid="ignore"):  # the poisoned client's
            return literal_blend.Blend(clients, Server(**case.server), **case.method).run(start_model(dtype), rounds)

    same_in_both(case.simulated(), lambda dtype, packing: truth(dtype), len(COHORTS))


def test_all_parts_are_in_use() -> None:
    """Or comparing would prove nothing of some."""
    rules = [choice.rule for cohort in choices(CASES["steps, delays and weights"]) for choice in cohort]
    assert set(rules) == {SGD[1], ADAGRAD[1], SM3[1], ADAM[1]}
    for name in ("chosen by size", "chosen by resources"):
        assert {CASES[name].choose(client) for client in range(len(SIZES)) if SIZES[client]} == {0, 1, 2}  # type: ignore[misc]


def test_a_function_may_choose_by_the_round() -> None:
    blend = Blend([Part(SGD[0]), Part(ADAM[0])], choose=lambda of: of.round % 2)
    sim = simulation(torch.float64, "eager", {**CASES["two rules"].simulated(), "client": blend})
    for t in range(4):
        plan = sim.planner.plan(t, sim.tuner.tuning)
        assert plan is not None
        assert plan.optimizer_index is not None
        assert set(plan.optimizer_index.tolist()) == {t % 2}


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        ({"steps": lambda of: 0}, "steps: must be a whole number >= 1, got 0 for client 0"),
        ({"weight": lambda of: -1.0}, r"weight: must be a number from 0 to 1e\+30, got -1.0 for client 0"),
    ],
)
def test_what_functions_give_is_checked(own: dict[str, Any], sentence: str) -> None:
    settings = {**CASES["two rules"].simulated(), "client": Blend([Part(SGD[0], **own)])}
    with pytest.raises(ValueError, match=sentence):
        simulation(torch.float64, "eager", settings).step()


# ---- statistics of the draws ----------------------------------------------------------------------------------------

SHARES = (2.0, 0.0, 1.0, 0.5)
CLIENTS = 20


def drawn_parts(seed: int, rounds: int) -> np.ndarray:
    """(rounds, clients) the part of every client."""
    blend = Blend([Part(ff.clients.SGD(lr=0.1), share=share) for share in SHARES])
    template = PlanTemplate(
        sizes=torch.ones(CLIENTS, dtype=torch.int64),
        local=LocalWork(epochs=1),
        client=blend,
        server_lr=1.0,
        seed=seed,
    )
    everyone = torch.arange(CLIENTS)
    plans = [template.plan(t, everyone, Tuning()) for t in range(rounds)]
    return np.array([plan.optimizer_index.tolist() for plan in plans if plan.optimizer_index is not None])


def test_parts_are_drawn_by_their_shares() -> None:
    counts = np.bincount(drawn_parts(13, 200).reshape(-1), minlength=4)
    assert counts[1] == 0
    expected = counts.sum() * np.array([2.0, 1.0, 0.5]) / 3.5
    assert stats.chisquare(counts[[0, 2, 3]], expected).pvalue > 0.01


def test_draws_are_independent_of_client_and_round() -> None:
    drawn = drawn_parts(14, 300)
    for one, other in ((drawn[:, 0], drawn[:, 1]), (drawn[1:, 3], drawn[:-1, 3]), (drawn[:, 19], drawn[:, 7])):
        table = np.zeros((4, 4))
        np.add.at(table, (one, other), 1)
        assert stats.chi2_contingency(table[np.ix_([0, 2, 3], [0, 2, 3])]).pvalue > 0.01
    assert not np.array_equal(drawn, drawn_parts(15, 300))
