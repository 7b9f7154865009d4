"""How likely clients are to be available in a round: the same always, cyclic windows, waves, or any function."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..data.arguments import check_real, check_whole
from ..data.exact import Floats, cos_of_turns
from ..data.sampling import uniforms
from ..kernels import Stream
from ..per_client import PerClient, check_count, expand, largest, per_client
from ..purposes import Purpose


@dataclass(frozen=True)
class Cyclic:
    """Client i is available in the rounds ``begin_i + k * period`` to ``begin_i + k * period + length - 1`` for all k,
    rounds counted from 0. `begin` in [0, period): one whole number for all, one per client, or None: drawn uniformly
    for each."""

    period: int
    length: int
    begin: PerClient | None = None

    def __post_init__(self) -> None:
        period = check_whole("period", self.period, 2)
        if check_whole("length", self.length, 1) >= period:
            raise ValueError(f"length: must be less than the period, {period} rounds, got {self.length}")
        if self.begin is not None:
            begin = per_client("begin", self.begin)
            if largest(begin) >= period or bool((torch.as_tensor(begin) % 1 != 0).any()):
                raise ValueError(f"begin: must be whole numbers below the period, {period} rounds, got {self.begin!r}")
            object.__setattr__(self, "begin", begin)

    def check(self, clients: int) -> None:
        """Refuses beginnings for another number of clients."""
        check_count("begin", self.begin, clients)

    def chances(self, round: int, clients: int, seed: int) -> Floats:
        """(clients,) probabilities: 1 within the window, else 0."""
        begin = _of_each(self.begin, clients, seed, self.period, whole=True)
        return ((round - begin) % self.period < self.length).astype(np.float64)


@dataclass(frozen=True)
class Sinusoidal:
    """The probability goes from `high` down to `low` and back in `period` rounds, along a cosine: client i is at its
    highest in round ``-phase_i * period``. `phase` in turns, in [0, 1): one number for all, one per client, or None:
    drawn uniformly for each."""

    period: float
    low: float = 0.0
    high: float = 1.0
    phase: PerClient | None = None

    def __post_init__(self) -> None:
        check_real("period", self.period, above=0.0)
        low, high = check_real("low", self.low), check_real("high", self.high, above=0.0)
        if not low < high <= 1:
            raise ValueError(f"high: must be above low, {low:g}, and at most 1, got {self.high!r}")
        if self.phase is not None:
            phase = per_client("phase", self.phase)
            if largest(phase) >= 1:
                raise ValueError(f"phase: must be in [0, 1), got {largest(phase)!r}")
            object.__setattr__(self, "phase", phase)

    def check(self, clients: int) -> None:
        """Refuses phases for another number of clients."""
        check_count("phase", self.phase, clients)

    def chances(self, round: int, clients: int, seed: int) -> Floats:
        """(clients,) probabilities in [low, high]."""
        turns = (round / self.period + _of_each(self.phase, clients, seed, 1)) % 1.0
        return self.low + (self.high - self.low) * (1 + cos_of_turns(turns)) / 2


Chance = Callable[[int, int], float]
Availability = Sequence[float] | Tensor | Cyclic | Sinusoidal | Chance | None


def check_availability(given: Availability) -> Availability:
    """An availability as settings keep it."""
    if given is None or isinstance(given, Cyclic | Sinusoidal) or callable(given):
        return given
    kept = per_client("availability", given)
    if isinstance(kept, float):
        raise ValueError(
            f"availability: must be one probability per client, Cyclic, Sinusoidal or a function of round and client, "
            f"got {given!r}"
        )
    if largest(kept) > 1:
        raise ValueError(f"availability: must be probabilities, got {largest(kept)!r}")
    return kept


def check_availability_of(given: Availability, clients: int) -> None:
    """Refuses what was given for another number of clients."""
    if isinstance(given, Cyclic | Sinusoidal):
        given.check(clients)
    elif not callable(given):
        check_count("availability", given, clients, may_be_one=False)


def available(given: Availability, round: int, clients: int, seed: int) -> Tensor:
    """Who is available in a round: ids (n,) int64, ascending. Each is so by its own probability, independently."""
    if given is None:
        return torch.arange(clients)
    draws = uniforms(clients, Stream(seed, Purpose.AVAILABILITY, round))
    return torch.from_numpy(np.flatnonzero(draws < _chances(given, round, clients, seed)))


def _chances(given: Availability, round: int, clients: int, seed: int) -> Floats:
    if isinstance(given, Cyclic | Sinusoidal):
        return given.chances(round, clients, seed)
    if not callable(given):
        assert given is not None
        return expand(given, clients).numpy()
    chances = np.array([_chance(given, round, client) for client in range(clients)])
    return chances


def _chance(function: Chance, round: int, client: int) -> float:
    chance = float(function(round, client))
    if not 0 <= chance <= 1 or math.isnan(chance):
        raise ValueError(f"availability: must give a probability, got {chance!r} for client {client} in round {round}")
    return chance


def _of_each(given: PerClient | None, clients: int, seed: int, below: float, whole: bool = False) -> Floats:
    """(clients,) numbers in [0, below), drawn where none are given."""
    if given is not None:
        return expand(given, clients).numpy()
    drawn = uniforms(clients, Stream(seed, Purpose.SHARES, _BEGINS)) * below
    return np.floor(drawn) if whole else drawn


_BEGINS = 1  # what the numbers of a SHARES stream are for, its word `round`: shares themselves have 0
