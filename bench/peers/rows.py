"""Measurements of `bench peers` as flat rows: one per workload and framework."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class PeerRow:
    """One framework on one workload.

    `median`, `p20`, `p80`: seconds of a round of `timed` of the workload's `clients`, over `turns` turns of `loops`
    rounds each; None where it was `skipped`, for the reason given there, which is that its result was another one if
    it `disagrees`. `side_by_side`: the fastest of the ways tried. `first` are the seconds of its first round, compiling
    included. `difference` is how far its model moved elsewhere than FastFed's in one round, relative, at the parameter
    where that is most. `ratio`: how many times as many client updates a second FastFed made in the same turns. `busy`
    is the share of the cores that others used just before or after; None where the system does not tell.
    """

    workload: str
    peer: str
    clients: int
    timed: int
    side_by_side: str
    examples: int
    batch: int
    epochs: int
    parameters: int
    median: float | None
    p20: float | None
    p80: float | None
    turns: int
    loops: int
    first: float | None
    difference: float | None
    ratio: float | None
    skipped: str
    disagrees: bool
    busy: float | None
    threads: int
    machine: str
    versions: str

    @property
    def updates_per_second(self) -> float | None:
        """Client updates a second."""
        return None if self.median is None else self.timed / self.median

    @property
    def compiling(self) -> float | None:
        """The seconds that the first round took longer than later ones."""
        return None if self.median is None or self.first is None else max(0.0, self.first - self.median)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "updates_per_second": self.updates_per_second, "compiling": self.compiling}


@dataclass(frozen=True)
class WholeRow:
    """One framework on one whole task.

    `median`, `p20`, `p80`: seconds from its process's start to the accuracy, which it had after `rounds` rounds; None
    where it was `skipped`, for the reason given there. `ratio`: how many times as long as FastFed it took.
    """

    task: str
    peer: str
    target: float
    median: float | None
    p20: float | None
    p80: float | None
    turns: int
    rounds: int
    accuracy: float
    ratio: float | None
    skipped: str
    threads: int
    machine: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def summary(seconds: Sequence[float]) -> tuple[float, float, float]:
    """The median, and the 20th and 80th percentile."""
    if len(seconds) == 1:
        return (seconds[0],) * 3
    p20, *_, p80 = statistics.quantiles(seconds, n=5, method="inclusive")
    return statistics.median(seconds), p20, p80
