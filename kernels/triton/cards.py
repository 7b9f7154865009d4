"""Cards in figures: what a multiprocessor holds, and how long a launch must take at least.

All figures are the maker's published ones, dense (without sparsity). Times are calculated: no card has been measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .counted import Counts
from .tiles import WARP


@dataclass(frozen=True)
class Multiprocessor:
    """What one multiprocessor holds of programs that are resident at once, and in which units it hands it out."""

    warps: int
    programs: int
    registers: int
    shared_bytes: int
    register_unit: int = 256  # of a warp
    warp_unit: int = 4  # warps that registers suffice for are counted in fours: one for each scheduler
    shared_unit: int = 128
    shared_reserved: int = 1024  # for the system, of every program

    def resident(self, registers: int, shared_bytes: int, warps: int) -> int:
        """Programs at once, each of `warps` warps with `registers` per thread and `shared_bytes`; 0: none fits."""
        per_warp = _rounded_up(registers * WARP, self.register_unit)
        by_registers = self.registers // per_warp // self.warp_unit * self.warp_unit // warps
        by_shared = self.shared_bytes // _rounded_up(shared_bytes + self.shared_reserved, self.shared_unit)
        return min(self.programs, self.warps // warps, by_registers, by_shared)


def _rounded_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


MULTIPROCESSORS = {  # by compute capability
    80: Multiprocessor(warps=64, programs=32, registers=65_536, shared_bytes=164 * 1024),
    90: Multiprocessor(warps=64, programs=32, registers=65_536, shared_bytes=228 * 1024),
    100: Multiprocessor(warps=64, programs=32, registers=65_536, shared_bytes=228 * 1024),
}


@dataclass(frozen=True)
class Card:
    """`bandwidth` of the memory and `cache_bandwidth` of the second-level cache in bytes/s; `peaks` in FLOP/s by the
    numbers multiplied; `launch_seconds` is an estimate of what a launch inside a replayed graph costs besides its work.

    The cache's is 5,120 bytes a clock (A100, published) at the boost clock, and taken to be the same a clock on the
    others, of which nothing is published.
    """

    name: str
    capability: int
    multiprocessors: int
    bandwidth: float
    peaks: Mapping[str, float]
    cache_bandwidth: float = math.inf
    launch_seconds: float = 2e-6


def _peaks(fp32: float, tf32: float, half: float) -> dict[str, float]:
    return {"fp32": fp32 * 1e12, "tf32": tf32 * 1e12, "fp16": half * 1e12, "bf16": half * 1e12}


CARDS = {
    card.name: card
    for card in (
        Card("A100", 80, 108, 1555e9, _peaks(19.5, 156, 312), 5120 * 1.41e9),
        Card("H100", 90, 132, 3350e9, _peaks(67, 495, 989), 5120 * 1.83e9),
        Card("B200", 100, 148, 8000e9, _peaks(80, 1100, 2250), 5120 * 1.85e9),
    )
}

# How a precision asked of `tl.dot` is computed: which numbers are multiplied, and in how many passes.
PASSES = {
    "ieee": ("fp32", 1),
    "tf32": ("tf32", 1),
    "tf32x3": ("tf32", 3),
    "bf16x3": ("bf16", 3),
    "bf16x6": ("bf16", 6),
    "fp16": ("fp16", 1),
    "bf16": ("bf16", 1),
}


@dataclass(frozen=True)
class Cost:
    """What one launch must move and multiply. `flops` by precision (`PASSES`), two per multiplication of the product
    itself; `programs` is how many there are, or None for enough to fill any card. `touched`: bytes that pass the cache,
    those counted that are touched again (None: nothing is)."""

    bytes_read: float
    bytes_written: float
    flops: Mapping[str, float] = field(default_factory=dict)
    programs: int | None = None
    touched: float | None = None

    @classmethod
    def of(cls, counts: Counts) -> Cost:
        """The cost of a launch that the interpreter has counted: from memory every byte once, the rest by the cache."""
        touched = counts.bytes_read + counts.bytes_written
        moved = (counts.distinct_read, counts.distinct_written)
        return cls(*moved, dict(counts.flops), counts.programs, touched)

    def seconds(self, card: Card) -> float:
        """The least time on `card`: its slower resource, as far as there are programs to use it, and the launch.

        A launch of fewer programs than the card has multiprocessors is given their share of the whole card.
        """
        moved = self.bytes_read + self.bytes_written
        moving = max(moved / card.bandwidth, (moved if self.touched is None else self.touched) / card.cache_bandwidth)
        multiplying = sum(_products_seconds(precision, flops, card) for precision, flops in self.flops.items())
        used = 1.0 if self.programs is None else min(1.0, self.programs / card.multiprocessors)
        return max(moving, multiplying) / used + card.launch_seconds


def _products_seconds(precision: str, flops: float, card: Card) -> float:
    if precision not in PASSES:
        raise ValueError(f"flops: precision must be one of {', '.join(PASSES)}, got {precision!r}")
    numbers, passes = PASSES[precision]
    return passes * flops / card.peaks[numbers]


def seconds(costs: Iterable[Cost], card: Card) -> float:
    """The least time of launches one after another."""
    return sum(cost.seconds(card) for cost in costs)
