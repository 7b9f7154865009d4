"""A part of a sweep's points: one of several machines that each run theirs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..config import ConfigError
from .points import Point


@dataclass(frozen=True)
class Shard:
    """The `number`-th of `total` parts, from 1: every `total`-th point of the plan, so that each part has a share of
    every variant and seed."""

    number: int = 1
    total: int = 1

    @classmethod
    def of(cls, text: str) -> Shard:
        """What ``--shard 2/4`` means."""
        found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text.strip())
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise ConfigError(f"--shard: must be i/n with 1 <= i <= n, as in 2/4, got {text!r}")
        return cls(int(found[1]), int(found[2]))

    @property
    def is_all(self) -> bool:
        return self.total == 1

    def own(self, points: Sequence[Point]) -> list[Point]:
        """Its points of all points of a plan."""
        return list(points[self.number - 1 :: self.total])
