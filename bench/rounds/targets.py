"""What FastFed promises of whole rounds, and how a run compares: misses are shown like everything else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..common.neighbours import TOLERABLE
from .memory import FEW, GROWN, MANY, Growth
from .rows import FASTFED, PLAIN, VMAP, RoundRow
from .run import Results
from .workloads import WORKLOADS

THREADS = 2  # with which the promises were made
MEMORY = "memory"


@dataclass(frozen=True)
class Target:
    """`measure` is a peer (times as fast as it, at least `value`) or "memory" (relative growth, less than `value`)."""

    workload: str
    measure: str
    value: float

    @property
    def words(self) -> str:
        if self.measure == MEMORY:
            return f"< {self.value:.0%} more memory, {FEW:,} to {MANY:,} clients"
        return f">= {self.value:g}x {self.measure}{', the cohort at once' if self.measure == VMAP else ''}"


TARGETS: tuple[Target, ...] = (
    Target("W1", PLAIN, 40.0),
    Target("W1", VMAP, 4.0),
    Target("W2", PLAIN, 7.5),
    Target("W2", VMAP, 4.5),
    Target("W3", PLAIN, 1.8),
    Target("SO-LR", PLAIN, 10.0),
    Target(GROWN, MEMORY, 0.05),
)


@dataclass(frozen=True)
class Verdict:
    """A target beside what was measured; None where the run has no answer. `details` explain it."""

    target: Target
    measured: float | None
    details: str = ""

    @property
    def met(self) -> bool | None:
        if self.measured is None:
            return None
        if self.target.measure == MEMORY:
            return self.measured < self.target.value
        return self.measured >= self.target.value

    @property
    def words(self) -> str:
        """What was measured."""
        if self.measured is None:
            return "-"
        return f"{self.measured:+.1%}" if self.target.measure == MEMORY else f"{self.measured:.2f}x"


def judge(results: Results) -> list[Verdict]:
    """Every target's verdict on a run.

    Promises are for whole cohorts and two threads of the host, and speeds for a machine that nobody else uses: nothing
    else is judged.
    """
    return [
        _judge_growth(target, results.growth) if target.measure == MEMORY else _judge_speed(target, results.rows)
        for target in TARGETS
    ]


def _judge_speed(target: Target, rows: Sequence[RoundRow]) -> Verdict:
    wanted = target.workload, FASTFED, THREADS, WORKLOADS[target.workload].clients, "cpu"
    for row in rows:
        if (row.workload, row.contender, row.threads, row.clients, row.device) == wanted:
            if row.busy is not None and row.busy > TOLERABLE:
                return Verdict(
                    target, None, f"others used {row.busy:.0%} of the machine: measure again when it is idle"
                )
            return Verdict(target, row.to_plain if target.measure == PLAIN else row.to_vmap)
    return Verdict(target, None)


def _judge_growth(target: Target, growth: Growth | None) -> Verdict:
    if growth is None or growth.threads != THREADS:
        return Verdict(target, None)
    few, many = (f"{one.of_round / 1e6:.1f} MB" for one in (growth.few, growth.many))
    details = f"of the peak of {growth.few.peak / 1e6:.0f} MB; the round itself: {few}, then {many}"
    return Verdict(target, growth.relative, details)
