"""How FastFed's rounds scale: cohorts from 10 to 10,000 clients, on one thread and on several."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..common.timing import take_turns
from .prepared import SLICE, Prepared
from .rows import ScalingRow
from .workloads import WORKLOADS

if TYPE_CHECKING:
    from .run import Plan

SCALED = ("W1", "W2")
COHORTS = (10, 100, 1_000, 10_000)
STORED = 1_000  # clients with examples of their own; a larger cohort shares them
MOST_ROUNDS = 3  # large cohorts take long, and vary little


def cohorts(plan: Plan) -> list[tuple[str, int]]:
    """Every (workload, number of clients) of the plan; none if it does not ask for them."""
    if not plan.scaling:
        return []
    sizes = sorted({max(1, round(plan.scale * size)) for size in COHORTS})
    return [(name, size) for name in SCALED if name in plan.workloads for size in sizes]


def scale(plan: Plan, tell: Callable[[str], None]) -> Iterator[ScalingRow]:
    """The rows of all cohorts; the numbers of threads take turns."""
    for name, clients in cohorts(plan):
        tell(f"{name}: scaling, {clients:,} clients")
        yield from _cohort(plan, name, clients)


def _cohort(plan: Plan, name: str, clients: int) -> Iterator[ScalingRow]:
    stored = min(clients, STORED)
    ways = sorted({1, plan.threads})
    calls = {
        str(threads): Prepared.of(WORKLOADS[name], stored, threads, plan.executor).our_round(clients)
        for threads in ways
    }
    timings = take_turns(calls, min(plan.rounds, MOST_ROUNDS), slice_seconds=SLICE)
    alone = timings["1"].median
    for threads in ways:
        timing = timings[str(threads)]
        yield ScalingRow(
            workload=name,
            clients=clients,
            threads=threads,
            median=timing.median,
            p20=timing.p20,
            p80=timing.p80,
            rounds=timing.rounds,
            loops=timing.loops,
            efficiency=alone / timing.median / threads,
        )
