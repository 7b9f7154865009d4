"""Runs that end when nothing gets better, functions of every round, and what a run has to say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastfed as ff
from fastfed.hooks import Patience, Waiting
from fastfed.record.history import History

from .support import simulation, small_federation


def until_it_waits(values: list[float | None], patience: Patience, column: str = "test_accuracy") -> int | None:
    """After how many rows it asks to stop."""
    sim = simulation()
    hook = Waiting(patience, column)
    hook.begin(sim)
    for number, value in enumerate(values, 1):
        hook.after_round(sim, {"round": number, column: value}, False)
        if hook.asks_to_stop(sim):
            return number
    return None


@pytest.mark.parametrize(
    ("values", "patience", "column", "stops"),
    [
        ([0.1, 0.5, 0.4, 0.5, 0.5], Patience(3), "test_accuracy", 5),
        ([0.1, 0.5, 0.4, 0.6, 0.5, 0.6], Patience(2), "test_accuracy", 6),
        ([0.1, 0.2, 0.3, 0.4], Patience(1), "test_accuracy", None),
        ([0.1, 0.2, 0.3, 0.4], Patience(1, mode="min"), "test_accuracy", 2),
        ([3.0, 2.0, 2.5, 1.0], Patience(1), "test_loss", 3),
        ([3.0, 2.95, 2.91, 2.0], Patience(2, least=0.1), "test_loss", 3),
        ([None, None], Patience(2), "test_loss", 2),
        ([1.0, None, 0.5], Patience(2), "test_loss", None),
    ],
)
def test_it_waits_for_something_better(values: Any, patience: Patience, column: str, stops: int | None) -> None:
    assert until_it_waits(values, patience, column) == stops


def flat(**settings: Any) -> ff.Simulation:
    """Nothing ever gets better."""
    return simulation(server=ff.servers.FedAvg(lr=1e-30), **settings)


def test_a_run_ends_says_why_and_is_evaluated_at_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    sim = flat()
    history = sim.run(rounds=50, evaluate_every=2, patience=3)
    assert len(history) == 8
    (said,) = sim.notes
    assert re.fullmatch(
        r"patience: test_accuracy was no better than 0\.\d+ in the last 3 measurements; the run ends after round 8",
        said,
    )
    assert capsys.readouterr().err.count(said) == 1
    sim = flat()
    history = sim.run(rounds=50, evaluate_every=20, patience=Patience(3, "train_loss", "max", 9.0), progress=False)
    assert len(history) == 4
    assert "test_accuracy" in history.rounds[-1]


def test_who_is_resumed_has_waited_as_long(tmp_path: Path) -> None:
    whole = flat().run(rounds=50, evaluate_every=1, patience=5, progress=False)
    sim = flat()
    sim.run(rounds=3, evaluate_every=1, patience=5, checkpoint=tmp_path, progress=False)
    again = ff.Simulation.resume(tmp_path, model=sim.model, fed=sim.fed)
    assert again.run(until=50, evaluate_every=1, patience=5, progress=False).without_seconds() == [
        *whole.without_seconds()
    ]
    assert len(whole) == 6
    assert len(again.run(rounds=5, evaluate_every=1, patience=5, progress=False)) == 6


@pytest.mark.parametrize(
    ("patience", "sentence"),
    [
        (0, "patience: must be a whole number >= 1, got 0"),
        (
            Patience(1, "test_f1"),
            "patience: this run does not measure 'test_f1'; it measures train_loss, test_accuracy",
        ),
    ],
)
def test_what_no_run_can_wait_for_is_refused(patience: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        simulation().run(rounds=1, patience=patience, progress=False)


def test_a_patience_is_refused_where_it_says_nothing() -> None:
    with pytest.raises(ValueError, match=r"^patience: test_accuracy is never measured with evaluate_every=0"):
        simulation().run(rounds=1, patience=1, evaluate_every=0, progress=False)
    for wrong in ({"mode": "up"}, {"least": -1.0}, {"times": True}):
        with pytest.raises(ValueError, match=f"^{next(iter(wrong))}: must be "):
            Patience(**{"times": 1, **wrong})  # type: ignore[arg-type]


def test_a_function_of_every_round_which_may_end_the_run() -> None:
    seen: list[tuple[int, bool]] = []

    def look(sim: ff.Simulation, row: dict[str, Any]) -> bool:
        seen.append((sim.round, "test_accuracy" in row))
        row["doubled"] = 2 * row["round"]
        return row["round"] == 3

    history = simulation().run(rounds=9, evaluate_every=2, on_round=look, progress=False)
    assert seen == [(1, False), (2, True), (3, False)]
    assert history.column("doubled") == [2, 4, 6]
    with pytest.raises(TypeError, match=r"^on_round: must be a function of the simulation and a row, got 3"):
        simulation().run(rounds=1, on_round=3, progress=False)  # type: ignore[arg-type]


def absolute(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.gather(1, targets[:, None]) - 1).abs().mean()


def test_why_the_engine_is_not_taken_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    sim = simulation(loss=absolute)
    (said,) = sim.notes
    assert said.startswith("executor: eager, not native: plain autograd runs any module with any loss, and native ")
    assert "losses by name" in said
    sim.run(rounds=1, progress=False)  # nobody looks
    assert capsys.readouterr().err == ""
    sim.run(rounds=1)
    sim.run(rounds=1)
    assert capsys.readouterr().err.count(said) == 1
    assert list(simulation(loss=absolute, executor="eager").notes) == []  # as asked for
    assert list(simulation().notes) == []
    module = nn.Sequential(nn.Linear(6, 4), nn.Softplus())
    odd = ff.Simulation(module, small_federation(), client=ff.clients.SGD(lr=0.1), cohort=2)
    assert "(Softplus) is nothing that FastFed's engine knows" in next(iter(odd.notes))


def test_a_history_of_before_counts() -> None:
    sim = flat()
    sim.history = History([{"round": 1, "test_accuracy": 0.9}, {"round": 2, "test_accuracy": 0.8}])
    hook = Waiting(Patience(2), "test_accuracy")
    hook.begin(sim)
    assert not hook.asks_to_stop(sim)
    hook.after_round(sim, {"round": 3, "test_accuracy": 0.8}, False)
    assert hook.asks_to_stop(sim)
    assert torch.isfinite(sim.params).all()
