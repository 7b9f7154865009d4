"""Buffered asynchronous rounds and waves against an event loop in plain Python: model, moments, past models and clock
after every server step.

Where a free place has to be given to one of several idle clients, who gets it is read from a second queue, as a draw:
who else is at work at that moment. Everything else is the loop's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch

import fastfed as ff
from fastfed.plan.clock import EventPlanner
from fastfed.timing import EventDriven, Waves
from fastfed.train.threads import one_thread_per_operation

from ..simulation import literal
from ..simulation.literal import Server, Snapshot
from ..simulation.literal_async import Clients
from ..simulation.literal_compare import (
    NETWORK,
    SIZES,
    assert_equals,
    batches_per_epoch,
    examples,
    federation,
    kept,
    same_in_both,
    shuffled,
    simulation,
    start_model,
    steps,
)
from ..simulation.literal_events import Buffered, Filled, Loop, Starters, everyone_idle

ROUNDS, BATCH, EPOCHS = 8, 3, 1
N = len(SIZES)
PARAMETERS = 43

Fleet = ff.fleet.Fleet
SPEEDS = (1.0, 0.3, 2.5, 0.7, 0.2, 4.0, 0.55, 1.9, 0.12)  # seconds per local step
WAYS = (0.5, 2.0, 0.0, 0.25, 1.5, 0.1, 0.0, 3.0, 0.9)
ODD = Fleet(step_seconds=SPEEDS, network_seconds=WAYS)


@dataclass(frozen=True)
class Case:
    """`timing`, further `settings`, and the twin of what they mean for the aggregate."""

    timing: EventDriven | Waves
    settings: dict[str, Any] = field(default_factory=dict)
    server: dict[str, Any] = field(default_factory=dict)
    method: dict[str, Any] = field(default_factory=dict)
    poisoned: int | None = None

    def simulated(self) -> dict[str, Any]:
        work = {"epochs": EPOCHS, "batch_size": BATCH, "weights": self.method.get("weights", "uniform")}
        settings = {"client": ff.clients.SGD(lr=0.3), **work, "fed": federation(self.poisoned), **self.settings}
        return {**settings, "timing": self.timing}


FEDADAM = {"server": ff.servers.FedAdam(lr=0.05, tau=0.02)}
FEDADAM_TWIN = {"rule": "adam", "lr": 0.05, "tau": 0.02}
BLEND = ff.clients.Blend(
    [ff.clients.Part(ff.clients.SGD(lr=0.3), weight=0.6), ff.clients.Part(ff.clients.AdaGrad(lr=0.1), weight=1.4)],
    choose=lambda of: of.client % 2,
)


def blended(client: int) -> tuple[Any, float]:
    return (partial(literal.AdaGrad, lr=0.1), 1.4) if client % 2 else (partial(literal.SGD, lr=0.3), 0.6)


CASES = {
    "FedAsync": Case(EventDriven(N, fleet=ODD)),
    "FedAsync, staleness": Case(EventDriven(N, staleness=0.5, fleet=ODD), method={"staleness": 0.5}),
    "FedAsync, a slot or two": Case(EventDriven(2, staleness=1.0, fleet=ODD), method={"staleness": 1.0}),
    "FedBuff": Case(EventDriven(N, 3, fleet=ODD)),
    "FedBuff, chosen": Case(EventDriven(4, 3, fleet=ODD)),
    "FedBuff, staleness": Case(EventDriven(5, 2, staleness=0.7, fleet=ODD), FEDADAM, FEDADAM_TWIN, {"staleness": 0.7}),
    "FedBuff, young only": Case(
        EventDriven(N, 2, staleness=0.3, max_age=1, fleet=ODD), FEDADAM, FEDADAM_TWIN, {"staleness": 0.3}
    ),
    "FedBuff, fresh only": Case(EventDriven(6, 2, max_age=0, fleet=ODD)),
    "FedBuff, more wanted than at work": Case(EventDriven(2, 5, fleet=ODD)),
    "FedBuff, as many as there are": Case(EventDriven(3, N, fleet=ODD)),
    "FedBuff, all alike fast": Case(  # ties, of most
        EventDriven(N, 2, staleness=0.5, fleet=Fleet()), {"epochs": None, "steps": 1}, method={"staleness": 0.5}
    ),
    "FedBuff, bytes": Case(EventDriven(5, 2, fleet=Fleet(SPEEDS, bytes_per_second=70.0))),
    "FedBuff, drawn speeds": Case(EventDriven(4, 2, fleet=Fleet(spread=0.8)), FEDADAM, FEDADAM_TWIN),
    "FedBuff, by examples and per step": Case(
        EventDriven(5, 3, staleness=0.5, fleet=ODD),
        {"divide_by_steps": True},
        method={"weights": "examples", "divide_by_steps": True, "staleness": 0.5},
    ),
    "FedBuff, blended": Case(
        EventDriven(6, 3, staleness=0.5, fleet=ODD), {"client": BLEND}, method={"staleness": 0.5, "blend": blended}
    ),
    "FedBuff, a poisoned client": Case(
        EventDriven(7, 3, staleness=0.5, fleet=ODD), method={"staleness": 0.5}, poisoned=8
    ),
    "waves": Case(Waves(4, fleet=ODD), FEDADAM, FEDADAM_TWIN),
    "waves, the first three": Case(Waves(6, 3, fleet=ODD)),
    "waves of everyone, the first five": Case(Waves(N, 5, fleet=ODD), method={"weights": "examples"}),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with one_thread_per_operation():
        yield


# ---- the loop's side ------------------------------------------------------------------------------------------------


def steps_of(case: Case, client: int) -> int:
    given = case.settings.get("steps")
    return (EPOCHS * batches_per_epoch(client, BATCH) if given is None else given) if SIZES[client] else 0


def seconds_of(case: Case, itemsize: int) -> list[float]:
    """Of a participation: local steps (one at least) and the way there and back."""
    fleet = case.timing.fleet
    speeds = torch.as_tensor(fleet.step_seconds, dtype=torch.float64).expand(N).tolist()
    if fleet.spread > 0:  # a draw
        speeds = fleet.seconds(torch.ones(N, dtype=torch.int64), 0, 4).tolist()
    ways = torch.as_tensor(fleet.network_seconds, dtype=torch.float64).expand(N).tolist()
    sent = 0.0 if fleet.bytes_per_second is None else 2 * PARAMETERS * itemsize / fleet.bytes_per_second
    return [max(1, steps_of(case, client)) * speeds[client] + ways[client] + sent for client in range(N)]


def recorded(case: Case, dtype: torch.dtype) -> tuple[Starters, Callable[[], None]]:
    """Starts as a queue draws them: a second queue, taken along to every moment, and the commit that it needs too."""
    planner = simulation(dtype, "eager", case.simulated()).planner
    assert isinstance(planner, EventPlanner)
    queue = planner.queue

    def starters(now: float, idle: list[int], places: int) -> list[int]:
        if places == 0:
            return []
        queue.advance(now)
        return sorted(set(queue.tensors()["client"].tolist()) & set(idle))

    def commit() -> None:
        assert queue.advance()
        queue.commit()

    return starters, commit


@cache
def course_of(name: str, itemsize: int, rounds: int = ROUNDS) -> list[Filled]:
    case = CASES[name]
    timing = case.timing
    waves = isinstance(timing, Waves)
    at_once = timing.size if isinstance(timing, Waves) else timing.concurrency
    starters, along = recorded(case, torch.float64 if itemsize == 8 else torch.float32)
    if at_once == N:
        starters, along = everyone_idle, lambda: None
    max_age = None if isinstance(timing, Waves) else timing.max_age
    loop = Loop(seconds_of(case, itemsize), at_once, timing.buffer, starters, max_age, waves)
    course = []
    for _ in range(rounds):
        assert loop.fill()
        along()
        course.append(loop.commit())
    return course


def run_literally(name: str, dtype: str, course: list[Filled]) -> list[Snapshot]:
    case = CASES[name]
    clients = Clients(NETWORK, examples(case.poisoned), partial(literal.SGD, lr=0.3))

    def batches(round: int, client: int) -> list[literal.Batch]:
        return shuffled(round, client, BATCH, steps_of(case, client))

    with np.errstate(invalid="ignore"):  # the poisoned client's
        return Buffered(clients, Server(**case.server), batches, **case.method).run(start_model(dtype), course)


# ---- the tests ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_rounds_on_a_clock_are_their_event_loop(name: str) -> None:
    same_in_both(
        CASES[name].simulated(),
        lambda dtype, packing: run_literally(name, dtype, course_of(name, packing.dtype.itemsize)),
        ROUNDS,
    )


@pytest.mark.parametrize("name", CASES)
def test_rows_tell_clock_and_ages(name: str) -> None:
    course = course_of(name, 4)
    sim = simulation(torch.float32, "native", CASES[name].simulated())
    for t, _ in enumerate(steps(sim, ROUNDS)):
        row, wanted = sim.history.rounds[t], course[t]
        ages = [age for _, age in wanted.updates]
        assert row["clock"] == pytest.approx(wanted.clock, rel=1e-13)
        assert row["clients"] == len(wanted.updates)
        assert row["ages"] == [[age, number] for age, number in sorted(Counter(ages).items())]
        assert row["age_mean"] == pytest.approx(sum(ages) / len(ages), rel=1e-14)
        assert (row["stale"], row["dropped"], row["lost"]) == (wanted.stale, 0, 0)


@pytest.mark.parametrize("compression", [None, ff.compression.Sign()], ids=["plain", "signs"])
@pytest.mark.parametrize("name", ["FedAsync", "FedBuff, young only", "FedBuff, fresh only", "waves, the first three"])
def test_rows_count_all_bytes_that_were_sent(name: str, compression: Any) -> None:
    """The model goes to everybody who starts; an update too old to count was sent all the same."""
    course = course_of(name, 4)
    sim = simulation(torch.float32, "native", {**CASES[name].simulated(), "compression": compression})
    message = 4 * PARAMETERS if compression is None else 6 + 4 * 4
    before = Filled(0.0, [], set(), 0, 0, 0)
    for t, _ in enumerate(steps(sim, ROUNDS)):
        row, wanted = sim.history.rounds[t], course[t]
        assert row["bytes_down"] == 4 * PARAMETERS * (wanted.started - before.started)
        sent = row["clients"] if compression is None else row["counted"]  # who has no examples has nothing to compress
        assert row["bytes_up"] == message * (sent + wanted.stale - before.stale)
        before = wanted
    assert before.started > sum(row["clients"] for row in sim.history)


def test_rows_count_those_told_to_stop() -> None:
    course = course_of("waves, the first three", 4)
    sim = simulation(torch.float32, "native", CASES["waves, the first three"].simulated())
    for t, _ in enumerate(steps(sim, ROUNDS)):
        assert sim.history.rounds[t]["discarded"] == course[t].discarded


def test_the_cases_are_what_their_names_say() -> None:
    ages = {name: [age for step in course_of(name, 4) for _, age in step.updates] for name in CASES}
    assert max(ages["FedBuff"]) >= 3
    assert max(ages["FedBuff, chosen"]) >= 2
    assert max(ages["FedBuff, young only"]) == 1
    assert max(ages["FedBuff, fresh only"]) == 0
    assert all(course_of(f"FedBuff, {which} only", 4)[-1].stale > 3 for which in ("young", "fresh"))
    assert all(max(ages[name]) == 0 for name in CASES if "waves" in name)
    assert course_of("waves, the first three", 4)[-1].discarded == 3 * ROUNDS
    clocks = [step.clock for step in course_of("FedBuff, all alike fast", 4)]
    assert len(set(clocks)) < len(clocks)


def test_a_partly_filled_buffer_can_be_flushed() -> None:
    """At the end of a run: the mean of those there are."""
    name, until = "FedBuff, more wanted than at work", 9.0
    case = CASES[name]
    starters, along = recorded(case, torch.float64)
    loop = Loop(seconds_of(case, 8), 2, 5, starters)
    course = []
    while loop.fill(until):
        along()
        course.append(loop.commit())
    waiting = len(loop.waiting)
    assert 0 < waiting < 5
    course.append(loop.commit())
    sim = simulation(torch.float64, "eager", case.simulated())
    sim.run(until_clock=until, evaluate_every=0, progress=False)
    assert sim.round == len(course) - 1
    row = sim.flush()
    assert row is not None
    assert row["clients"] == waiting
    truth = run_literally(name, "float64", course)[-1]
    assert set(kept(sim)) == set(truth)
    assert all(literal.norm(kept(sim)[what] - truth[what]) <= 1e-10 * literal.norm(truth[what]) for what in truth)
    assert sim.flush() is None


def test_a_run_may_be_cut_up_by_the_clock() -> None:
    """In the middle of rounds: nothing of the course changes."""
    name = "FedBuff, staleness"
    sim = simulation(torch.float64, "eager", CASES[name].simulated())
    course = course_of(name, 8)

    def rounds() -> Iterator[ff.Simulation]:
        for until in np.arange(1, 10_000) * 0.7:
            while (row := sim.round) < ROUNDS and course[row].clock <= until:
                sim.run(1, until_clock=float(until), evaluate_every=0, progress=False)
                assert sim.round == row + 1
                yield sim
            if sim.round == ROUNDS:
                return
            sim.run(until_clock=float(until), evaluate_every=0, progress=False)

    assert_equals(rounds(), run_literally(name, "float64", course))


def test_compressed_updates_take_less_time_to_send() -> None:
    """The clock goes by the bytes that are really sent, as the row counts them."""
    fleet = Fleet(bytes_per_second=10.0)
    timing = EventDriven(N, 1, fleet=fleet)
    settings = {**Case(timing).simulated(), "compression": ff.compression.Sign(), "epochs": None, "steps": 1}
    sim = simulation(torch.float32, "native", settings)
    row = sim.step()
    assert row["bytes_up"] == 6 + 4 * 4
    down = row["bytes_down"] / N  # to all who started
    assert row["clock"] == pytest.approx(1 + (down + row["bytes_up"]) / 10.0, rel=1e-12)
