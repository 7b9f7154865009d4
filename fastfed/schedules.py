"""Learning rates over the rounds: a schedule gives the factor of a round (counted from 0). Any callable will do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Schedule = Callable[[int], float]


@dataclass(frozen=True)
class Constant:
    """The same factor in every round."""

    factor: float = 1.0

    def __call__(self, round: int) -> float:
        return self.factor


@dataclass(frozen=True)
class Staircase:
    """`factor` once more after every `every` rounds. Default: AFO's 0.1 every 500."""

    factor: float = 0.1
    every: int = 500

    def __post_init__(self) -> None:
        if not isinstance(self.every, int) or self.every < 1 or not self.factor > 0:
            raise ValueError(
                f"every: must be a whole number >= 1 and factor > 0, got {self.every!r} and {self.factor!r}"
            )

    def __call__(self, round: int) -> float:
        return self.factor ** (round // self.every)


@dataclass(frozen=True)
class Drops:
    """`factor` once more after each share `at` of the `rounds`. Default: DSGD's 0.1 after 50% and again after 75%."""

    rounds: int
    at: tuple[float, ...] = (0.5, 0.75)
    factor: float = 0.1

    def __post_init__(self) -> None:
        if not isinstance(self.at, tuple) or not all(0 < share < 1 for share in self.at):
            raise ValueError(f"at: must be a tuple of shares between 0 and 1, got {self.at!r}")
        if self.rounds < 1 or not self.factor > 0:
            raise ValueError(f"rounds: must be >= 1 and factor > 0, got {self.rounds!r} and {self.factor!r}")

    def __call__(self, round: int) -> float:
        return self.factor ** sum(round >= share * self.rounds for share in self.at)


@dataclass(frozen=True)
class PowerDecay:
    """(1 + round / `scale`) ** -`power`: with power 1 and scale 1 it is 1/t, with power 0.5 1/sqrt(t), of rounds t
    counted from 1."""

    power: float = 0.5
    scale: float = 1.0

    def __post_init__(self) -> None:
        for name in ("power", "scale"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: must be > 0, got {getattr(self, name)!r}")

    def __call__(self, round: int) -> float:
        return (1 + round / self.scale) ** -self.power
