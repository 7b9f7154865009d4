"""Differential privacy against its pseudo-code, with the noise of the public stream; and the statistics of that noise.

Cohorts are read from the plan as draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import fastfed as ff
from fastfed.purposes import Purpose
from fastfed.train.threads import one_thread_per_operation

from ..simulation import literal
from ..simulation.literal import Array, Server, Snapshot
from ..simulation.literal_async import Clients
from ..simulation.literal_compare import (
    NETWORK,
    SEED,
    SIZES,
    examples,
    federation,
    flat,
    gaps,
    same_in_both,
    shuffled,
    simulation,
    start_model,
    steps,
)
from ..simulation.literal_uplink import Private, Uplink

ROUNDS, BATCH, STEPS = 7, 3, 2
DELTA = 0.01

Privacy, Quantile = ff.privacy.Privacy, ff.privacy.Quantile


@dataclass(frozen=True)
class Case:
    """`privacy` and `rate` of the cohorts, `settings` besides; `server` and `method` are their twin."""

    privacy: ff.privacy.Privacy
    rate: float
    settings: dict[str, Any] = field(default_factory=dict)
    server: dict[str, Any] = field(default_factory=dict)
    method: dict[str, Any] = field(default_factory=dict)
    poisoned: int | None = None

    def simulated(self) -> dict[str, Any]:
        defaults = {"client": ff.clients.SGD(lr=0.3), "weights": "uniform", "steps": STEPS, "batch_size": BATCH}
        who = {"cohort": ff.plan.Poisson(self.rate), "privacy": self.privacy}
        return {**defaults, **who, "fed": federation(self.poisoned), **self.settings}

    def twin(self, packing: ff.Packing) -> Private:
        given, expected = self.privacy, self.rate * len(SIZES)
        adaptive: dict[str, Any] = {}
        if given.adaptive is not None:
            std = expected / 20 if given.adaptive.count_noise is None else given.adaptive.count_noise
            adaptive = {"quantile": given.adaptive.quantile, "rate": given.adaptive.lr, "count_std": std}
        return Private(
            given.clip, given.noise, expected, partial(normals, packing), **adaptive, count_normal=count_normal
        )


def normals(packing: ff.Packing, round: int) -> Array:
    """The public stream's, as the packed vector holds them."""
    drawn = ff.kernels.normal(packing.size, ff.kernels.Stream(SEED, Purpose.NOISE, round))
    return flat(packing, drawn)


def count_normal(round: int) -> float:
    return float(ff.kernels.normal(1, ff.kernels.Stream(SEED, Purpose.NOISE, round, step=1)))


FEDADAM = {"server": ff.servers.FedAdam(lr=0.05, tau=0.02)}
FEDADAM_TWIN = {"rule": "adam", "lr": 0.05, "tau": 0.02}
RARE = 0.07  # nobody comes in three of the rounds, and the client without examples alone in one

CASES = {
    "clipped and noised": Case(Privacy(clip=0.3, noise=0.8, delta=DELTA), 0.4),
    "FedAdam": Case(Privacy(clip=0.3, noise=0.8, delta=DELTA), 0.4, FEDADAM, FEDADAM_TWIN),
    "hardly clipped": Case(
        Privacy(clip=1.0, noise=0.1, delta=DELTA), 1.0, {"server": ff.servers.FedAvg(lr=0.7)}, {"lr": 0.7}
    ),
    "per step": Case(
        Privacy(clip=0.1, noise=0.8, delta=DELTA), 0.4, {"divide_by_steps": True}, method={"divide_by_steps": True}
    ),
    "everyone": Case(Privacy(clip=0.3, noise=0.8, delta=DELTA), 1.0),
    "nobody at times": Case(Privacy(clip=0.3, noise=0.8, delta=DELTA), RARE, FEDADAM, FEDADAM_TWIN),
    "clipped only": Case(Privacy(clip=0.3, noise=0.0, delta=DELTA), 0.4, FEDADAM, FEDADAM_TWIN),
    "clipped only, nobody at times": Case(Privacy(clip=0.3, noise=0.0, delta=DELTA), RARE, FEDADAM, FEDADAM_TWIN),
    "neither": Case(Privacy(clip=None, noise=0.0, delta=DELTA), 0.4),
    "a poisoned client": Case(Privacy(clip=0.3, noise=0.8, delta=DELTA), 0.4, poisoned=8),
    "adaptive": Case(Privacy(clip=0.3, noise=0.3, delta=DELTA, adaptive=Quantile()), 1.0),
    "adaptive, low quantile": Case(
        Privacy(clip=0.9, noise=0.5, delta=DELTA, adaptive=Quantile(quantile=0.2, lr=0.6, count_noise=0.7)),
        0.6,
        FEDADAM,
        FEDADAM_TWIN,
    ),
    "adaptive, per step": Case(
        Privacy(clip=0.2, noise=0.5, delta=DELTA, adaptive=Quantile(quantile=0.7, lr=0.4, count_noise=0.5)),
        0.6,
        {"divide_by_steps": True},
        method={"divide_by_steps": True},
    ),
    "adaptive, no noise": Case(
        Privacy(clip=0.2, noise=0.0, delta=DELTA, adaptive=Quantile(quantile=0.6, lr=0.8, count_noise=0.0)), 0.6
    ),
    "adaptive, nobody at times": Case(
        Privacy(clip=0.2, noise=0.8, delta=DELTA, adaptive=Quantile(quantile=0.6, lr=0.8, count_noise=0.45)), RARE
    ),
    "adaptive, a poisoned client": Case(
        Privacy(clip=0.4, noise=0.5, delta=DELTA, adaptive=Quantile(count_noise=0.4)), 0.6, poisoned=8
    ),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with one_thread_per_operation():
        yield


@cache
def cohorts(rate: float) -> list[list[int]]:
    sim = simulation(torch.float64, "eager", {**CASES["everyone"].simulated(), "cohort": ff.plan.Poisson(rate)})
    plans = [sim.planner.plan(t, sim.tuner.tuning) for t in range(ROUNDS)]
    return [plan.cohort.tolist() for plan in plans if plan is not None]


def run_literally(case: Case, dtype: str, packing: ff.Packing) -> tuple[list[Snapshot], Private]:
    clients = Clients(NETWORK, examples(case.poisoned), partial(literal.SGD, lr=0.3))
    private = case.twin(packing)
    batches = partial(shuffled, batch_size=BATCH, steps=STEPS)
    uplink = Uplink(clients, Server(**case.server), batches, private=private, **case.method)
    with np.errstate(invalid="ignore"):  # the poisoned client's
        return uplink.run(start_model(dtype), cohorts(case.rate))[0], private


@pytest.mark.parametrize("name", CASES)
def test_private_rounds_are_their_pseudo_code(name: str) -> None:
    case = CASES[name]
    same_in_both(case.simulated(), lambda dtype, packing: run_literally(case, dtype, packing)[0], ROUNDS)


@pytest.mark.parametrize("name", ["FedAdam", "adaptive, low quantile"])
def test_rows_tell_bound_and_noise(name: str) -> None:
    """Those of the round itself, not of the next."""
    case = CASES[name]
    sim = simulation(torch.float64, "eager", case.simulated())
    found, private = run_literally(case, "float64", sim.packing)
    bounds = [case.privacy.clip, *[float(snapshot["clip"][0]) for snapshot in found]]
    for t, _ in enumerate(steps(sim, ROUNDS)):
        row = sim.history.rounds[t]
        private.clip = bounds[t]
        assert (row["clip"], row["noise_std"]) == pytest.approx((bounds[t], private.std), rel=1e-10)


def test_the_cases_are_what_their_names_say() -> None:
    assert cohorts(RARE).count([]) == 3
    assert [3] in cohorts(RARE)
    clipped = {
        name: run_literally(CASES[name], "float64", packing())[0][-1]["x"] for name in ("neither", "clipped only")
    }
    assert literal.norm(clipped["neither"] - clipped["clipped only"]) > 0.1
    for name in ("adaptive", "adaptive, low quantile", "adaptive, per step", "adaptive, no noise"):
        trace = [float(snapshot["clip"][0]) for snapshot in run_literally(CASES[name], "float64", packing())[0]]
        assert max(trace) / min(trace) > 1.1, f"{name}: {trace}"


def packing() -> ff.Packing:
    return simulation(torch.float64, "eager", CASES["everyone"].simulated()).packing


# ---- statistics of the noise ----------------------------------------------------------------------------------------

CLIP, SIGMA, RATE, MANY = 0.6, 1.3, 0.25, 60


@cache
def moves(seed: int) -> tuple[Array, Array]:
    """(rounds, d): by how much clients that learn nothing move the model; and how many of them there were."""
    settings = {
        **CASES["everyone"].simulated(),
        "client": ff.clients.SGD(lr=0.0),
        "steps": 1,
        "cohort": ff.plan.Poisson(RATE),
        "privacy": Privacy(clip=CLIP, noise=SIGMA, delta=DELTA),
        "seed": seed,
    }
    sim = simulation(torch.float32, "native", settings)
    models = [sim.params.clone()]
    for _ in steps(sim, MANY):
        models.append(sim.params.clone())
        assert not gaps(sim.packing, sim.params).any()
    found = np.diff(np.array([flat(sim.packing, model) for model in models]), axis=0)
    return found, np.array([row["clients"] for row in sim.history])


def test_noise_is_normal_with_the_deviation_it_should_have() -> None:
    """sigma c / (q N), whoever came: as wide in rounds without anyone, and in those of many."""
    noise, came = moves(31)
    std = SIGMA * CLIP / (RATE * len(SIZES))
    assert stats.kstest(noise.reshape(-1) / std, "norm").pvalue > 0.01
    assert stats.ttest_1samp(noise.reshape(-1), 0.0).pvalue > 0.01
    assert 0 in came
    assert came.max() >= 4
    for rounds in (came == 0, came == 2, came >= 4):
        some = noise[rounds].reshape(-1) / std
        lower, upper = stats.chi2(len(some)).interval(0.99)
        assert lower < float(some @ some) < upper


def test_noise_is_independent_from_round_to_round_and_place_to_place() -> None:
    noise, _ = moves(31)
    for one, other in (
        (noise[1:], noise[:-1]),
        (noise[2:], noise[:-2]),
        (noise[:, 1:], noise[:, :-1]),
        (noise[:, 8:], noise[:, :-8]),
        (noise, moves(32)[0]),
    ):
        assert stats.pearsonr(one.reshape(-1), other.reshape(-1)).pvalue > 0.01
    assert len(np.unique(noise.round(7))) > 0.98 * noise.size  # and nothing is drawn twice


def test_a_client_moves_the_sum_by_no_more_than_the_bound() -> None:
    """What a single client sends, whatever it is, has norm c / (q N) at most: here it is far larger before."""
    settings = {
        **CASES["everyone"].simulated(),
        "client": ff.clients.SGD(lr=50.0),
        "cohort": ff.plan.Poisson(0.1),
        "privacy": Privacy(clip=CLIP, noise=0.0, delta=DELTA),
    }
    sim = simulation(torch.float64, "eager", settings)
    before, alone = sim.params.clone(), 0
    for _ in steps(sim, 12):
        moved, row = float((sim.params - before).norm()), sim.history.rounds[-1]
        if row["counted"] == 1:
            alone += 1
            assert row["delta_norm"] > CLIP
            assert moved == pytest.approx(CLIP / (0.1 * len(SIZES)), rel=1e-9)
        assert moved <= row["counted"] * CLIP / (0.1 * len(SIZES)) * (1 + 1e-9)
        before = sim.params.clone()
    assert alone >= 3
