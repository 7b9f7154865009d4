"""The clock of asynchronous rounds against a literal model of it; cuts, checkpoints, bad input."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes

from fastfed import kernels
from fastfed.plan import event_loop
from fastfed.plan.events import EventQueue

from ..simulation.literal_clock import SOME, SPEEDS, Literal, Settings, course, doubles, seen, windows

HALF = windows([0, 7, 3, 9.5, 0, 1, 2, 5, 5, 5, 8, 4], 5.0, 10.0)
CASES: dict[str, Settings] = {
    "plain": {"seconds": SOME, "concurrency": 7, "buffer": 3},
    "ties": {"seconds": torch.ones(12, dtype=torch.float64), "concurrency": 5, "buffer": 3},
    "one_at_a_time": {"seconds": SPEEDS, "concurrency": 1, "buffer": 1},
    "fedasync": {"seconds": SOME, "concurrency": 9, "buffer": 1},
    "everyone": {"seconds": SPEEDS, "concurrency": 12, "buffer": 12},
    "everyone_slowly": {"seconds": SPEEDS, "concurrency": 2, "buffer": 12},
    "all_in_flight": {"seconds": SPEEDS, "concurrency": 12, "buffer": 2},
    "dropout": {"seconds": SPEEDS, "concurrency": 5, "buffer": 3, "dropout": 0.4},
    "max_age": {"seconds": SPEEDS, "concurrency": 8, "buffer": 2, "max_age": 1},
    "max_age_0": {"seconds": SOME, "concurrency": 10, "buffer": 3, "max_age": 0, "dropout": 0.1},
    "windows": {"seconds": SPEEDS.clamp(max=5), "concurrency": 3, "buffer": 2, "windows": HALF},
    "starved": {"seconds": SPEEDS, "concurrency": 12, "buffer": 3, "windows": (HALF[0], 4.0, 40.0)},
    "all_at_once": {"seconds": SPEEDS, "concurrency": 4, "buffer": 3, "windows": (doubles(*12 * [2.0]), 6.0, 7.0)},
    "nearly_always": {  # as floats, a window of every client closes when its next one opens
        "seconds": SPEEDS, "concurrency": 3, "buffer": 2,
        "windows": (doubles(*12 * [9.0]), math.nextafter(10, 0), 10.0),
    },
    "windows_and_all": {
        "seconds": SPEEDS, "concurrency": 6, "buffer": 2, "windows": HALF, "dropout": 0.2, "max_age": 2,
    },
    "waves": {"seconds": SPEEDS, "concurrency": 5, "buffer": 3, "waves": True},
    "whole_waves": {"seconds": SPEEDS, "concurrency": 4, "buffer": 4, "waves": True, "dropout": 0.3},
    "lonely_waves": {"seconds": SPEEDS, "concurrency": 1, "buffer": 1, "waves": True, "dropout": 0.6},
    "waves_of_all": {"seconds": SPEEDS, "concurrency": 12, "buffer": 6, "waves": True, "dropout": 0.6},
    "waves_in_windows": {
        "seconds": SPEEDS, "concurrency": 6, "buffer": 4, "waves": True, "dropout": 0.2, "windows": HALF,
    },
    "rare_waves": {
        "seconds": SPEEDS, "concurrency": 6, "buffer": 4, "waves": True, "windows": (HALF[0] * 5, 4.0, 50.0),
    },
}  # fmt: skip
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@every_case
def test_it_does_what_the_literal_model_does(case: Settings) -> None:
    queue, literal = EventQueue(**case, seed=3), Literal(**case, seed=3)
    while literal.events < 300:
        assert queue.advance()
        assert literal.advance()
        assert seen(queue) == seen(literal)
        queue.commit()
        literal.commit()


def test_the_cases_have_in_them_what_they_are_for() -> None:
    """A case in which nobody drops out would prove nothing about those who do."""
    totals = dict.fromkeys(("dropped", "lost", "stale", "discarded"), 0)
    for case in CASES.values():
        queue = EventQueue(**case, seed=3)
        while queue.events < 300:
            queue.advance()
            queue.commit()
        totals = {name: total + getattr(queue, name) for name, total in totals.items()}
    assert min(totals.values()) > 100, totals


@st.composite
def any_settings(draw: st.DrawFn) -> Settings:
    clients = draw(st.integers(1, 90))  # beyond one block of the tree
    speeds = st.sampled_from([0.25, 1.0, 1.5, 2.0, 7.0]) | st.floats(0.01, 9)
    waves = draw(st.booleans())
    concurrency = draw(st.integers(1, clients))
    chosen: Settings = {
        "seconds": doubles(*draw(st.lists(speeds, min_size=clients, max_size=clients))),
        "concurrency": concurrency,
        "buffer": draw(st.integers(1, concurrency if waves else clients)),
        "waves": waves,
        "dropout": draw(st.sampled_from([0.0, 0.1, 0.5])),
        "max_age": None if waves else draw(st.sampled_from([None, 0, 1, 5])),
        "seed": draw(st.integers(0, 2**64 - 1)),
    }
    if draw(st.booleans()):
        begins = st.sampled_from([0.0, 2.5, 19.0]) | st.floats(0, 19.9)
        begin = doubles(*draw(st.lists(begins, min_size=clients, max_size=clients)))
        chosen["windows"] = (begin, draw(st.sampled_from([9.0, 12.5, 19.5])), 20.0)
    return chosen


@settings(max_examples=60, deadline=None, derandomize=True)
@given(any_settings(), st.lists(st.floats(0.1, 12), min_size=1, max_size=4))
def test_any_settings_do_what_the_literal_model_does(chosen: Settings, cuts: list[float]) -> None:
    queue, literal = EventQueue(**chosen), Literal(**chosen)
    for cut in cuts * 4:
        until = literal.now + cut
        assert queue.advance(until) == literal.advance(until)
        assert seen(queue) == seen(literal)
        if literal.waiting:  # full or not
            queue.commit()
            literal.commit()


# ---- moments --------------------------------------------------------------------------------------------------------


def test_updates_of_one_moment_arrive_by_client_id() -> None:
    queue = EventQueue(torch.ones(40, dtype=torch.float64), concurrency=40, buffer=15, seed=0)
    assert queue.advance()
    assert queue.arrived[0].tolist() == list(range(15))
    queue.commit()
    assert queue.advance()
    assert queue.arrived[0].tolist() == list(range(15, 30))  # before anybody starts again
    assert queue.arrived[1].tolist() == [0] * 15
    assert (queue.now, queue.in_flight, queue.starts) == (1.0, 10, 40)


def test_slots_are_filled_after_all_arrivals_of_a_moment_from_the_newest_version() -> None:
    queue = EventQueue(torch.ones(40, dtype=torch.float64), concurrency=4, buffer=2, seed=0)
    for expected in (0, 0, 2, 2, 4, 4):  # the second two of four who ended together are of the next version
        assert queue.advance()
        assert queue.arrived[1].tolist() == [expected] * 2
        queue.commit()


def test_a_full_buffer_stops_the_clock_until_commit() -> None:
    queue = EventQueue(SPEEDS, concurrency=5, buffer=2, seed=1)
    assert queue.advance()
    before = seen(queue)
    assert queue.advance()
    assert queue.advance(until=0.0)
    assert seen(queue) == before
    queue.commit()
    assert queue.version == 1
    assert queue.arrived[0].tolist() == []


def test_a_partly_filled_buffer_may_be_committed_but_not_an_empty_one() -> None:
    queue = EventQueue(torch.ones(6, dtype=torch.float64) * 2, concurrency=2, buffer=5, seed=1)
    assert not queue.advance(until=2.0)
    assert len(queue.arrived[0]) == 2
    queue.commit()
    assert (queue.version, len(queue.arrived[0])) == (1, 0)
    with pytest.raises(RuntimeError, match="commit: no update has arrived"):
        queue.commit()
    assert queue.version == 1


def test_the_clock_stays_at_the_last_event() -> None:
    queue = EventQueue(doubles(2, 2), concurrency=2, buffer=1, seed=1)
    assert not queue.advance(until=1.9)
    assert (queue.now, queue.in_flight) == (0.0, 2)
    assert queue.advance(until=2.0)
    assert queue.now == 2.0


def test_a_time_that_has_passed_lets_nothing_happen() -> None:
    queue = EventQueue(torch.ones(40, dtype=torch.float64), concurrency=40, buffer=15, seed=0)
    queue.advance()
    queue.commit()
    assert not queue.advance(until=0.9)  # others have arrived at 1.0, and wait
    assert (queue.events, queue.arrived[0].tolist()) == (15, [])
    assert queue.advance(until=1.0)


def test_the_window_that_is_open_is_found_whatever_the_rounding() -> None:
    """At the moment of an opening, and at the last one before it, where quotients of floats may lie."""
    closing = event_loop._closing.py_func  # type: ignore[attr-defined]
    off = 0
    for period in (0.1, 0.3, 86400.1):
        for begin in (0.0, period / 3, period * 0.7):
            for k in range(1, 400):
                for now, expected in (
                    (begin + k * period, k),
                    (math.nextafter(begin + k * period, 0), k - 1),
                ):
                    state = SimpleNamespace(begin=np.array([begin]), now=[now], period=period, length=period / 2)
                    assert closing(state, 0) == begin + expected * period + period / 2
                    off += math.floor((now - begin) / period) != expected
    assert off > 100


@every_case
def test_cut_in_many_pieces_it_is_the_same(case: Settings) -> None:
    whole, cut = EventQueue(**case, seed=5), EventQueue(**case, seed=5)
    for _ in range(12):
        whole.advance()
        until = cut.now
        while not cut.advance(until):
            until += 0.37
        assert seen(cut) == seen(whole)
        whole.commit()
        cut.commit()


def test_versions_in_use_are_bounded_by_the_age() -> None:
    queue = EventQueue(doubles(*range(1, 301)), concurrency=100, buffer=2, max_age=3, seed=1)
    for version in range(200):
        assert queue.advance()
        used = queue.versions_in_use().tolist()
        assert set(queue.arrived[1].tolist()) <= set(used) <= set(range(version - 3, version + 1))
        assert used[-1] == version
        queue.commit()
    assert queue.stale > 20


def test_waves_start_together_and_leave_nobody_behind() -> None:
    queue = EventQueue(SPEEDS, concurrency=6, buffer=4, waves=True, seed=2)
    for round in range(30):
        assert queue.advance()
        assert queue.arrived[1].tolist() == [round] * 4
        assert (queue.starts, queue.in_flight) == (6 * (round + 1), 2)
        queue.commit()
        assert (queue.in_flight, queue.discarded) == (0, 2 * (round + 1))
        assert not queue.advance(until=queue.now)  # all six of the next wave start now
        assert queue.in_flight == 6


# ---- checkpoints ----------------------------------------------------------------------------------------------------


@every_case
def test_saved_and_loaded_at_every_moment_it_is_the_same(case: Settings) -> None:
    literal, queue = Literal(**case, seed=7), EventQueue(**case, seed=7)
    while literal.events < 60:
        literal.advance()
        moments, literal.moments = literal.moments, []
        for moment in [queue.now, *moments]:
            queue.advance(until=moment)
            queue = reloaded(queue, case)
        assert seen(queue) == seen(literal)
        queue.commit()
        queue = reloaded(queue, case)
        literal.commit()


def reloaded(queue: EventQueue, case: Settings) -> EventQueue:
    """Another queue, which has been elsewhere, goes on from the bytes of a checkpoint."""
    again = EventQueue(**case, seed=7)
    again.advance()
    again.load(from_bytes(to_bytes(queue.tensors())))
    assert seen(again) == seen(queue)
    assert all(torch.equal(again.tensors()[name], tensor) for name, tensor in queue.tensors().items())
    return again


def test_what_is_saved_is_small_and_a_copy() -> None:
    queue = EventQueue(torch.ones(100_000, dtype=torch.float64), concurrency=10, buffer=5, seed=0)
    queue.advance()
    saved = queue.tensors()
    assert list(saved) == ["now", "counts", "due", "client", "started", "arrived", "arrived_version"]
    assert all(tensor.dim() == 1 and tensor.is_contiguous() for tensor in saved.values())
    assert sum(tensor.numel() for tensor in saved.values()) < 100
    before = seen(queue)
    for tensor in (*saved.values(), *queue.arrived):
        tensor.zero_()
    assert seen(queue) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"now": None}, "tensors: must be now, counts, due"),
        ({"now": torch.zeros(2, dtype=torch.float64)}, "now: must hold 1 numbers, got 2"),
        ({"due": torch.zeros(3)}, "due: must be a vector of torch.float64"),
        ({"client": torch.zeros(1, dtype=torch.int64)}, "client: must hold 5 numbers, got 1"),
        ({"client": torch.tensor([0, 1, 2, 3, 12])}, "different ids below 12"),
        ({"client": torch.tensor([0, 1, 2, 3, -1])}, "different ids below 12"),
        ({"client": torch.tensor([0, 1, 2, 3, 3])}, "different ids below 12"),
        ({"arrived": torch.arange(3), "arrived_version": torch.zeros(3).long()}, "5 clients in flight and 3 in"),
        ({"now": doubles(math.nan)}, "now and counts must be >= 0"),
        ({"now": doubles(1e9)}, "due not before now"),
        ({"counts": -torch.ones(8, dtype=torch.int64)}, "now and counts must be >= 0"),
    ],
)
def test_tensors_of_something_else_are_refused_and_nothing_changes(changes: Settings, message: str) -> None:
    queue = EventQueue(SPEEDS, concurrency=5, buffer=2, seed=0)
    queue.advance(until=0.5)
    before = seen(queue)
    saved = {name: tensor for name, tensor in {**queue.tensors(), **changes}.items() if tensor is not None}
    with pytest.raises(ValueError, match=message):
        queue.load(saved)
    assert seen(queue) == before


# ---- without a compiler ---------------------------------------------------------------------------------------------

_SCRIPT = """
import sys, torch
from fastfed.plan.events import EventQueue
numba_came_with_the_import = "numba" in sys.modules
rows = []
for extra in ({}, {"waves": True}):
    begin = torch.arange(70, dtype=torch.float64)
    seconds = 0.3 + (begin * 7) % 11
    queue = EventQueue(
        seconds, concurrency=20, buffer=7, dropout=0.2, windows=(begin, 40.0, 71.5), seed=2**63 + 5, **extra
    )
    for _ in range(30):
        queue.advance()
        clients, versions = (tensor.tolist() for tensor in queue.arrived)
        rows.append([queue.now, queue.events, queue.lost, queue.dropped, clients, versions])
        queue.commit()
"""


def test_plain_python_gives_the_same_events_and_the_import_is_quick() -> None:
    told = subprocess.run(
        [sys.executable, "-c", _SCRIPT + "import json; print(json.dumps([numba_came_with_the_import, rows]))"],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    numba_came, rows = json.loads(told.stdout)
    here: dict[str, Any] = {}
    exec(_SCRIPT, here)
    assert not numba_came
    assert rows == here["rows"]
    assert rows[-1][2] > 10


# ---- bad input ------------------------------------------------------------------------------------------------------

GOOD: Settings = {"seconds": SPEEDS, "concurrency": 4, "buffer": 2, "seed": 0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seconds": [1.0]}, r"seconds: must be a float64 tensor of shape \(clients,\), got \[1.0\]"),
        ({"seconds": torch.ones(3)}, r"seconds: must be a float64 .*, got torch.float32 \(3,\)"),
        ({"seconds": doubles()}, "seconds: must be of 1 to"),
        ({"seconds": doubles(1, 0, 1, 1)}, "seconds: must be finite and > 0, got 0.0 for client 1"),
        ({"seconds": doubles(1, 1, math.nan, 1)}, "seconds: .* got nan for client 2"),
        ({"seconds": doubles(1, 1, 1, math.inf)}, "seconds: .* got inf for client 3"),
        ({"concurrency": 0}, "concurrency: must be a whole number >= 1, got 0"),
        ({"concurrency": 2.0}, "concurrency: must be a whole number >= 1, got 2.0"),
        ({"concurrency": 13}, "concurrency: must be at most the number of clients, 12, got 13"),
        ({"buffer": 0}, "buffer: must be a whole number >= 1, got 0"),
        ({"buffer": 13}, "buffer: must be at most the number of clients, 12, got 13"),
        ({"buffer": 5, "waves": True}, "buffer: must be at most the wave's concurrency, 4, got 5"),
        ({"waves": 1}, "waves: must be True or False, got 1"),
        ({"max_age": -1}, "max_age: must be a whole number >= 0, got -1"),
        ({"max_age": 1, "waves": True}, "max_age: in waves every update is of age 0"),
        ({"dropout": 1.0}, r"dropout: must be in \[0, 1\), got 1.0"),
        ({"dropout": -0.1}, "dropout: must be a number >= 0, got -0.1"),
        ({"seed": -1}, "seed: must be a whole number"),
        ({"windows": (1.0, 2.0)}, r"windows: must be \(begin, length, period\)"),
        ({"windows": (SPEEDS, 10.0, 10.0)}, "windows: length must be less than the period, 10, got 10.0"),
        ({"windows": (SPEEDS, 0.0, 10.0)}, "windows: length: must be a number > 0"),
        ({"windows": (SPEEDS, 5.0, math.inf)}, "windows: period: must be a number > 0"),
        ({"windows": (SPEEDS, 5.0, 9.0)}, r"windows: begin must be in \[0, 9\)"),
        ({"windows": (SPEEDS[:3], 5.0, 10.0)}, r"windows: begin must be a float64 tensor of shape \(12,\)"),
        ({"windows": (SPEEDS, 0.5, 10.0)}, "at least 2 clients finish, but 0.5 seconds are enough for 0"),
        ({"windows": (SPEEDS, 1.0, 10.0), "buffer": 3}, "at least 3 clients finish, but 1 seconds are enough for 2"),
    ],
)
def test_bad_settings_are_refused(changes: Settings, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EventQueue(**(GOOD | changes))


@pytest.mark.parametrize("until", [math.nan, "soon", None])
def test_a_time_that_is_none_is_refused(until: Any) -> None:
    with pytest.raises(ValueError, match="until: must be a time in seconds"):
        EventQueue(**GOOD).advance(until)


def test_what_the_caller_does_with_its_tensors_changes_nothing() -> None:
    seconds, begin = SPEEDS.clone(), HALF[0].clone()
    first, second = (EventQueue(seconds, concurrency=4, buffer=2, windows=(begin, 5.0, 10.0), seed=0) for _ in "ab")
    expected = course(first, 20)
    seconds.fill_(1.0)
    begin.fill_(0.0)
    assert torch.equal(course(second, 20), expected)


# Prints all that a queue holds after every commit, of queues of every kind. With an argument: by the loop of machines
# that have no extension, as plain Python.
COURSES = """
import hashlib, sys, torch
from fastfed.plan import events

if len(sys.argv) > 1:
    events.backends = lambda: {"cpp": "as if it were missing"}
generator = torch.Generator().manual_seed(3)

def some(n):
    return torch.rand(n, generator=generator, dtype=torch.float64)

kinds = {
    "plain": (300, dict(concurrency=20, buffer=7)),
    "stale": (150, dict(concurrency=64, buffer=3, max_age=2)),
    "dropping": (97, dict(concurrency=30, buffer=5, dropout=0.3)),
    "windows": (200, dict(concurrency=25, buffer=6, windows=(50 * some(200), 11.0, 50.0))),
    "epochs": (130, dict(concurrency=10, buffer=4, epochs=(0.1 + some(130), 5))),
    "waves": (70, dict(concurrency=12, buffer=9, waves=True, dropout=0.2)),
    "all": (257, dict(concurrency=40, buffer=8, max_age=3, dropout=0.1, windows=(9 * some(257), 4.0, 9.0),
                      epochs=(0.2 * some(257) + 0.01, 3))),
    "alike": (64, dict(concurrency=64, buffer=10)),
    "one": (1, dict(concurrency=1, buffer=1)),
}
for name, (clients, options) in kinds.items():
    seconds = torch.ones(clients, dtype=torch.float64) if name == "alike" else 0.5 + some(clients)
    queue, digest = events.EventQueue(seconds, seed=5, **options), hashlib.sha256()
    for commit in range(60):
        if commit == 30:
            again = events.EventQueue(seconds, seed=5, **options)
            again.load(queue.tensors())
            queue = again
        queue.advance(until=queue.now + 0.7)
        while not queue.advance():
            pass
        for tensor in (*queue.tensors().values(), *queue.arrived):
            digest.update(tensor.numpy().tobytes())
        queue.commit()
    print(name, queue.events, queue.stale + queue.dropped + queue.lost + queue.discarded, digest.hexdigest())
"""


@pytest.mark.exhaustive
def test_both_loops_take_the_same_course() -> None:
    def told(*arguments: str) -> list[str]:
        environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
        command = [sys.executable, "-c", COURSES, *arguments]
        said = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert said.returncode == 0, said.stderr
        return said.stdout.splitlines()

    if kernels.backends()["cpp"] is not True:
        pytest.skip("the compiled extension is missing")
    courses = told()
    assert len(courses) == 9
    assert [line.split()[2] == "0" for line in courses] == [True, False, False, False, True, False, False, True, True]
    assert courses == told("as plain Python")
