"""The plan room: cohorts with the right statistics, local work, schedules; bad settings are refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from scipy import stats

import fastfed as ff
from fastfed.plan import LocalWork, PlanTemplate, SyncPlanner, Tuning, participation


def planner(**changes: object) -> SyncPlanner:
    settings: dict[str, object] = {
        "sizes": torch.tensor([10, 20, 0, 7]),
        "participation": ff.plan.Given(((0, 1, 2, 3),)),
        "local": LocalWork(epochs=1, batch_size=4),
        "client": ff.clients.SGD(lr=0.5),
        "server_lr": 2.0,
    }
    settings |= changes
    who = settings.pop("participation")
    return SyncPlanner(PlanTemplate(**settings), who)  # type: ignore[arg-type]


def test_uniform_cohorts_are_sorted_distinct_and_keyed_by_seed_and_round() -> None:
    sample = ff.plan.Uniform(7)
    first = sample.cohort(0, 30, seed=5)
    assert first.dtype is torch.int64
    assert first.tolist() == sorted(set(first.tolist()))
    assert len(first) == 7
    assert torch.equal(first, sample.cohort(0, 30, seed=5))
    assert not torch.equal(first, sample.cohort(1, 30, seed=5))
    assert not torch.equal(first, sample.cohort(0, 30, seed=6))


def test_uniform_cohorts_take_every_subset_alike() -> None:
    """Chi-square over all 10 pairs of 5 clients."""
    counts: dict[tuple[int, ...], int] = {}
    for round in range(4000):
        pair = tuple(ff.plan.Uniform(2).cohort(round, 5, seed=1).tolist())
        counts[pair] = counts.get(pair, 0) + 1
    assert len(counts) == 10
    assert stats.chisquare(list(counts.values())).pvalue > 0.01


def test_uniform_takes_everyone_and_no_more() -> None:
    assert ff.plan.Uniform(5).cohort(3, 5, seed=0).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="cohort: must be at most the number of clients, 5"):
        ff.plan.Uniform(6).cohort(0, 5, seed=0)


def test_a_million_clients_are_reached_to_the_last() -> None:
    cohorts = torch.cat([ff.plan.Uniform(2000).cohort(round, 1_000_000, seed=2) for round in range(20)])
    assert stats.kstest(cohorts.numpy() / 1e6, "uniform").pvalue > 0.01
    assert int((cohorts % 2).sum()) == pytest.approx(20_000, abs=600)  # low bits are random too


def test_poisson_cohorts_have_binomial_sizes() -> None:
    sizes = [len(ff.plan.Poisson(0.2).cohort(round, 50, seed=3)) for round in range(3000)]
    expected = 3000 * stats.binom(50, 0.2).pmf(range(51))
    middle = range(4, 18)
    observed = [sizes.count(k) for k in middle]
    scale = sum(observed) / sum(expected[k] for k in middle)
    assert stats.chisquare(observed, [scale * expected[k] for k in middle]).pvalue > 0.01


def test_given_cohorts_begin_again() -> None:
    given = participation([[3, 1], [2]])
    assert [given.cohort(round, 4, 0).tolist() for round in range(3)] == [[1, 3], [2], [1, 3]]
    assert participation(lambda round: [round, 0]).cohort(2, 4, 0).tolist() == [0, 2]


@pytest.mark.parametrize(
    ("cohort", "message"),
    [
        (0, "cohort: must be a whole number >= 1"),
        ("ten", "cohort: must be a number of clients"),
        ([[1, 1]], "entry 0 must hold different client ids"),
        ([[-1]], "entry 0 must hold different client ids"),
        ([], "cohorts: must hold at least one"),
        ([[1], [9]], "entry 1 has client 9, and there are 4 in all"),
        ([0, 1], "cohort: must be a number of clients"),
        (lambda round: [9], "entry 0 has client 9"),
    ],
)
def test_bad_cohorts_are_refused(cohort: object, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        first_cohort(cohort)


def first_cohort(cohort: object) -> torch.Tensor:
    chosen = participation(cohort)
    chosen.check(4)
    return chosen.cohort(0, 4, 0)


def test_epochs_become_steps_with_a_short_last_batch() -> None:
    assert planner().plan(0, Tuning()).steps.tolist() == [3, 5, 0, 2]
    assert planner(local=LocalWork(epochs=2, batch_size=4)).plan(0, Tuning()).steps.tolist() == [6, 10, 0, 4]


def test_fractions_of_epochs_round_up_to_whole_batches() -> None:
    steps = planner(local=LocalWork(epochs=1.5, batch_size=4)).plan(0, Tuning()).steps
    assert steps.tolist() == [3 + 2, 5 + 3, 0, 2 + 1]  # 5, 10 and 3.5 examples of the second epoch
    tenth = planner(local=LocalWork(epochs=0.1, batch_size=1)).plan(0, Tuning()).steps
    assert tenth.tolist() == [1, 2, 0, 1]


def test_batches_may_cross_the_borders_of_epochs() -> None:
    plan = planner(local=LocalWork(epochs=2, batch_size=4, across_epochs=True)).plan(0, Tuning())
    assert plan.seen is not None
    assert plan.seen.tolist() == [20, 40, 0, 14]
    assert plan.steps.tolist() == [5, 10, 0, 4]


def test_a_small_share_of_an_epoch_is_still_one_example() -> None:
    plan = planner(local=LocalWork(epochs=0.01, batch_size=4, across_epochs=True)).plan(0, Tuning())
    assert plan.seen is not None
    assert plan.seen.tolist() == [1, 1, 0, 1]
    assert plan.steps.tolist() == [1, 1, 0, 1]


def test_steps_for_all_or_one_by_one() -> None:
    assert planner(local=LocalWork(steps=3)).plan(0, Tuning()).steps.tolist() == [3, 3, 3, 3]
    some = planner(local=LocalWork(steps=(1, 2, 3, 4)), participation=ff.plan.Given(((1, 3),)))
    assert some.plan(0, Tuning()).steps.tolist() == [2, 4]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 1, "steps": 1}, "give either epochs or steps"),
        ({}, "give either epochs or steps"),
        ({"epochs": 0}, "epochs: must be > 0"),
        ({"epochs": math.nan}, "epochs: must be > 0"),
        ({"steps": 0}, "steps: must be >= 1"),
        ({"epochs": 1, "batch_size": 0}, "batch_size: must be a whole number >= 1"),
        ({"steps": 2, "across_epochs": True}, "across_epochs: .* needs epochs"),
    ],
)
def test_bad_local_work_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LocalWork(**settings)  # type: ignore[arg-type]


def test_steps_per_client_are_one_per_client() -> None:
    with pytest.raises(ValueError, match="one for each of the 4 clients"):
        LocalWork(steps=(1, 2, 3)).check(4)
    LocalWork(steps=(1, 2, 3, 4)).check(4)


def test_schedules_of_the_papers() -> None:
    staircase = ff.schedules.Staircase(0.1, every=3)
    assert [staircase(round) for round in (0, 2, 3, 6)] == pytest.approx([1, 1, 0.1, 0.01])
    drops = ff.schedules.Drops(100)
    assert [drops(round) for round in (0, 49, 50, 74, 75, 99)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ff.schedules.Staircase(every=2.5), "every: must be a whole number >= 1"),  # type: ignore[arg-type]
        (lambda: ff.schedules.Staircase(factor=0.0), "factor > 0"),
        (lambda: ff.schedules.Drops(0), "rounds: must be >= 1"),
        (lambda: ff.schedules.Drops(9, at=0.5), "at: must be a tuple of shares"),  # type: ignore[arg-type]
        (lambda: ff.schedules.Drops(9, at=(50.0,)), "at: must be a tuple of shares"),
    ],
)
def test_bad_schedules_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_schedules_multiply_both_learning_rates() -> None:
    plan = planner(client_schedule=lambda round: 1 / (1 + round), server_schedule=ff.schedules.Staircase(0.5, 1)).plan(
        3, Tuning()
    )
    assert plan.lr is not None
    assert plan.lr.tolist() == [0.125] * 4
    assert plan.server_lr == 0.25
    assert planner().plan(3, Tuning()).lr is None
    with pytest.raises(ValueError, match="client_schedule: must give a finite factor >= 0, got nan in round 2"):
        planner(client_schedule=lambda round: math.nan).plan(2, Tuning())


def test_a_tuner_may_change_rate_epochs_and_batch() -> None:
    plan = planner().plan(0, Tuning(lr=0.2, epochs=2.0, batch_size=4.6))
    assert plan.batch_size == 5
    assert plan.steps.tolist() == [4, 8, 0, 4]
    assert plan.lr is not None
    assert plan.lr.tolist() == [0.2] * 4


def test_a_late_client_trains_by_the_schedule_of_the_round_in_which_it_started() -> None:
    template = planner(client_schedule=lambda round: 1 / (1 + round)).template
    plan = template.plan(5, torch.tensor([0, 1, 3]), Tuning(), age=torch.tensor([0, 3, 5]))
    assert plan.lr is not None
    assert plan.lr.tolist() == [0.5 / 6, 0.5 / 3, 0.5]
