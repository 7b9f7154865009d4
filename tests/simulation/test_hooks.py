"""Hooks of a run: what they are told, in which order, and that they may end it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fastfed as ff
from fastfed.record.writers import read_json_lines
from fastfed.saved import checkpoint

from .support import simulation


class Patience(ff.hooks.Hook):
    """Ends a run once so many evaluated rounds in a row were no better than the best; adds a column."""

    def __init__(self, rounds: int) -> None:
        self.rounds, self.best, self.worse = rounds, 0.0, 0

    def after_round(self, sim: ff.Simulation, row: dict[str, Any], last: bool) -> None:
        better = row["test_accuracy"] > self.best
        self.best, self.worse = max(self.best, row["test_accuracy"]), 0 if better else self.worse + 1
        row["worse"] = self.worse

    def asks_to_stop(self, sim: ff.Simulation) -> bool:
        return self.worse >= self.rounds


def test_a_hook_ends_a_run_and_its_column_is_written(tmp_path: Path) -> None:
    sim = simulation()
    log, home = tmp_path / "log.jsonl", tmp_path / "checkpoints"
    history = sim.run(
        rounds=200,
        evaluate_every=1,
        hooks=[Patience(2)],
        log=log,
        checkpoint=home,
        checkpoint_every=1000,
        progress=False,
    )
    assert len(history) < 200
    assert history.last("worse") == 2
    assert read_json_lines(log).column("worse") == history.column("worse")
    assert len(history) in checkpoint.rounds_of(home)  # the last round is saved, though it is no thousandth


class Diary(ff.hooks.Hook):
    def __init__(self) -> None:
        self.told: list[str] = []

    def begin(self, sim: ff.Simulation) -> None:
        self.told.append(f"begin {sim.round}")

    def after_round(self, sim: ff.Simulation, row: dict[str, Any], last: bool) -> None:
        evaluated = " evaluated" if "test_accuracy" in row else ""
        self.told.append(f"round {row['round']}{evaluated}{' last' if last else ''}")

    def interrupted(self, sim: ff.Simulation) -> None:
        self.told.append(f"interrupted {sim.round}")

    def end(self, sim: ff.Simulation) -> None:
        self.told.append("end")


def test_what_a_hook_is_told() -> None:
    diary = Diary()
    simulation().run(rounds=3, evaluate_every=2, hooks=[diary], progress=False)
    assert diary.told == ["begin 0", "round 1", "round 2 evaluated", "round 3 evaluated last", "end"]


def test_a_hook_that_fails_ends_the_run_and_the_others_are_told(tmp_path: Path) -> None:
    class Failing(ff.hooks.Hook):
        def after_round(self, sim: ff.Simulation, row: dict[str, Any], last: bool) -> None:
            if sim.round == 2:
                raise RuntimeError("no more")

    diary = Diary()
    with pytest.raises(RuntimeError, match="no more"):
        simulation().run(rounds=3, evaluate_every=0, hooks=[diary, Failing()], checkpoint=tmp_path, progress=False)
    assert diary.told == ["begin 0", "round 1", "round 2", "interrupted 2", "end"]
    assert checkpoint.rounds_of(tmp_path) == {2}


def test_what_is_no_hook_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^hooks: must have the methods of fastfed.hooks.Hook, got 3"):
        simulation().run(rounds=1, hooks=[3], progress=False)  # type: ignore[list-item]


def test_a_hook_that_fails_at_the_end_does_not_keep_others_from_theirs() -> None:
    ended: list[str] = []

    class Ending(ff.hooks.Hook):
        def __init__(self, name: str, fails: bool) -> None:
            self.name, self.fails = name, fails

        def end(self, sim: ff.Simulation) -> None:
            ended.append(self.name)
            if self.fails:
                raise RuntimeError(self.name)

    with pytest.raises(RuntimeError, match="second"):
        simulation().run(rounds=1, progress=False, hooks=[Ending("first", False), Ending("second", True)])
    assert ended == ["second", "first"]
