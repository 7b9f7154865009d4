"""Timing: contenders take turns, round after round, so that a noisy moment of the machine hits all of them alike.

Clock and statistics are pytest-benchmark's. Its fixture is not used: that runs all rounds of one function before it
looks at the next, and a ratio between functions timed minutes apart says more about the neighbours than about the code.
"""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from pytest_benchmark.stats import Stats
from pytest_benchmark.timers import default_timer

Call = Callable[[], object]

SLICE = 5e-3  # seconds: a round repeats quicker calls until they fill this, far above the clock's precision


@dataclass(frozen=True)
class Timing:
    """Seconds per call: the median over rounds with the 20th and 80th percentile; each round made `loops` calls."""

    median: float
    p20: float
    p80: float
    rounds: int
    loops: int


def take_turns(
    contenders: Mapping[str, Call],
    rounds: int,
    slice_seconds: float = SLICE,
    synchronise: Callable[[], None] = lambda: None,
) -> dict[str, Timing]:
    """Times every contender `rounds` times in turns (A B C A B C ...).

    `synchronise` waits for a device: the clock is read when it has returned, so that work which was only handed over
    counts.
    """
    with _no_garbage_collection():
        loops = {name: _calibrate(call, slice_seconds, synchronise) for name, call in contenders.items()}
        stats = {name: Stats() for name in contenders}
        for _ in range(rounds):
            for name, call in contenders.items():
                if loops[name] > 1:
                    call()  # its data may lie in a cache, as in a loop of a user's; the last contender has emptied it
                stats[name].update(_seconds(call, loops[name], synchronise) / loops[name])
    return {name: _summary(stats[name], loops[name]) for name in contenders}


def _seconds(call: Call, loops: int, synchronise: Callable[[], None]) -> float:
    turns = range(loops)
    synchronise()  # nobody pays for what the call before has left to do
    start = default_timer()
    for _ in turns:
        call()
    synchronise()
    return float(default_timer() - start)


def _calibrate(call: Call, slice_seconds: float, synchronise: Callable[[], None]) -> int:
    """How many calls fill a slice; the first call, which may compile, is not counted."""
    call()
    loops = 1
    while (seconds := _seconds(call, loops, synchronise)) < slice_seconds:
        guess = math.ceil(loops * slice_seconds / max(seconds, 1e-9))
        if seconds > slice_seconds / 10:
            return guess
        loops = min(guess, loops * 10)
    return loops


def _summary(stats: Stats, loops: int) -> Timing:
    if stats.rounds == 1:
        p20 = p80 = stats.median
    else:
        p20, *_, p80 = statistics.quantiles(stats.sorted_data, n=5, method="inclusive")
    return Timing(float(stats.median), p20, p80, stats.rounds, loops)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
