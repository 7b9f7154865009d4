"""What FastFed promises beside other frameworks, and how a run compares: misses are shown like everything else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..common.neighbours import TOLERABLE
from ..rounds.rows import PLAIN, VMAP
from ..rounds.targets import THREADS, Target, Verdict
from ..rounds.workloads import PEERED
from .line_up import FEDJAX, FLOWER, PFL
from .rows import PeerRow

_PROMISED: dict[str, dict[str, float]] = {
    "W1": {FEDJAX: 40, PFL: 45, FLOWER: 350, PLAIN: 45, VMAP: 4.5},
    "W2": {FEDJAX: 6, PFL: 7, FLOWER: 35, PLAIN: 8, VMAP: 3.3},
    "W2x5": {FEDJAX: 10, PFL: 12, PLAIN: 14, VMAP: 6},
    "W3": {FEDJAX: 6, PFL: 2.5, FLOWER: 2.5, PLAIN: 2.5},
    "ResNet10": {PFL: 2, FLOWER: 2, PLAIN: 2},
    "AE": {PFL: 2.5, PLAIN: 3, VMAP: 2},
    "ViT": {PFL: 1.5, FLOWER: 1.5, PLAIN: 1.5},
}


@dataclass(frozen=True)
class PeerTarget(Target):
    """At least `value` times as fast as the framework `measure` in its quickest way."""

    @property
    def words(self) -> str:
        return f">= {self.value:g}x {self.measure}{', best chunk' if self.measure == VMAP else ''}"


TARGETS = tuple(PeerTarget(workload, peer, value) for workload, of in _PROMISED.items() for peer, value in of.items())


def judge(rows: Sequence[PeerRow]) -> list[Verdict]:
    """The verdicts on what was run. Promises are for whole cohorts, two threads, and a machine that nobody else uses:
    nothing else is judged, and what was measured all the same stands in the details."""
    run = {(row.workload, row.peer) for row in rows}
    return [_judged(target, rows) for target in TARGETS if (target.workload, target.measure) in run]


def _judged(target: PeerTarget, rows: Sequence[PeerRow]) -> Verdict:
    row = next(row for row in rows if (row.workload, row.peer) == (target.workload, target.measure))
    if row.ratio is None:
        return Verdict(target, None, row.skipped)
    whole = row.clients == PEERED[row.workload].clients and row.threads == THREADS
    if not whole:
        return Verdict(target, None, f"{row.ratio:.2f}x with {row.clients:,} clients, {row.threads} threads")
    if row.busy is not None and row.busy > TOLERABLE:
        return Verdict(target, None, f"{row.ratio:.2f}x while others used {row.busy:.0%} of the machine")
    return Verdict(target, row.ratio)
