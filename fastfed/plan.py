"""The plan room: who takes part in a round, for how long, with which rule and learning rates."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from .clients import Client
from .kernels import Stream, uniform
from .purposes import Purpose
from .schedules import Schedule


@dataclass(frozen=True)
class RoundPlan:
    """One round, decided: row i of every tensor belongs to client ``cohort[i]`` (int64, ascending).

    `steps` (n,) int64 local steps on batches of `batch_size`; with `positions` (n,) int64, batches run on across epoch
    borders until that many examples have been seen. `clients` are the optimizers, `rule` (n,) int64 chooses one each,
    `lr` (n,) float64 replaces their learning rates. `age` (n,) int64 counts the server steps since the model that a
    client starts from (None: the newest for all). `server_lr` is the server's learning rate in this round.
    """

    round: int
    cohort: Tensor
    steps: Tensor
    batch_size: int
    clients: tuple[Client, ...]
    server_lr: float
    positions: Tensor | None = None
    rule: Tensor | None = None
    lr: Tensor | None = None
    age: Tensor | None = None

    def __len__(self) -> int:
        return self.cohort.numel()


# ---- who ------------------------------------------------------------------------------------------------------------


class Participation(Protocol):
    """Chooses the cohort of a round."""

    def cohort(self, round: int, clients: int, seed: int) -> Tensor:
        """Client ids below `clients`, (n,) int64, each once, ascending."""

    def expected(self, clients: int) -> float:
        """The expected size of a cohort."""

    def check(self, clients: int) -> None:
        """Refuses a federation of that many clients if it cannot serve it."""


@dataclass(frozen=True)
class Uniform:
    """`size` clients, every subset as likely as any other."""

    size: int

    def __post_init__(self) -> None:
        if isinstance(self.size, bool) or not isinstance(self.size, int) or self.size < 1:
            raise ValueError(f"cohort: must be a whole number >= 1, got {self.size!r}")

    def check(self, clients: int) -> None:
        if self.size > clients:
            raise ValueError(f"cohort: must be at most the number of clients, {clients}, got {self.size}")

    def cohort(self, round: int, clients: int, seed: int) -> Tensor:
        self.check(clients)
        draws = _uniforms(self.size, Stream(seed, Purpose.COHORT, round)).tolist()
        chosen: set[int] = set()
        # Floyd's way: the i-th draw is below clients - size + i + 1, and a client met again gives way to the newest.
        for newest, draw in enumerate(draws, clients - self.size):
            candidate = int(draw * (newest + 1))
            chosen.add(newest if candidate in chosen else candidate)
        return torch.tensor(sorted(chosen), dtype=torch.int64)

    def expected(self, clients: int) -> float:
        return float(self.size)


@dataclass(frozen=True)
class Poisson:
    """Every client takes part with probability `rate`, independently of all others."""

    rate: float

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate: must be in (0, 1], got {self.rate!r}")

    def check(self, clients: int) -> None:
        """Any number will do."""

    def cohort(self, round: int, clients: int, seed: int) -> Tensor:
        return (_uniforms(clients, Stream(seed, Purpose.COHORT, round)) < self.rate).nonzero().flatten()

    def expected(self, clients: int) -> float:
        return self.rate * clients


@dataclass(frozen=True)
class Given:
    """Cohorts as they are given: one sequence of client ids per round, beginning again after the last."""

    cohorts: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        cohorts = tuple(tuple(int(client) for client in cohort) for cohort in self.cohorts)
        object.__setattr__(self, "cohorts", cohorts)
        if not cohorts:
            raise ValueError("cohorts: must hold at least one round's clients")
        for number, cohort in enumerate(cohorts):
            if len(set(cohort)) != len(cohort) or any(client < 0 for client in cohort):
                raise ValueError(f"cohorts: entry {number} must hold different client ids >= 0, got {cohort}")

    def check(self, clients: int) -> None:
        for number, cohort in enumerate(self.cohorts):
            if max(cohort, default=0) >= clients:
                raise ValueError(f"cohorts: entry {number} has client {max(cohort)}, and there are {clients} in all")

    def cohort(self, round: int, clients: int, seed: int) -> Tensor:
        return torch.tensor(sorted(self.cohorts[round % len(self.cohorts)]), dtype=torch.int64)

    def expected(self, clients: int) -> float:
        return sum(map(len, self.cohorts)) / len(self.cohorts)


@dataclass(frozen=True)
class Chosen:
    """Cohorts by a function of the round (counted from 0): client ids in any order."""

    function: Callable[[int], Sequence[int]]

    def check(self, clients: int) -> None:
        """What it chooses is seen only in the round."""

    def cohort(self, round: int, clients: int, seed: int) -> Tensor:
        chosen = Given((tuple(self.function(round)),))
        chosen.check(clients)
        return chosen.cohort(0, clients, seed)

    def expected(self, clients: int) -> float:
        return math.nan


def participation(cohort: Any) -> Participation:
    """What ``Simulation(cohort=...)`` means: a number of clients, a `Participation`, ids by round, or a function."""
    if isinstance(cohort, (Uniform, Poisson, Given, Chosen)):
        return cohort
    if isinstance(cohort, numbers.Integral) and not isinstance(cohort, bool):
        return Uniform(int(cohort))
    if callable(cohort):
        return Chosen(cohort)
    if isinstance(cohort, Sequence) and all(isinstance(one, Sequence) and not isinstance(one, str) for one in cohort):
        return Given(tuple(tuple(one) for one in cohort))
    if hasattr(cohort, "cohort") and hasattr(cohort, "expected"):
        return cohort
    raise TypeError(
        f"cohort: must be a number of clients, Uniform, Poisson, Given, lists of client ids by round, or a function of "
        f"the round, got {cohort!r}"
    )


def _uniforms(n: int, stream: Stream) -> Tensor:
    """`n` numbers in [0, 1), float64 with 48 random bits: 24 would favour some of a million clients."""
    coarse, fine = uniform(2 * n, stream).double().view(2, n)
    return coarse + fine / (1 << 24)


# ---- how long -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LocalWork:
    """How long a client trains: `epochs` over its examples (fractions too), or `steps`.

    `steps` is a number for all, or one per client of the federation (a sequence, or (clients,) int64). An epoch ends
    with a short batch where the examples run out, unless `across_epochs` (the AFO authors' code), where only the very
    last batch of a client may be short.
    """

    epochs: float | None = None
    steps: int | Sequence[int] | Tensor | None = None
    batch_size: int = 20
    across_epochs: bool = False

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(f"epochs: give either epochs or steps, got {self.epochs!r} and {self.steps!r}")
        if self.epochs is not None and not (isinstance(self.epochs, numbers.Real) and 0 < self.epochs < math.inf):
            raise ValueError(f"epochs: must be > 0, got {self.epochs!r}")
        if isinstance(self.batch_size, bool) or not isinstance(self.batch_size, int) or self.batch_size < 1:
            raise ValueError(f"batch_size: must be a whole number >= 1, got {self.batch_size!r}")
        if self.across_epochs and self.epochs is None:
            raise ValueError("across_epochs: batches follow one another until the epochs are over; it needs epochs")
        if self.steps is not None and bool((torch.as_tensor(self.steps) < 1).any()):
            raise ValueError("steps: must be >= 1")

    def steps_of(self, cohort: Tensor, sizes: Tensor, epochs: float | None, batch_size: int) -> Tensor:
        """Local steps of each client of a cohort with `sizes` (n,) examples: (n,) int64."""
        if self.steps is not None:
            given = torch.as_tensor(self.steps, dtype=torch.int64)
            return given.expand(len(cohort)).clone() if given.dim() == 0 else given[cohort]
        assert epochs is not None
        whole = int(epochs)
        steps = whole * _batches(sizes, batch_size) + _batches(sizes * (epochs - whole), batch_size)
        return torch.where(sizes > 0, steps.clamp(min=1), 0)

    def positions_of(self, sizes: Tensor, epochs: float | None) -> Tensor | None:
        """How many examples each client sees in all, where batches cross epoch borders; at least one if it has any."""
        if not self.across_epochs:
            return None
        seen = (sizes * (epochs or 0.0)).round().long()
        return torch.where(sizes > 0, seen.clamp(min=1), 0)

    def check(self, clients: int) -> None:
        """Steps given per client are given for every client."""
        given = torch.as_tensor(self.steps if self.steps is not None else 1)
        if given.dim() > 1 or (given.dim() == 1 and given.numel() != clients) or given.is_floating_point():
            raise ValueError(f"steps: must be a whole number, or one for each of the {clients} clients")


def _batches(examples: Tensor, batch_size: int) -> Tensor:
    """How many batches hold these many examples (which may be fractions, rounded up past 1e-6 of a batch)."""
    return torch.ceil(examples.double() / batch_size - 1e-6).clamp(min=0).long()


# ---- the planner of synchronous rounds ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tuning:
    """What a tuner may change from round to round; None leaves the setting as it is."""

    lr: float | None = None
    epochs: float | None = None
    batch_size: float | None = None


class Planner(Protocol):
    """Makes the plan of a round."""

    def plan(self, round: int, tuning: Tuning) -> RoundPlan: ...


@dataclass(frozen=True)
class SyncPlanner:
    """Synchronous rounds: a fresh cohort, all from the newest model.

    `sizes` (clients,) int64 counts the clients' examples. The schedules' factors multiply the learning rates.
    """

    sizes: Tensor
    participation: Participation
    local: LocalWork
    client: Client
    server_lr: float
    client_schedule: Schedule | None = None
    server_schedule: Schedule | None = None
    seed: int = 0

    def plan(self, round: int, tuning: Tuning) -> RoundPlan:
        cohort = self.participation.cohort(round, self.sizes.numel(), self.seed)
        batch_size = self.local.batch_size if tuning.batch_size is None else max(1, int(tuning.batch_size + 0.5))
        epochs = self.local.epochs if tuning.epochs is None else tuning.epochs
        sizes = self.sizes[cohort]
        positions = self.local.positions_of(sizes, epochs)
        steps = self.local.steps_of(cohort, sizes, epochs, batch_size)
        if positions is not None:
            steps = _batches(positions, batch_size)
        return RoundPlan(
            round=round,
            cohort=cohort,
            steps=steps,
            positions=positions,
            batch_size=batch_size,
            clients=(self.client,),
            lr=self._learning_rates(round, tuning, len(cohort)),
            server_lr=self.server_lr * factor("server_schedule", self.server_schedule, round),
        )

    def _learning_rates(self, round: int, tuning: Tuning, clients: int) -> Tensor | None:
        if self.client_schedule is None and tuning.lr is None:
            return None
        lr = self.client.lr if tuning.lr is None else tuning.lr  # type: ignore[attr-defined]
        lr *= factor("client_schedule", self.client_schedule, round)
        if lr == 0 and self.client.rule == "delta_sgd":
            raise ValueError(f"client_schedule: Delta-SGD cannot start from a step size of 0, as in round {round}")
        return torch.full((clients,), lr, dtype=torch.float64)


def factor(name: str, schedule: Schedule | None, round: int) -> float:
    """A schedule's factor in this round, 1 without a schedule."""
    if schedule is None:
        return 1.0
    value = float(schedule(round))
    if not 0 <= value < math.inf:
        raise ValueError(f"{name}: must give a finite factor >= 0, got {value!r} in round {round}")
    return value
