"""Clients that remember their last model (MOON)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..clients import Client
from ..servers import Server
from ..train import Contrast, Outcome, RoundWork
from ..train.contrast import check_settings
from ..train.split import Split
from .protocol import Exchanger, MakeStore, VectorStore, make_store


@dataclass(frozen=True)
class PreviousModels:
    """MOON: a term of weight `mu` in the clients' loss draws the features of their models to those of the model that
    they started from, and away from those of the model with which they ended their last round, which every client
    keeps. ``train/contrast.py`` has the formula. Features are what goes into the layer `head` (its name; None: the last
    nn.Linear of the model). With mu = 0 it is FedAvg. `store` makes what keeps the models (default: in memory).
    """

    mu: float
    temperature: float = 0.5
    head: str | None = None
    store: MakeStore | None = None

    down = 0
    up = 0
    kept = 1
    any_timing = True

    def __post_init__(self) -> None:
        check_settings(self.mu, self.temperature, self.head)

    @property
    def split(self) -> Split | None:
        """Where the model must split, if features are compared at all."""
        return Split(self.head) if self.mu else None

    def check(self, client: Client, server: Server) -> None:
        """Any optimizers will do: only the loss is another."""

    def begin(self, x: Tensor, clients: int) -> Exchanger:
        return _Remembering(self, x)


class _Remembering:
    keeps_deltas = True

    def __init__(self, settings: PreviousModels, x: Tensor) -> None:
        self.settings = settings
        self.models = make_store(settings.store, x)

    def extras(self, cohort: Tensor, server_state: dict[str, Tensor]) -> dict[str, Any]:
        s = self.settings
        return {"contrast": Contrast(s.mu, s.temperature, s.head, *self.models.find(cohort))} if s.mu else {}

    def absorb(self, work: RoundWork, outcome: Outcome) -> None:
        assert outcome.deltas is not None
        counts = ((outcome.scalars["steps"] > 0) & ~outcome.refused)[outcome.here]
        trained = outcome.here[counts]
        self.models.put(work.ids[trained], outcome.deltas[counts].add_(work.starts_of(trained)))

    @property
    def stores(self) -> tuple[VectorStore, ...]:
        return (self.models,)

    def tensors(self) -> dict[str, Tensor]:
        return self.models.tensors()

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.models.load(tensors)
