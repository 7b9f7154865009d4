"""Checkpoints written while the run goes on: of the round they were taken at, and no failure is lost."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import fastfed as ff
from fastfed.saved import checkpoint
from fastfed.saved import run as saved

from ..simulation.support import simulation, small_federation

METHOD = ff.methods.fedyogi(0.1, 0.05)


class At(ff.hooks.Hook):
    """Does something after a round."""

    def __init__(self, round: int, action: Any) -> None:
        self.round, self.action = round, action

    def after_round(self, sim: ff.Simulation, row: dict[str, Any], last: bool) -> None:
        if sim.round == self.round:
            self.action()


def test_the_run_goes_on_and_the_checkpoint_is_of_its_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed, write = threading.Event(), checkpoint.write

    def late(*given: Any) -> Path:
        assert allowed.wait(60)
        return write(*given)

    monkeypatch.setattr(checkpoint, "write", late)
    written: list[set[int]] = []
    sim = simulation(**METHOD)
    # Round 2 is not written before round 3 is over: the run does not wait, and has another model by then.
    sim.run(rounds=5, checkpoint=tmp_path, checkpoint_every=2, keep=9, evaluate_every=0, progress=False,
            hooks=[At(3, lambda: written.append(checkpoint.rounds_of(tmp_path))), At(3, allowed.set)])  # fmt: skip
    assert written == [set()]
    alone = simulation(**METHOD)
    alone.run(rounds=2, evaluate_every=0, progress=False)
    resumed = ff.Simulation.resume(tmp_path / "round-00000002.json", fed=small_federation())
    assert resumed.history.without_seconds() == alone.history.without_seconds()
    for name, tensor in alone.tensors().items():
        assert torch.equal(resumed.tensors()[name], tensor), name


def test_what_could_not_be_written_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = checkpoint.write

    def full(directory: Path, round: int, *given: Any) -> Path:
        if round == 2:
            raise OSError(28, "No space left on device")
        return write(directory, round, *given)

    monkeypatch.setattr(checkpoint, "write", full)
    sim = simulation(**METHOD)
    with pytest.raises(OSError, match="No space left"):
        sim.run(rounds=9, checkpoint=tmp_path, checkpoint_every=2, evaluate_every=0, progress=False)
    assert sim.round == 4  # the next checkpoint tells of the one before ...
    assert checkpoint.rounds_of(tmp_path) == {4}  # ... and is written all the same
    resumed = ff.Simulation.resume(tmp_path, fed=small_federation())
    assert resumed.round == 4


def test_a_run_ends_when_everything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is stopped inside a round, when nothing can be saved."""
    sim = simulation(**METHOD)

    def fails(*given: Any) -> None:
        raise RuntimeError("inside a round")

    def break_down() -> None:
        monkeypatch.setattr(sim.server, "step", fails)

    with pytest.raises(RuntimeError, match="inside a round"):
        sim.run(rounds=9, checkpoint=tmp_path, checkpoint_every=2, evaluate_every=0, progress=False,
                hooks=[At(2, break_down)])  # fmt: skip
    assert checkpoint.rounds_of(tmp_path) == {2}


def test_large_states_are_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    write = checkpoint.write

    def seen(*given: Any) -> Path:
        threads.append(threading.current_thread())
        return write(*given)

    monkeypatch.setattr(checkpoint, "write", seen)
    for limit in (saved.COPIED, 10):
        monkeypatch.setattr(saved, "COPIED", limit)
        sim = simulation(**METHOD)
        sim.run(rounds=3, checkpoint=tmp_path / str(limit), checkpoint_every=2, evaluate_every=0, progress=False)
    main = threading.main_thread()
    assert [thread is main for thread in threads] == [False, True, True, True]


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
        simulation(**METHOD).run(rounds=1, progress=False, hooks=[Ending("first", False), Ending("second", True)])
    assert ended == ["second", "first"]
