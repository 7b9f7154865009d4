"""The tune room: what the next plan changes because of what this round has shown."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from .aggregate import Aggregate
from .plan import RoundPlan, Tuning
from .train import Outcome


class Tuner(Protocol):
    """Adjusts the next plan. `state` and `load` carry what it remembers through a checkpoint."""

    def tune(self, plan: RoundPlan, outcome: Outcome, aggregate: Aggregate) -> Tuning: ...

    def state(self) -> dict[str, Tensor]: ...

    def load(self, state: dict[str, Tensor]) -> Tuning: ...


class Untuned:
    """Leaves every setting as it is."""

    def tune(self, plan: RoundPlan, outcome: Outcome, aggregate: Aggregate) -> Tuning:
        return Tuning()

    def state(self) -> dict[str, Tensor]:
        return {}

    def load(self, state: dict[str, Tensor]) -> Tuning:
        return Tuning()
