"""Client-centric rounds against their pseudo-code, and the statistics of what they draw.

Who arrives, from how old a model and after how many epochs is read from the plan, as a draw; the rest is the
pseudo-code's own, from a list of all models there ever were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import fastfed as ff
from fastfed.plan.round import LocalWork, PlanTemplate, Tuning
from fastfed.train.threads import one_thread_per_operation

from ..simulation import literal, literal_async
from ..simulation.literal import Rule, Server, Snapshot, Start
from ..simulation.literal_async import Arrival, Clients
from ..simulation.literal_compare import (
    NETWORK,
    SIZES,
    batches_per_epoch,
    examples,
    federation,
    same_in_both,
    shuffled,
    simulation,
    start_model,
    steps,
)

ROUNDS = 7  # more than the longest delay: old models are forgotten, too
BATCH = 4
SGD = partial(literal.SGD, lr=0.3)

centric = ff.methods.client_centric


@dataclass(frozen=True)
class Case:
    """`settings` of ff.Simulation and their twin. `most` epochs, or None for the given `steps`."""

    settings: dict[str, Any]
    server: dict[str, Any]
    max_delay: int = 5
    most: int | None = 6
    rule: Callable[[Start], Rule] = SGD
    poisoned: int | None = None


OTHER_TIMES: dict[str, Any] = {"buffer": 3, "max_delay": 2, "epochs": 2, "randomness": 1.5}
GIVEN_STEPS = (3, 2, 4, 2, 5, 1, 2, 3, 1)

CASES = {
    "CC-FedAvg": Case(centric("sgd", client_lr=0.3, server_lr=1.0), {}),
    "CC-FedSGD": Case(centric("sgd", client_lr=0.3, server_lr=0.6, **OTHER_TIMES), {"lr": 0.6}, 2, 3),
    "CC-FedAdagrad": Case(
        centric("adagrad", client_lr=0.3, server_lr=0.05), {"rule": "adagrad", "lr": 0.05, "of": "delta"}
    ),
    "CC-FedAdam": Case(centric("adam", client_lr=0.3, server_lr=0.02), {"rule": "adam", "lr": 0.02, "of": "delta"}),
    "CC-FedAMS": Case(centric("ams", client_lr=0.3, server_lr=0.02), {"rule": "ams", "lr": 0.02, "of": "delta"}),
    "CC-FedAMS, other settings": Case(
        centric(ff.servers.FedAMS(lr=0.04, beta1=0.6, beta2=0.7, tau=0.03, v0=0.01), client_lr=0.3, **OTHER_TIMES),
        {"rule": "ams", "lr": 0.04, "beta1": 0.6, "beta2": 0.7, "tau": 0.03, "v0": 0.01, "of": "delta"},
        2,
        3,
    ),
    "synchronous": Case(  # T = 0, R = 1/K
        centric("adam", client_lr=0.3, server_lr=0.02, max_delay=0, epochs=4, randomness=0.25),
        {"rule": "adam", "lr": 0.02, "of": "delta"},
        0,
        1,
    ),
    "one at a time": Case(
        centric("ams", client_lr=0.3, server_lr=0.02, buffer=1, max_delay=3),
        {"rule": "ams", "lr": 0.02, "of": "delta"},
        3,
    ),
    "AdaGrad clients of given steps": Case(
        {
            **centric("adam", client_lr=0.3, server_lr=0.02, epochs=None, randomness=None),
            "client": ff.clients.AdaGrad(lr=0.1, eps=0.01),
            "steps": GIVEN_STEPS,
        },
        {"rule": "adam", "lr": 0.02, "of": "delta"},
        5,
        None,
        rule=partial(literal.AdaGrad, lr=0.1, eps=0.01),
    ),
    "a poisoned client": Case(centric("sgd", client_lr=0.3, server_lr=0.9, buffer=7), {"lr": 0.9}, poisoned=4),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with one_thread_per_operation():
        yield


def settings_of(case: Case) -> dict[str, Any]:
    return {**case.settings, "batch_size": BATCH, "fed": federation(case.poisoned)}


def arrivals(case: Case) -> list[list[Arrival]]:
    """What the planner draws in every round."""
    sim = simulation(torch.float64, "eager", settings_of(case))
    found = []
    for t in range(ROUNDS):
        plan = sim.planner.plan(t, sim.tuner.tuning)
        assert plan is not None
        assert plan.age is not None
        buffer = []
        for client, age, planned in zip(plan.cohort.tolist(), plan.age.tolist(), plan.steps.tolist(), strict=True):
            assert 0 <= age <= min(case.max_delay, t)
            buffer.append(Arrival(client, age, shuffled(t, client, BATCH, steps_of(case, client, planned))))
        found.append(buffer)
    return found


def steps_of(case: Case, client: int, planned: int) -> int:
    """The planned steps, which must be those of a whole number of epochs in 1 .. most, or the given ones."""
    if case.most is None:
        return GIVEN_STEPS[client] if SIZES[client] else 0
    if SIZES[client] == 0:
        return 0
    epochs, rest = divmod(planned, batches_per_epoch(client, BATCH))
    assert rest == 0
    assert 1 <= epochs <= case.most
    return planned


@pytest.mark.parametrize("name", CASES)
def test_client_centric_rounds_are_their_pseudo_code(name: str) -> None:
    case = CASES[name]
    rounds = arrivals(case)
    clients = Clients(NETWORK, examples(case.poisoned), case.rule)

    @cache
    def truth(dtype: str) -> list[Snapshot]:
        with np.errstate(invalid="ignore"):  # the poisoned client's
            server = Server(**case.server)
            return literal_async.client_centric(clients, server, start_model(dtype), rounds, case.max_delay)

    same_in_both(settings_of(case), lambda dtype, packing: truth(dtype), ROUNDS)


def test_rows_tell_the_ages() -> None:
    case = CASES["CC-FedAdam"]
    sim = simulation(torch.float64, "eager", settings_of(case))
    rounds = arrivals(case)
    for t, _ in enumerate(steps(sim, ROUNDS)):
        ages = [arrival.age for arrival in rounds[t]]
        row = sim.history.rounds[t]
        assert row["age_mean"] == pytest.approx(sum(ages) / len(ages), rel=1e-15)
        assert row["age_max"] == max(ages)
        assert row["ages"] == [[age, number] for age, number in sorted(Counter(ages).items())]


def test_cases_lead_elsewhere() -> None:
    """Ages and numbers of epochs must show in where a run ends, or comparing would prove nothing."""
    case = CASES["CC-FedAdam"]
    clients = Clients(NETWORK, examples(), case.rule)
    run = partial(literal_async.client_centric, clients, Server(**case.server), start_model("float64"), longest=5)
    rounds = arrivals(case)
    end = run(rounds=rounds)[-1]["x"]
    fresh = run(rounds=[[arrival._replace(age=0) for arrival in buffer] for buffer in rounds])[-1]["x"]
    shorter = run(rounds=[[a._replace(batches=a.batches[:1]) for a in buffer] for buffer in rounds])[-1]["x"]
    assert literal.norm(end - fresh) > 1e-3
    assert literal.norm(end - shorter) > 1e-3


# ---- statistics of the draws ----------------------------------------------------------------------------------------

CLIENTS = 13


def planner(seed: int, **settings: Any) -> ff.plan.Planner:
    """Clients of one example: as many steps as epochs."""
    template = PlanTemplate(
        sizes=torch.ones(CLIENTS, dtype=torch.int64),
        local=LocalWork(epochs=1, batch_size=1),
        client=ff.clients.SGD(lr=0.1),
        server_lr=1.0,
        seed=seed,
    )
    return ff.timing.ClientCentric(**settings).begin(template, 0)


@cache
def plans(rounds: int, seed: int) -> list[ff.plan.RoundPlan]:
    """Of the rounds from the tenth on: ages 0 to 3, 1 to 5 epochs."""
    made = planner(seed, buffer=4, max_delay=3, epochs=2.5, randomness=2)
    found = [made.plan(t, Tuning()) for t in range(10, 10 + rounds)]
    return [plan for plan in found if plan is not None]


def ages_of(plan: ff.plan.RoundPlan) -> list[int]:
    assert plan.age is not None
    ages: list[int] = plan.age.tolist()
    return ages


def pvalue(draws: list[int], values: range) -> float:
    """Of the draws being uniform over the values."""
    assert set(draws) == set(values)
    return float(stats.chisquare([draws.count(value) for value in values]).pvalue)


def test_ages_epochs_and_clients_are_uniform() -> None:
    found = plans(1000, seed=21)
    assert all(len(set(plan.cohort.tolist())) == 4 for plan in found)
    assert pvalue([age for plan in found for age in ages_of(plan)], range(4)) > 0.01
    assert pvalue([n for plan in found for n in plan.steps.tolist()], range(1, 6)) > 0.01
    assert pvalue([client for plan in found for client in plan.cohort.tolist()], range(CLIENTS)) > 0.01


@pytest.mark.parametrize("round", [0, 1, 2, 4])
def test_ages_are_no_older_than_the_run(round: int) -> None:
    """Uniform over 0 .. min(T, t), over many seeds."""
    drawn = []
    for seed in range(300):
        plan = planner(seed, buffer=3, max_delay=3).plan(round, Tuning())
        assert plan is not None
        drawn += ages_of(plan)
    assert set(drawn) == set(range(min(3, round) + 1))
    assert round == 0 or pvalue(drawn, range(min(3, round) + 1)) > 0.01


def test_draws_are_independent() -> None:
    """Of ages and epochs of a client, of two clients' ages, of a client's age in two rounds: tables of counts."""
    found = plans(1000, seed=21)
    ages = np.array([ages_of(plan) for plan in found])
    epochs = np.array([plan.steps.tolist() for plan in found]) - 1
    for one, other in (
        (ages.reshape(-1), epochs.reshape(-1)),
        (ages[:, 0], ages[:, 1]),
        (ages[1:, 0], ages[:-1, 0]),
        (epochs[:, 0], epochs[:, 2]),
        (epochs[1:, 1], epochs[:-1, 1]),
    ):
        table = np.zeros((5, 5))
        np.add.at(table, (one, other), 1)
        assert stats.chi2_contingency(table[table.any(1)][:, table.any(0)]).pvalue > 0.01


def test_the_same_seed_draws_the_same_and_another_does_not() -> None:
    def told(found: list[ff.plan.RoundPlan]) -> list[Any]:
        return [(plan.cohort.tolist(), ages_of(plan), plan.steps.tolist()) for plan in found]

    assert told(plans(20, seed=1)) == told(plans(20, seed=1))
    assert told(plans(20, seed=1)) != told(plans(20, seed=2))


def test_epochs_may_be_drawn_for_a_round_at_once() -> None:
    """Clients of 8 examples in batches of 4: two steps an epoch. All of a round alike, and all numbers as likely."""
    template = PlanTemplate(
        torch.full((20,), 8), LocalWork(epochs=1, batch_size=4), ff.clients.SGD(lr=0.1), 1.0, seed=3
    )
    planner = ff.timing.ClientCentric(epochs_per="round").begin(template, 0)
    drawn = Counter[int]()
    for number in range(1200):
        plan = planner.plan(number, Tuning())
        assert plan is not None
        (steps_of_all,) = set(plan.steps.tolist())
        drawn[steps_of_all] += 1
    assert sorted(drawn) == [2, 4, 6, 8, 10, 12]
    assert stats.chisquare(list(drawn.values())).pvalue > 1e-3
