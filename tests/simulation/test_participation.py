"""Clients that are drawn twice, deltas per epoch, random epochs on a clock: each against runs that do without."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy import stats

import fastfed as ff
from fastfed.plan.events import EventQueue

from .support import CLIENTS, simulation, small_federation

EXECUTORS = ("native", "batched", "eager")
every_executor = pytest.mark.parametrize("executor", EXECUTORS)
AVERAGING: dict[str, Any] = {"server": ff.servers.FedAvg(), "weights": "uniform"}


def copies(times: int) -> ff.data.Federated:
    """The small federation so many times over: client i + k * CLIENTS has the rows of client i."""
    fed = small_federation()
    sizes = fed.sizes.repeat(times)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    return replace(fed, rows=fed.rows.repeat(times), offsets=offsets)


def turns(cohort: list[int]) -> list[int]:
    """Whom the participations of a cohort are in `copies`."""
    return [client + CLIENTS * cohort[:place].count(client) for place, client in enumerate(cohort)]


@every_executor
@pytest.mark.parametrize("weights", ["uniform", "examples"])
def test_a_client_drawn_twice_is_two_with_the_same_examples(executor: str, weights: str) -> None:
    who = ff.plan.Sampled(9, replacement=True)
    drawn = [who.cohort(round, CLIENTS, 11).tolist() for round in range(3)]
    assert all(len(set(cohort)) < len(cohort) for cohort in drawn)
    settings = {"server": ff.servers.FedAvg(), "weights": weights, "executor": executor}
    sim = simulation(cohort=who, **settings)
    twin = simulation(copies(9), cohort=[turns(cohort) for cohort in drawn], **settings)
    for _ in drawn:
        row, other = sim.step(), twin.step()
        assert row["clients"] == other["clients"] == 9
        assert row["gradients"] == other["gradients"]
        torch.testing.assert_close(sim.params, twin.params, rtol=1e-5, atol=1e-6)


def test_repeated_clients_run_on_batches_of_their_own() -> None:
    """Twice the same run would leave the mean of two equal deltas: that of the client drawn once."""
    once = simulation(cohort=[[7]], **AVERAGING)
    twice = simulation(cohort=_Both(), **AVERAGING)
    once.step(), twice.step()
    assert not torch.allclose(once.params, twice.params)


class _Both:
    """Client 7, twice."""

    replacement = True

    def cohort(self, round: int, clients: int, seed: int) -> torch.Tensor:
        return torch.tensor([7, 7])

    def check(self, clients: int) -> None:
        """It is there."""


def test_messages_of_repeated_clients_are_rounded_each_on_its_own() -> None:
    settings = {**AVERAGING, "compression": ff.compression.Int8(feedback=False)}
    who = ff.plan.Sampled(9, replacement=True)
    drawn = who.cohort(0, CLIENTS, 11).tolist()
    sim, twin = simulation(cohort=who, **settings), simulation(copies(9), cohort=[turns(drawn)], **settings)
    sim.step(), twin.step()
    torch.testing.assert_close(sim.params, twin.params, rtol=1e-5, atol=1e-6)


# ---- deltas per epoch -----------------------------------------------------------------------------------------------


def looked_at(examples: int, steps: int, batch: int) -> int:
    """How many examples a client has seen after so many batches, the last of an epoch short."""
    seen = at = 0
    for _ in range(steps):
        taken = min(batch, examples - at)
        seen, at = seen + taken, (at + taken) % examples
    return seen


@every_executor
@pytest.mark.parametrize("length", [{"epochs": 3}, {"epochs": 0.5}, {"steps": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]}])
def test_deltas_are_divided_by_how_often_examples_were_seen(executor: str, length: dict[str, Any]) -> None:
    cohort = [0, 3, 8, 11]
    settings = {"epochs": None, **length, **AVERAGING, "executor": executor}
    whole = simulation(cohort=[cohort], divide_by_epochs=True, **settings)
    start, sizes = whole.params.clone(), whole.fed.sizes.tolist()
    whole.step()
    expected = torch.zeros_like(start)
    for client in cohort:
        alone = simulation(cohort=[[client]], **settings)
        steps = alone.step()["steps"]
        epochs = looked_at(sizes[client], steps, 7) / sizes[client]
        expected += (alone.params - start) / epochs / len(cohort)
    torch.testing.assert_close(whole.params - start, expected, rtol=1e-4, atol=1e-6)


def test_a_median_is_of_deltas_per_epoch() -> None:
    settings = {**AVERAGING, "aggregation": ff.aggregate.Median()}
    halves = simulation(cohort=[[3, 8, 11]], epochs=2, divide_by_epochs=True, server=ff.servers.FedAvg(lr=2.0),
                        weights="uniform", aggregation=ff.aggregate.Median())  # fmt: skip
    plain = simulation(cohort=[[3, 8, 11]], epochs=2, **settings)
    halves.step(), plain.step()
    torch.testing.assert_close(halves.params, plain.params, rtol=1e-4, atol=1e-6)


def test_client_centric_takes_what_its_timing_does() -> None:
    given = {"epochs_per": "round", "shares": ff.plan.LogNormal(1.0), "replacement": True}
    made = ff.methods.client_centric("sgd", client_lr=0.1, server_lr=1.0, **given)
    assert {name: getattr(made["timing"], name) for name in given} == given
    assert (made["divide_by_steps"], made["divide_by_epochs"]) == (True, False)
    by_epochs = ff.methods.client_centric("sgd", client_lr=0.1, server_lr=1.0, divide_by_epochs=True)
    assert (by_epochs["divide_by_steps"], by_epochs["divide_by_epochs"]) == (False, True)


def test_client_centric_rounds_are_of_those_who_are_there() -> None:
    method = ff.methods.client_centric(
        "sgd", client_lr=0.1, server_lr=1.0, buffer=4, availability=ff.plan.Cyclic(3, 1, begin=[0] * 9 + [1] * 3)
    )
    sim = simulation(cohort=None, **{**method, "epochs": None})
    rows = [sim.step() for _ in range(6)]
    assert [row["clients"] for row in rows] == [4, 3, 0, 4, 3, 0]
    assert [row["changed"] for row in rows] == [True, True, False, True, True, False]


# ---- random epochs on a clock ---------------------------------------------------------------------------------------

ONE_AT_A_TIME: dict[str, Any] = {"concurrency": 1, "buffer": 1}


def buffered(**settings: Any) -> ff.Simulation:
    method = ff.methods.fedbuff(0.1, **settings)
    return simulation(cohort=None, **{**method, "epochs": None})


def test_the_clock_and_the_training_mean_the_same_epochs() -> None:
    """One client after the other, a second a step: a round takes as many seconds as it has steps."""
    sim = buffered(**ONE_AT_A_TIME, epochs=2, randomness=2)
    rows, batches = [sim.step() for _ in range(40)], (sim.fed.sizes + 6) // 7
    clock = 0.0
    for row in rows:
        clock += row["steps"]
        assert row["clock"] == pytest.approx(clock)
    assert len({row["steps"] for row in rows}) > 5
    assert max(row["steps"] for row in rows) <= 4 * int(batches.max())


def test_drawn_epochs_are_all_as_likely() -> None:
    queue = EventQueue(
        torch.ones(6, dtype=torch.float64), concurrency=3, buffer=1, seed=4, epochs=(torch.full((6,), 0.5).double(), 4)
    )
    found = []
    for _ in range(3000):
        queue.advance()
        assert queue.epochs is not None
        found += queue.epochs.tolist()
        queue.commit()
    assert set(found) == {1, 2, 3, 4}
    assert stats.chisquare([found.count(k) for k in (1, 2, 3, 4)]).pvalue > 0.01


def test_at_most_one_epoch_is_one_epoch() -> None:
    drawn = buffered(concurrency=5, buffer=2, epochs=1, randomness=1)
    plain = buffered(concurrency=5, buffer=2)
    for sim in (drawn, plain):
        sim.run(6, evaluate_every=0, progress=False)
    assert drawn.history.without_seconds() == plain.history.without_seconds()
    assert torch.equal(drawn.params, plain.params)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 2}, "randomness: belongs to epochs"),
        ({"epochs": 1, "randomness": 1.5}, "randomness: epochs \\* randomness must be a whole number"),
    ],
)
def test_bad_random_epochs_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        buffered(**ONE_AT_A_TIME, **settings)
