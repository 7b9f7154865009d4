"""A whole round's measurements as flat rows: one per workload and contender, one per cohort and number of threads."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

FASTFED, BATCHED, PLAIN, VMAP, CHUNKED = "fastfed", "batched", "plain", "vmap", "chunked vmap"


@dataclass(frozen=True)
class RoundRow:
    """One contender of one workload.

    `median`, `p20`, `p80`: seconds of a round of `timed` clients, server's step included; None where the contender was
    `skipped`, for the reason given there. `clients` is the cohort of the workload: peers may be timed on fewer of them,
    `chunk` clients at a time, which was the fastest of the numbers tried.
    `flops` are those of one client's training, `peak` is what a large sgemm reached in the same turns, in
    floating-point operations a second. `difference` is how far its aggregate is from FastFed's (FastFed's own: from the
    farthest peer), relative. `memory` is by how many bytes the process grew during a round. `to_plain`, `to_vmap` and
    `to_chunked`: how many times as fast as these it is. `busy` is the share of the machine's cores that others used
    just before or after; None where the system does not tell. `device` is "cpu" or the name of a card; there "batched"
    is FastFed's executor of that name, and `memory` what a round takes of the card.
    """

    workload: str
    contender: str
    clients: int
    timed: int
    chunk: int
    examples: int
    batch: int
    parameters: int
    flops: float
    median: float | None
    p20: float | None
    p80: float | None
    rounds: int
    loops: int
    peak: float | None
    difference: float | None
    memory: int | None
    to_plain: float | None
    to_vmap: float | None
    to_chunked: float | None
    skipped: str
    busy: float | None
    threads: int
    machine: str
    versions: str
    device: str = "cpu"

    @property
    def updates_per_second(self) -> float | None:
        """Client updates a second."""
        return None if self.median is None else self.timed / self.median

    @property
    def gigaflops(self) -> float | None:
        """Useful floating-point operations, in 1e9 a second."""
        return None if self.median is None else self.timed * self.flops / self.median / 1e9

    @property
    def of_peak(self) -> float | None:
        """The share of the sgemm peak."""
        return None if self.gigaflops is None or self.peak is None else self.gigaflops * 1e9 / self.peak

    def as_dict(self) -> dict[str, Any]:
        derived = ("updates_per_second", "gigaflops", "of_peak")
        return {**asdict(self), **{name: getattr(self, name) for name in derived}}


@dataclass(frozen=True)
class ScalingRow:
    """FastFed on a cohort of `clients` with so many threads; times in seconds a round.

    `efficiency`: client updates a second per thread, relative to the same cohort on one thread.
    """

    workload: str
    clients: int
    threads: int
    median: float
    p20: float
    p80: float
    rounds: int
    loops: int
    efficiency: float

    @property
    def updates_per_second(self) -> float:
        """Client updates a second."""
        return self.clients / self.median

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "updates_per_second": self.updates_per_second}
