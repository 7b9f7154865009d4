"""FATHOM against its pseudo-code: the model, the smoothed delta, and the learning rate, epochs and batch size that it
finds, after every round."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch

import fastfed as ff
from fastfed.train.threads import one_thread_per_operation

from . import literal
from .literal import Snapshot
from .literal_async import Clients
from .literal_compare import NETWORK, examples, federation, same_in_both, shuffled, simulation, start_model, steps
from .literal_fathom import Fathom

COHORTS = ((0, 4, 8), (1, 3, 6, 7), (2, 5, 8), (0, 1, 2, 3, 4, 5, 6, 7, 8), (6, 8, 0), (3, 4, 7), (0, 2, 6, 8))
ALIKE = ((0, 2, 8),) * 7
ROUNDS = len(COHORTS)

Tuned = ff.tune.Fathom
FAST = {"gamma_lr": 0.3, "gamma_epochs": 0.7, "gamma_batch": 1.5, "alpha": 0.3}


@dataclass(frozen=True)
class Case:
    """`start`: lr, epochs and batch size of the first round."""

    start: tuple[float, float, int]
    tuner: dict[str, Any] = field(default_factory=dict)
    weights: str = "examples"
    cohorts: tuple[tuple[int, ...], ...] = COHORTS
    poisoned: int | None = None

    def settings(self) -> dict[str, Any]:
        lr, epochs, batch_size = self.start
        made = {**ff.methods.fathom(lr, epochs, batch_size), "tuner": Tuned(**self.tuner), "weights": self.weights}
        return {**made, "cohort": self.cohorts, "fed": federation(self.poisoned)}

    def twin(self) -> Fathom:
        given = dict(self.tuner)
        bounds = tuple(given.pop(name, math.inf) for name in ("max_lr", "max_epochs", "max_batch"))
        rounding = {"floor": math.floor, "ceil": math.ceil}[given.pop("counting", "floor")]
        after = given.pop("cosine", "before") == "after"
        return Fathom(*self.start, **given, bounds=bounds, rounding=rounding, weights=self.weights, after=after)


CASES = {
    "the paper's": Case((0.4, 2.0, 2)),
    "large steps": Case((0.4, 2.5, 2), FAST),
    "large learning rate": Case((2.5, 2.0, 3), FAST),  # gradients turn round: E shrinks and B grows
    "rounded up": Case((0.4, 2.5, 2), {**FAST, "counting": "ceil"}),
    "growing": Case((0.1, 2.0, 9), {**FAST, "gamma_batch": 4.0}, cohorts=ALIKE),
    "bounds": Case((0.1, 2.0, 9), {**FAST, "max_lr": 0.17, "max_epochs": 4.0, "max_batch": 9.5}, cohorts=ALIKE),
    "a bound on batches": Case((1.5, 2.5, 2), {**FAST, "max_batch": 2.2}),
    "the authors' code": Case(
        (0.45, 2.0, 2),
        {"counting": "ceil", "max_lr": 0.5, "max_epochs": 10.0, "max_batch": 5096.0, "cosine": "after"},
    ),
    "cosines after the step": Case((0.4, 2.5, 2), {**FAST, "cosine": "after"}),
    "one step each": Case((0.8, 0.4, 9), {**FAST, "gamma_epochs": 0.0}),
    "some of one step": Case((0.8, 1.3, 4), FAST),
    "no memory": Case((0.4, 2.0, 2), {**FAST, "alpha": 0.0}),
    "batches below one": Case((0.4, 3.0, 1), {**FAST, "gamma_epochs": 0.1}, cohorts=((5,), (3, 5)) * 3 + ((5, 7),)),
    "a poisoned client": Case((0.4, 2.0, 2), FAST, poisoned=8),
    "rounds without anyone": Case((0.4, 2.0, 2), FAST, cohorts=((0, 4), (3,), (), (1, 2), (3, 8), (6,), (8, 0))),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with one_thread_per_operation():
        yield


def run_literally(case: Case, dtype: str) -> tuple[Fathom, list[Snapshot]]:
    clients = Clients(NETWORK, examples(case.poisoned), partial(literal.SGD, lr=math.nan))
    twin = case.twin()
    with np.errstate(invalid="ignore"):  # the poisoned client's
        return twin, twin.run(clients, start_model(dtype), case.cohorts, shuffled)


@pytest.mark.parametrize("name", CASES)
def test_fathom_is_its_pseudo_code(name: str) -> None:
    case = CASES[name]
    truth = cache(lambda dtype: run_literally(case, dtype)[1])
    same_in_both(case.settings(), lambda dtype, packing: truth(dtype), ROUNDS)


@pytest.mark.parametrize("name", ["large steps", "bounds"])
def test_rows_tell_what_a_round_used(name: str) -> None:
    """Those found by the round before."""
    case = CASES[name]
    _, found = run_literally(case, "float64")
    used = [case.start, *[(float(s["lr"][0]), float(s["E"][0]), float(s["B"][0])) for s in found]]
    sim = simulation(torch.float64, "eager", case.settings())
    for t, _ in enumerate(steps(sim, ROUNDS)):
        row = sim.history.rounds[t]
        assert (row["client_lr"], row["epochs"], row["batch_size"]) == pytest.approx(used[t], rel=1e-10)
        after = (sim.tuner.tuning.lr, sim.tuner.tuning.epochs, sim.tuner.tuning.batch_size)
        assert after == pytest.approx(used[t + 1], rel=1e-10)


def test_the_cases_move_everything() -> None:
    """Or comparing would prove little: numbers rise and fall, batches change their size, bounds are met."""

    def traces(name: str) -> tuple[Fathom, list[list[float]]]:
        twin, found = run_literally(CASES[name], "float64")
        return twin, [[float(s[number][0]) for s in found] for number in ("lr", "E", "B")]

    twin, (lr, epochs, batch_size) = traces("large steps")
    assert min(twin.least) < 0 < max(twin.least)
    assert lr[0] / min(lr) > 1.3
    assert epochs[0] / min(epochs) > 1.3
    assert {round(b) for b in batch_size} == {2, 3}
    _, (lr, epochs, batch_size) = traces("growing")
    assert lr[-1] > 3 * lr[0]
    assert epochs[-1] > 10 * epochs[0]
    assert {round(b) for b in batch_size} == {5, 6, 7, 8}
    twin, (_, _, batch_size) = traces("one step each")
    assert set(twin.least) == {0.0}
    assert set(batch_size) == {9.0}
    _, (lr, epochs, _) = traces("bounds")
    assert max(lr) == 0.17
    assert max(epochs) == 4.0
    assert max(traces("a bound on batches")[1][2]) == 2.2
    assert min(traces("batches below one")[1][2]) < 0.01


def test_clients_that_count_alike_count_alike_in_every_sum() -> None:
    """p_i is the same in D and in G."""
    case = Case((0.4, 2.5, 2), FAST, weights="uniform")
    same_in_both(case.settings(), lambda dtype, packing: run_literally(case, dtype)[1], ROUNDS)
