"""Cohorts drawn from those who are available, not all as likely, perhaps with replacement."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..data.arguments import check_whole
from ..data.exact import Floats, log
from ..data.sampling import choose, uniforms
from ..kernels import Stream
from ..purposes import Purpose
from .availability import Availability, available, check_availability, check_availability_of
from .participation import Uniform
from .shares import Shares, check_shares, check_shares_of, shares_of

MOST_KEYS = 1 << 32  # a stream's words are of 32 bits


@dataclass(frozen=True)
class Sampled:
    """`size` of the clients that are available in a round (None: all of them), drawn one after the other with chances
    like their `shares`.

    `shares`: one number >= 0 per client, ``Dirichlet(alpha)`` or ``LogNormal(spread)``; None: all alike.
    `availability`: the probability of a client to be available in a round, independently of all others: one number per
    client, ``Cyclic``, ``Sinusoidal``, or a function of the round (from 0) and the client; None: all always are. Where
    fewer than `size` are available, these are the cohort, which may be empty.

    With `replacement` a client that was drawn may be drawn again, until there are `size`, however few are available. It
    then takes part as often as it was drawn: each time from the same model, but on batches, dropout and views of its
    own, and each counts as a client of the round.
    """

    size: int | None = None
    shares: Shares = None
    availability: Availability = None
    replacement: bool = False

    def __post_init__(self) -> None:
        if self.size is not None:
            check_whole("size", self.size, 1)
        if not isinstance(self.replacement, bool):
            raise ValueError(f"replacement: must be True or False, got {self.replacement!r}")
        object.__setattr__(self, "shares", check_shares(self.shares))
        object.__setattr__(self, "availability", check_availability(self.availability))
        if self.size is None and (self.shares is not None or self.replacement):
            ignored = "replacement" if self.replacement else "shares"
            raise ValueError(f"{ignored}: would be ignored, as everybody who is available takes part; give a size")

    def check(self, clients: int) -> None:
        check_shares_of(self.shares, clients)
        check_availability_of(self.availability, clients)
        if self.size is None:
            return
        if not self.replacement and self.size > clients:
            raise ValueError(f"size: must be at most the number of clients, {clients}, got {self.size}")
        if self.replacement and self.size * clients >= MOST_KEYS:
            raise ValueError(f"size: with replacement, size * clients must be below 2**32, got {self.size} * {clients}")

    def cohort(self, round: int, clients: int, seed: int) -> Tensor:
        """Client ids, (n,) int64, ascending; with replacement one may be there several times."""
        self.check(clients)
        if self.size is not None and self.shares is None and self.availability is None and not self.replacement:
            return Uniform(self.size).cohort(round, clients, seed)
        ids = available(self.availability, round, clients, seed)
        if self.size is None:
            return ids
        shares = shares_of(self.shares, clients, seed)[ids.numpy()]
        ids, shares = ids[torch.from_numpy(shares > 0)], shares[shares > 0]
        if not len(ids):
            return ids
        stream = Stream(seed, Purpose.COHORT, round)
        if self.replacement:
            picked = choose(shares, uniforms(self.size, stream))
        else:
            picked = _first(shares, uniforms(clients, stream)[ids.numpy()], self.size)
        return ids[torch.from_numpy(np.sort(picked))]


def _first(shares: Floats, numbers: Floats, size: int) -> np.ndarray:
    """Which of (n,) clients would be drawn first, one after the other by their shares, at most `size`: each waits for
    a time that is exponential with its share as the rate (Efraimidis, Spirakis: Weighted random sampling, 2006)."""
    return np.argsort(log(-log(numbers)) - log(shares), kind="stable")[:size]  # logarithms: of times beyond all floats
