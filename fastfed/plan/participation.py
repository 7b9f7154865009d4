"""Who takes part in a round: a number of clients, a rate, given cohorts, or a function of the round."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..kernels import Stream, uniform
from ..purposes import Purpose


class Participation(Protocol):
    """Chooses the cohort of a round."""

    def cohort(self, round: int, clients: int, seed: int) -> Tensor:
        """Client ids below `clients`, (n,) int64, ascending; each once, unless it is drawn with replacement."""

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
        if self.size == clients:
            return torch.arange(clients)
        first = clients - self.size
        draws = uniforms(self.size, Stream(seed, Purpose.COHORT, round))
        candidates = (draws * torch.arange(first + 1, clients + 1)).long().tolist()
        chosen: set[int] = set()
        # Floyd's way: the i-th candidate is below first + i + 1, and a client met again gives way to the newest.
        for newest, candidate in enumerate(candidates, first):
            chosen.add(newest if candidate in chosen else candidate)
        return torch.from_numpy(np.sort(np.fromiter(chosen, np.int64, self.size)))


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
        return (uniforms(clients, Stream(seed, Purpose.COHORT, round)) < self.rate).nonzero().flatten()


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
    if hasattr(cohort, "cohort") and hasattr(cohort, "check"):
        return cohort
    raise TypeError(
        f"cohort: must be a number of clients, Uniform, Poisson, Sampled, Given, lists of client ids by round, or a "
        f"function of the round, got {cohort!r}"
    )


def uniforms(n: int, stream: Stream) -> Tensor:
    """`n` numbers in [0, 1), float64 with 48 random bits: 24 would favour some of a million clients."""
    if n == 0:  # a round of nobody
        return torch.zeros(0, dtype=torch.float64)
    coarse, fine = uniform(2 * n, stream).double().view(2, n)
    return coarse + fine / (1 << 24)
