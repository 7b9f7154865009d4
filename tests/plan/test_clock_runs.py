"""Runs that end by the simulated clock: the last round is evaluated, and a partly filled buffer may be flushed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import fastfed as ff

from ..simulation.support import small_federation, small_model

FLEET = ff.fleet.Fleet(step_seconds=1.0, spread=0.8)


def buffered(**settings: Any) -> ff.Simulation:
    """Every twentieth second or so a round of five updates."""
    given = ff.methods.fedbuff(0.1, 7, 5, fleet=FLEET) | settings
    return ff.Simulation(small_model(), small_federation(), batch_size=7, seed=11, **given)


def a_time_between_rounds(round: int, waiting: int) -> float:
    """A moment after this round at which so many updates wait for the next, and none comes at the same time."""
    sim = buffered()
    sim.run(round, evaluate_every=0, progress=False)
    clock = sim.history.last("clock")
    while len(sim.planner.queue.arrived[0]) != waiting:  # type: ignore[attr-defined]
        clock += 0.01
        sim.run(until_clock=clock, evaluate_every=0, progress=False)
        assert sim.round == round
    return float(clock)


def evaluated(history: ff.History) -> list[int]:
    return [row["round"] for row in history if "test_accuracy" in row]


def test_the_last_round_before_the_end_is_evaluated_and_logged_so(tmp_path: Path) -> None:
    until = a_time_between_rounds(5, 3)
    history = buffered().run(until_clock=until, evaluate_every=3, log=tmp_path / "log", progress=False)
    assert len(history) == 5
    assert evaluated(history) == [3, 5]
    logged = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert logged == history.rounds


def test_looking_whether_a_round_is_the_last_changes_nothing() -> None:
    whole, cut = buffered(), buffered()
    whole.run(7, evaluate_every=0, progress=False)
    for until in (0.5, a_time_between_rounds(2, 1), a_time_between_rounds(5, 3)):
        cut.run(until_clock=until, evaluate_every=1, progress=False)
    cut.run(until=7, evaluate_every=0, progress=False)
    assert torch.equal(cut.params, whole.params)
    assert cut.history.column("clock") == whole.history.column("clock")
    assert cut.history.column("bytes_down") == whole.history.column("bytes_down")


def test_a_run_may_flush_what_waits_at_its_end(tmp_path: Path) -> None:
    until = a_time_between_rounds(4, 3)
    by_hand = buffered()
    by_hand.run(until_clock=until, evaluate_every=0, progress=False)
    by_hand.flush()
    sim = buffered()
    history = sim.run(until_clock=until, flush=True, evaluate_every=3, checkpoint=tmp_path, progress=False)
    assert history.column("clients") == [5, 5, 5, 5, 3]
    assert evaluated(history) == [3, 5]  # the fourth is not the last
    assert torch.equal(sim.params, by_hand.params)
    again = ff.Simulation.resume(tmp_path, fed=small_federation())
    assert again.round == 5
    assert torch.equal(again.params, sim.params)


def test_nothing_waits_and_nothing_is_flushed() -> None:
    until = a_time_between_rounds(4, 0)
    history = buffered().run(until_clock=until, flush=True, evaluate_every=3, progress=False)
    assert history.column("clients") == [5, 5, 5, 5]
    assert evaluated(history) == [3, 4]


def test_a_run_flushes_once_even_if_those_it_sets_free_would_be_back_in_time() -> None:
    """With everybody at work or in the buffer, a step lets some start again before the end."""
    timing = ff.timing.EventDriven(12, buffer=12, fleet=ff.fleet.Fleet(step_seconds=[1.0] * 11 + [50.0]))
    sim = buffered(timing=timing, steps=1)
    history = sim.run(until_clock=10.0, flush=True, evaluate_every=0, progress=False)
    assert history.column("clients") == [11]
    assert history.last("clock") == 1.0


def test_a_run_without_a_round_in_time_has_no_rows(tmp_path: Path) -> None:
    sim = buffered()
    assert len(sim.run(until_clock=1e-6, flush=True, evaluate_every=1, checkpoint=tmp_path, progress=False)) == 0
    with pytest.raises(KeyError, match="test_accuracy: no round has a value; no round has been run"):
        sim.history.last("test_accuracy")
    assert ff.Simulation.resume(tmp_path, fed=small_federation()).round == 0
