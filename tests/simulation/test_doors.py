"""Settings take any object that fits their Protocol: a timing, an exchange and a tuner of a user's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import fastfed as ff
from fastfed.aggregate import Aggregate
from fastfed.plan import Planner, PlanTemplate, Poisson, RoundPlan, SyncPlanner, Tuning
from fastfed.train import Outcome, RoundWork

from .support import simulation, small_federation, small_model


class Everyone:
    """A timing: all clients, every round, at once."""

    buffer = 12
    sets_epochs = False
    has_clock = False

    def begin(self, template: PlanTemplate, bytes_moved: int) -> Planner:
        return SyncPlanner(template, Poisson(1.0))


def test_a_timing_of_ones_own() -> None:
    sim = simulation(cohort=None, timing=Everyone())
    row = sim.step()
    assert row["clients"] == len(sim.fed)
    same = simulation(cohort=Poisson(1.0))
    same.step()
    assert torch.equal(sim.params, same.params)


@dataclass(frozen=True)
class Decayed:
    """An exchange: clients are pushed against the mean of all moves so far, which the server keeps."""

    down = 1
    up = 0
    kept = 0
    split = None
    any_timing = False

    def check(self, client: Any, server: Any) -> None:
        """Takes all."""

    def begin(self, x: Tensor, clients: int) -> Any:
        return _Decaying(x)


class _Decaying:
    keeps_deltas = True

    def __init__(self, x: Tensor) -> None:
        self.mean = torch.zeros_like(x)

    def extras(self, cohort: Tensor, server_state: dict[str, Tensor]) -> dict[str, Any]:
        return {"corrections": self.mean.repeat(len(cohort), 1)}

    def absorb(self, work: RoundWork, outcome: Outcome) -> None:
        assert outcome.deltas is not None
        self.mean = outcome.deltas.mean(0)

    def tensors(self) -> dict[str, Tensor]:
        return {"mean": self.mean}

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.mean.copy_(tensors["mean"])


def test_an_exchange_of_ones_own_is_asked_told_and_saved(tmp_path: Any) -> None:
    plain, sim = simulation(), simulation(exchange=Decayed())
    for one in (plain, sim):
        one.run(rounds=3, evaluate_every=0, progress=False)
    assert not torch.equal(sim.params, plain.params)
    assert bool(sim.exchanger.mean.any())
    sim.save(tmp_path)
    again = ff.Simulation.resume(tmp_path, model=sim.model, fed=sim.fed, exchange=Decayed())
    assert torch.equal(again.exchanger.mean, sim.exchanger.mean)


@dataclass(frozen=True)
class Halving:
    """A tuner: the clients' learning rate halves every round."""

    counting = "floor"

    def check(self, client: Any) -> None:
        """Takes all."""

    def begin(self, x: Tensor, lr: float, epochs: float, batch_size: int) -> Any:
        return _Halving(Tuning(lr, epochs, float(batch_size)))


class _Halving:
    measures_cosine = False
    cosine_includes_step = False

    def __init__(self, tuning: Tuning) -> None:
        self.tuning = tuning

    def tune(self, plan: RoundPlan, outcome: Outcome, aggregate: Aggregate) -> None:
        assert self.tuning.lr is not None
        self.tuning = Tuning(self.tuning.lr / 2, self.tuning.epochs, self.tuning.batch_size)

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Nothing to take over."""


def test_a_tuner_of_ones_own() -> None:
    sim = simulation(tuner=Halving(), client=ff.clients.SGD(lr=0.4))
    sim.run(rounds=3, evaluate_every=0, progress=False)
    assert sim.history.column("client_lr") == [0.4, 0.2, 0.1]
    assert isinstance(sim.planner, SyncPlanner)


class Twice:
    """Client 0 twice, and client 1."""

    def __init__(self, replacement: bool) -> None:
        self.replacement = replacement

    def check(self, clients: int) -> None:
        assert clients > 1

    def cohort(self, round: int, clients: int, seed: int) -> torch.Tensor:
        return torch.tensor([0, 0, 1])


def test_a_participation_of_ones_own_says_if_it_repeats_clients() -> None:
    given: dict[str, Any] = {"client": ff.clients.SGD(lr=0.1), "cohort": Twice(True)}
    assert ff.Simulation(small_model(), small_federation(), **given).step()["clients"] == 3
    with pytest.raises(ValueError, match="replacement: a client of ControlVariates keeps a vector"):
        ff.Simulation(small_model(), small_federation(), **given, exchange=ff.exchange.ControlVariates())
    quiet = ff.Simulation(small_model(), small_federation(), **{**given, "cohort": Twice(False)})
    with pytest.raises(ValueError, match="cohort: has a client twice"):
        quiet.step()
