"""Cohorts with replacement, by shares, of clients that are not always there: their chances against counted ones."""

from __future__ import annotations

import math
from collections import Counter
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import fastfed as ff
from fastfed.plan import Cyclic, Dirichlet, LogNormal, PlanTemplate, Sampled, Sinusoidal, Tuning
from fastfed.plan.round import LocalWork
from fastfed.plan.shares import shares_of

ROUNDS = 4000
LEAST = 1e-4  # of a p-value: there are a dozen such tests here, and what is drawn wrongly is far below
SHARES = (1.0, 2.0, 0.0, 3.0, 4.0)


def cohorts(who: Sampled, clients: int = 5, rounds: int = ROUNDS, seed: int = 1) -> list[tuple[int, ...]]:
    return [tuple(who.cohort(round, clients, seed).tolist()) for round in range(rounds)]


def assert_as_likely(found: list[tuple[int, ...]], chances: dict[tuple[int, ...], float]) -> None:
    counts = Counter(found)
    assert set(counts) <= set(chances)
    assert math.isclose(sum(chances.values()), 1)
    observed, expected = zip(*((counts[key], len(found) * chance) for key, chance in chances.items()), strict=True)
    assert stats.chisquare(observed, expected).pvalue > LEAST


def test_a_plain_sample_is_that_of_a_number() -> None:
    assert torch.equal(Sampled(3).cohort(4, 9, 2), ff.plan.Uniform(3).cohort(4, 9, 2))


def test_with_replacement_every_draw_is_of_everybody() -> None:
    """Two draws among five: 1/25 for twice the same, 2/25 for any two."""
    pairs = {(i, j): (1 if i == j else 2) / 25 for i in range(5) for j in range(i, 5)}
    assert_as_likely(cohorts(Sampled(2, replacement=True)), pairs)


def test_with_replacement_more_may_be_drawn_than_there_are() -> None:
    who = Sampled(12, replacement=True)
    who.check(5)
    assert all(len(cohort) == 12 for cohort in cohorts(who, rounds=20))


def test_with_replacement_by_shares() -> None:
    p = np.array(SHARES) / sum(SHARES)
    pairs = {(i, j): p[i] * p[j] * (1 if i == j else 2) for i in range(5) for j in range(i, 5) if p[i] * p[j] > 0}
    assert_as_likely(cohorts(Sampled(2, shares=SHARES, replacement=True)), pairs)


def test_without_replacement_one_is_drawn_after_the_other() -> None:
    """Successive draws: the second by the shares that are left."""
    p = np.array(SHARES) / sum(SHARES)
    pairs: Counter[tuple[int, ...]] = Counter()
    for i, j in permutations(np.flatnonzero(p).tolist(), 2):
        pairs[min(i, j), max(i, j)] += p[i] * p[j] / (1 - p[i])
    assert_as_likely(cohorts(Sampled(2, shares=SHARES)), dict(pairs))


def test_dirichlet_shares_have_its_marginals() -> None:
    """The share of one of n clients is Beta(alpha, (n - 1) alpha)."""
    found = []
    for seed in range(800):
        shares = shares_of(Dirichlet(0.7), 6, seed)
        found.append(shares[2] / shares.sum())
    assert stats.kstest(found, stats.beta(0.7, 5 * 0.7).cdf).pvalue > LEAST


def test_lognormal_shares_have_normal_logarithms() -> None:
    shares = np.array([shares_of(LogNormal(1.5), 6, seed) for seed in range(800)])
    differences = np.log(shares[:, 1]) - np.log(shares[:, 4])
    assert stats.kstest(differences, stats.norm(scale=1.5 * math.sqrt(2)).cdf).pvalue > LEAST


@pytest.mark.filterwarnings("error")
def test_shares_near_nothing_are_no_more_than_unlikely() -> None:
    tiny = [5e-324, 5e-324, 1.0, 1.0, 1.0]
    assert set(cohorts(Sampled(3, shares=tiny), rounds=20)) == {(2, 3, 4)}
    assert {one for found in cohorts(Sampled(4, shares=tiny)) for one in found} == set(range(5))


def test_cyclic_windows_are_those_of_their_beginnings() -> None:
    who = Sampled(availability=Cyclic(4, 2, begin=(0, 1, 3)))
    there = [set(cohort) for cohort in cohorts(who, clients=3, rounds=9)]
    assert there == [{0, 2}, {0, 1}, {1}, {2}, {0, 2}, {0, 1}, {1}, {2}, {0, 2}]


def test_drawn_windows_open_in_every_round_alike() -> None:
    who = Sampled(availability=Cyclic(5, 1))
    sizes = [len(cohort) for cohort in cohorts(who, clients=3000, rounds=5)]
    assert sum(sizes) == 3000
    assert stats.chisquare(sizes).pvalue > LEAST
    assert cohorts(who, clients=3000, rounds=10)[5:] == cohorts(who, clients=3000, rounds=5)


@pytest.mark.parametrize("phase", [0.0, (0.0, 0.25, 0.5)])
def test_sinusoidal_availability_follows_its_cosine(phase: Any) -> None:
    who = Sampled(availability=Sinusoidal(8, low=0.1, high=0.9, phase=phase))
    counts = np.zeros((8, 3))
    for round, cohort in enumerate(cohorts(who, clients=3, rounds=8 * 600)):
        counts[round % 8, list(cohort)] += 1
    turns = np.arange(8)[:, None] / 8 + np.broadcast_to(phase, 3)
    chances = 0.5 + 0.4 * np.cos(2 * np.pi * turns)
    z = (counts - 600 * chances) / np.sqrt(600 * chances * (1 - chances))
    assert stats.chi2(24).sf((z**2).sum()) > LEAST


def test_probabilities_and_functions_say_who_is_there() -> None:
    given = cohorts(Sampled(availability=(0.0, 1.0, 0.25)), clients=3)
    assert all(1 in cohort and 0 not in cohort for cohort in given)
    assert stats.binomtest(sum(2 in cohort for cohort in given), ROUNDS, 0.25).pvalue > LEAST
    by_function = Sampled(availability=lambda round, client: float(client == round % 3))
    assert cohorts(by_function, clients=3, rounds=4) == [(0,), (1,), (2,), (0,)]


def test_the_cohort_is_drawn_from_those_who_are_there() -> None:
    there = (0.0, 1.0, 1.0, 0.0, 1.0)
    assert_as_likely(cohorts(Sampled(2, availability=there)), {(1, 2): 1 / 3, (1, 4): 1 / 3, (2, 4): 1 / 3})
    assert set(cohorts(Sampled(4, availability=there), rounds=20)) == {(1, 2, 4)}
    assert set(cohorts(Sampled(4, availability=(0.0,) * 5), rounds=3)) == {()}
    assert all(set(c) <= {1, 2, 4} for c in cohorts(Sampled(6, availability=there, replacement=True), rounds=50))


def test_the_draws_are_keyed_by_seed_and_round() -> None:
    who = Sampled(4, LogNormal(1.0), Sinusoidal(6, low=0.3), replacement=True)
    assert cohorts(who, 30, 9) == cohorts(who, 30, 9)
    assert cohorts(who, 30, 9) != cohorts(who, 30, 9, seed=2)
    assert len(set(cohorts(who, 30, 9))) > 5


def test_every_participation_has_a_key_of_its_own() -> None:
    template = PlanTemplate(torch.full((4,), 8), LocalWork(epochs=1), ff.clients.SGD(lr=0.1), 1.0)
    plan = template.plan(0, torch.tensor([0, 2, 2, 2, 3, 3]), Tuning())
    assert plan.stream_ids.tolist() == [0, 2, 6, 10, 3, 7]
    once = template.plan(0, torch.tensor([0, 2, 3]), Tuning())
    assert once.keys is None
    assert once.stream_ids.tolist() == [0, 2, 3]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 0}, "size: must be a whole number >= 1"),
        ({"size": 7}, "size: must be at most the number of clients, 4, got 7"),
        ({"size": 1 << 30, "replacement": True}, "size: with replacement, size \\* clients must be below"),
        ({"size": 2, "replacement": 1}, "replacement: must be True or False"),
        ({"replacement": True}, "replacement: would be ignored"),
        ({"shares": (1.0,) * 4}, "shares: would be ignored"),
        ({"size": 2, "shares": (1.0, 2.0)}, "shares: must be one for each of the 4"),
        ({"size": 2, "shares": 3.0}, "shares: must be one per client, Dirichlet or LogNormal"),
        ({"size": 2, "shares": (0.0,) * 4}, "shares: must be > 0 for at least one"),
        ({"size": 2, "shares": (1.0, -1.0, 1.0, 1.0)}, "shares of client 1: must be a number >= 0"),
        ({"size": 2, "availability": 0.5}, "availability: must be one probability per client, Cyclic"),
        ({"size": 2, "availability": (0.5, 1.5, 1.0, 0.0)}, "availability: must be probabilities, got 1.5"),
        ({"size": 2, "availability": (0.5,)}, "availability: must be one for each"),
        ({"size": 2, "availability": lambda round, client: 2.0}, "availability: must give a probability, got 2.0 for"),
    ],
)
def test_bad_samples_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampled(**settings).cohort(0, 4, 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dirichlet(0.0), "alpha: must be a number > 0"),
        (lambda: LogNormal(-1.0), "spread: must be a number > 0"),
        (lambda: Cyclic(4, 4), "length: must be less than the period, 4 rounds"),
        (lambda: Cyclic(4, 2, begin=4), "begin: must be whole numbers below the period"),
        (lambda: Cyclic(4, 2, begin=0.5), "begin: must be whole numbers below the period"),
        (lambda: Sinusoidal(4, low=0.5, high=0.4), "high: must be above low"),
        (lambda: Sinusoidal(4, high=1.2), "high: must be above low, 0, and at most 1"),
        (lambda: Sinusoidal(4, phase=1.0), "phase: must be in"),
    ],
)
def test_bad_shares_and_availabilities_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
