"""Random streams: which numbers a (seed, purpose, round, client, step) stands for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from . import bind

_philox = bind.load("philox", "int", {"wide_multiply": lambda a, b: divmod(a * b, 1 << 32)})


LARGEST_KEY = (1 << 63) - 1  # of a permutation's sort keys, which have 63 bits


class StreamWords(NamedTuple):
    """A stream as the kernels take it: the key of seed and purpose, and two words of the counter."""

    key0: int
    key1: int
    step: int
    round: int


@dataclass(frozen=True)
class Stream:
    """One independent random stream. `seed` has 64 bits; purpose, round, client and step have 32 each.

    Equal streams give equal numbers on every backend, for any number of threads; different streams share nothing.
    """

    seed: int
    purpose: int = 0
    round: int = 0
    client: int = 0
    step: int = 0

    def __post_init__(self) -> None:
        for name, bits in (("seed", 64), ("purpose", 32), ("round", 32), ("client", 32), ("step", 32)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << bits:
                raise ValueError(f"{name}: must be a whole number in [0, 2**{bits}), got {value!r}")

    def words(self) -> StreamWords:
        """Key and counter words of this stream (all but client and block)."""
        key0, key1 = _subkey(self.seed, self.purpose)
        return StreamWords(key0, key1, self.step, self.round)


@lru_cache(maxsize=256)
def _subkey(seed: int, purpose: int) -> tuple[int, int]:
    key: tuple[int, int] = _philox.subkey(purpose, seed & 0xFFFFFFFF, seed >> 32)
    return key
