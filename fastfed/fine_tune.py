"""Personalisation: clients fine-tune the global model on their own examples before they are evaluated."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .clients import SGD
from .norms import PackedModel
from .train import DeltaPolicy, RoundWork
from .train.batches import steps_for

if TYPE_CHECKING:
    from .simulation import Simulation

PORTION_BYTES = 1 << 28  # of models that are kept at a time


@dataclass(frozen=True)
class FineTune:
    """How clients train before they are evaluated: `epochs` (fractions too) over their own training examples, or
    `steps` instead, of SGD with `lr`, in batches of `batch_size` (default: the run's). Nothing of it stays: the run
    goes on as if nobody had."""

    lr: float
    epochs: float = 1.0
    steps: int | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        SGD(self.lr)
        if not _is_real(self.epochs) or not 0 < self.epochs < math.inf:
            raise ValueError(f"epochs: must be a finite number > 0, got {self.epochs!r}")
        for name in ("steps", "batch_size"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"{name}: must be a whole number >= 1, or None, got {value!r}")


def _is_real(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_fine_tune(sim: Simulation, fine_tune: FineTune | None) -> None:
    """Refuses what could not be measured: without test examples of their own, clients would be evaluated on what they
    have just trained on."""
    if fine_tune is None:
        return
    if not isinstance(fine_tune, FineTune):
        raise TypeError(f"fine_tune: must be fastfed.fine_tune.FineTune, or None, got {fine_tune!r}")
    tests = getattr(sim.fed, "visit_tests", None)
    if tests is None or tests(torch.zeros(1, dtype=torch.int64)) is None:
        raise ValueError(
            f"fine_tune: clients of {sim.fed.name} have no test examples of their own, and would be evaluated on what "
            "they have trained on"
        )
    if sim.settings.batch_norm == "local":
        raise ValueError('fine_tune: with batch_norm="local" clients have models of their own already; leave it out')
    if sim.ranks is not None:
        raise ValueError("fine_tune: is done by one process; evaluate after the run, or in a run without ranks")


class FineTuned:
    """The models of `clients` (n,) after fine-tuning of the global one, by their position there; a portion of them at a
    time. One whose numbers are not finite afterwards keeps the global model."""

    def __init__(self, sim: Simulation, clients: Tensor, how: FineTune) -> None:
        self._sim, self._clients, self._how = sim, clients, how
        each = sim.params.numel() * sim.params.element_size()
        self._size = max(1, min(len(clients), PORTION_BYTES // each))
        self._first, self._models, self._lock = -1, list[PackedModel](), Lock()

    def __call__(self, position: int) -> PackedModel:
        first = position // self._size * self._size
        with self._lock:
            if first != self._first:
                self._first, self._models = first, self._trained(self._clients[first : first + self._size])
            return self._models[position - first]

    def _trained(self, clients: Tensor) -> list[PackedModel]:
        sim, how = self._sim, self._how
        visit = sim.fed.visit(clients)
        batch_size = sim.settings.batch_size if how.batch_size is None else how.batch_size
        counts = visit.offsets.diff()
        steps = steps_for(how.epochs, counts, batch_size) if how.steps is None else torch.full_like(counts, how.steps)
        work = RoundWork(
            start=sim.params,
            rows=visit.rows,
            offsets=visit.offsets,
            examples=None if visit.examples is sim.fed.examples else visit.examples,
            ids=clients,
            steps=steps,
            batch_size=batch_size,
            optimizers=(SGD(how.lr),),
            round=sim.round,
            seed=sim.settings.seed,
            policy=DeltaPolicy(weights="uniform"),
            keep_deltas=True,
            **sim.batch_norm.fields({"round": sim.round}, None),
        )
        outcome = sim.executor.run(work)
        assert outcome.deltas is not None
        models = sim.params + outcome.deltas
        usual = sim.batch_norm.vector()
        statistics = [usual] * len(clients) if outcome.statistics is None else list(outcome.statistics)
        return [
            PackedModel(sim.params, usual) if refused else PackedModel(model, of_client)
            for model, of_client, refused in zip(models, statistics, outcome.refused.tolist(), strict=True)
        ]
