"""Client-centric rounds: clients start from one of the newest models and train as long as they like."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels import Stream
from ..purposes import Purpose
from .participation import uniforms
from .round import Memoryless, PlanTemplate, RoundPlan, Tuning, age_columns
from .sampled import Sampled


@dataclass
class CentricPlanner(Memoryless):
    """Every round, those that `who` draws, each from one of the newest `max_delay` + 1 models and for 1 to
    `most_epochs` epochs, all as likely (None: as long as the local work says), with `same_epochs` all of a round alike.
    `version` counts the server's steps."""

    template: PlanTemplate
    who: Sampled
    max_delay: int
    most_epochs: int | None
    same_epochs: bool = False
    version: int = 0

    def plan(self, round: int, tuning: Tuning, until: float = math.inf) -> RoundPlan:
        seed = self.template.seed
        cohort = self.who.cohort(round, self.template.sizes.numel(), seed)
        age = _drawn(len(cohort), min(self.max_delay, round) + 1, Stream(seed, Purpose.STALENESS, round))
        epochs = None
        if self.most_epochs is not None:
            epochs = 1 + _drawn(len(cohort), self.most_epochs, Stream(seed, Purpose.EPOCHS, round))
            epochs = epochs[:1].expand(len(cohort)) if self.same_epochs else epochs
        return self.template.plan(round, cohort, tuning, epochs=epochs, age=age, columns=age_columns(age))

    def commit(self) -> None:
        self.version += 1

    def versions(self) -> Sequence[int] | None:
        """Those that the next round may draw, all but the newest."""
        return range(max(0, self.version - self.max_delay), self.version)

    def tensors(self) -> dict[str, Tensor]:
        return {"version": torch.tensor([self.version])}

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.version = int(tensors["version"])


def _drawn(n: int, below: int, stream: Stream) -> Tensor:
    """`n` whole numbers below a bound, all as likely: int64."""
    return (uniforms(n, stream) * below).long()
