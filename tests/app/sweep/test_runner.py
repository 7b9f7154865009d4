"""Sweeps as they are carried out: killed points, Ctrl-C, halving, what is shared and what is left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fastfed.app import runs, sweep
from fastfed.app.sweep.runner import Event, shares
from fastfed.saved import checkpoint

from .support import write


class Listener:
    """Remembers events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def points(self, kind: str) -> list[str]:
        return [event.outcome.point.name for event in self.events if event.kind == kind and event.outcome is not None]

    def texts(self, kind: str) -> list[str]:
        return [event.text for event in self.events if event.kind == kind]


def rounds_of(home: Path) -> int:
    log = home / runs.ROUNDS
    return len(log.read_text().splitlines()) if log.exists() else 0


def await_rounds(home: Path, number: int) -> None:
    limit = time.monotonic() + 60
    while rounds_of(home) < number:
        assert time.monotonic() < limit, "the point does not get anywhere"
        time.sleep(0.005)


class KillFirst(Listener):
    """Kills the process of the first point once it has run some rounds."""

    def __init__(self, home: Path) -> None:
        super().__init__()
        self.home = home

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if event.kind == "started" and event.outcome is not None and len(self.points("started")) == 1:
            assert event.pid is not None
            await_rounds(self.home / "points" / event.outcome.point.name, 2)
            os.kill(event.pid, signal.SIGKILL)


def test_a_killed_point_and_one_without_data_fail_and_the_others_go_on(tmp_path: Path) -> None:
    """And every data set is loaded once, by whatever points share it; then --resume runs only those that failed."""
    home, file = tmp_path / "out", write(tmp_path)
    grid = ["data.alpha=0.5,1", "client.lr=0.1,0.2", "data.clients=20,100000"]
    plan = sweep.plan(file, grid, ["run.rounds=400"])
    heard = KillFirst(home)
    report = sweep.carry_out(plan, home, jobs=2, threads=1, tell=heard)
    assert heard.texts("loading") == ["digits"] * 4
    killed, *without_data = report.failed
    assert killed.error is not None
    assert killed.error.endswith("the process of this run was ended by the signal SIGKILL (out of memory?)")
    assert runs.read(home / "points" / killed.point.name).status == "failed"
    assert [one.point.settings["data.clients"] for one in without_data] == [100000] * 4
    assert all(one.error is not None and one.error.startswith("data.clients: ") for one in without_data)
    done = [one for one in report.outcomes if one.status == "done"]
    assert [one.rounds for one in done] == [400] * 3
    assert not report.interrupted

    before = {one.point.name: (home / "points" / one.point.name / runs.INFO).stat().st_mtime_ns for one in done}
    again = Listener()
    report = sweep.carry_out(plan, home, resume=True, tell=again)
    assert [name for name in again.points("finished") if "100000" not in name] == [killed.point.name]
    assert sorted(again.points("kept")) == sorted(before)
    assert {one.point.name for one in report.failed} == {one.point.name for one in without_data}
    after = {name: (home / "points" / name / runs.INFO).stat().st_mtime_ns for name in before}
    assert after == before


class InterruptAfter(Listener):
    """Ctrl-C once the first point has run some rounds."""

    def __init__(self, home: Path) -> None:
        super().__init__()
        self.home = home

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if event.kind == "started" and len(self.points("started")) == 1:
            await_rounds(self.home / "points" / self.points("started")[0], 3)
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_leaves_checkpoints_and_resume_ends_in_the_same_bits(tmp_path: Path) -> None:
    home, file = tmp_path / "out", write(tmp_path)
    rounds = 3000
    plan = sweep.plan(file, ["client.lr=0.1,0.2,0.3"], [f"run.rounds={rounds}", "run.evaluate_every=500"])
    heard = InterruptAfter(home)
    handler = signal.getsignal(signal.SIGINT)
    report = sweep.carry_out(plan, home, jobs=1, tell=heard)
    assert signal.getsignal(signal.SIGINT) is handler
    assert report.interrupted
    assert not report.failed
    first, *others = report.outcomes
    assert (first.status, [one.status for one in others]) == ("interrupted", ["waiting"] * 2)
    stopped = runs.read(home / "points" / first.point.name)
    assert 3 <= len(stopped.history) < rounds
    assert checkpoint.all_of(stopped.path / runs.CHECKPOINT)

    short = sweep.plan(file, ["client.lr=0.1"], [f"run.rounds={len(stopped.history) + 4}", "run.evaluate_every=500"])
    report = sweep.carry_out(short, home, resume=True)
    assert [one.status for one in report.outcomes] == ["done"]
    alone = runs.execute(short.configs[first.point.name], tmp_path / "alone", progress=False)
    resumed = runs.read(home / "points" / first.point.name)
    assert resumed.history.without_seconds() == alone.history.without_seconds()


def test_halving_drops_the_worse_and_goes_on_from_checkpoints(tmp_path: Path) -> None:
    home, file = tmp_path / "out", write(tmp_path)
    sets = ["run.rounds=9", "run.evaluate_every=1"]
    plan = sweep.plan(file, ["client.lr=1e-5:1e-1:log5", "server.lr=1e-4,1"], sets)
    heard = Listener()
    report = sweep.carry_out(plan, home, eta=3, tell=heard)
    assert heard.texts("rung") == report.rungs == [
        "after round 1, 3 of 10 runs go on: 7 dropped",
        "after round 3, 1 of 3 runs go on: 2 dropped",
    ]  # fmt: skip
    assert len(heard.points("finished")) == heard.events[-1].total == heard.events[-1].done == 10 + 3 + 1
    assert sorted(one.rounds for one in report.outcomes) == [1] * 7 + [3] * 2 + [9]
    winner = next(one for one in report.outcomes if one.rounds == 9)
    assert (winner.status, winner.point.settings) == ("done", {"client.lr": 0.1, "server.lr": 1})
    assert {one.status for one in report.outcomes if one.rounds == 3} == {"dropped at round 3"}
    alone = runs.execute(plan.configs[winner.point.name], tmp_path / "alone", progress=False)
    assert runs.read(home / "points" / winner.point.name).history.without_seconds() == alone.history.without_seconds()

    whole = sweep.carry_out(plan, home, resume=True, eta=3, tell=(again := Listener()))
    assert again.points("finished") == []
    assert [(one.status, one.value) for one in whole.outcomes] == [(one.status, one.value) for one in report.outcomes]


def test_places_that_hold_something_are_refused(tmp_path: Path) -> None:
    plan = sweep.plan(write(tmp_path), ["client.lr=0.1"])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("dear diary")
    for resume in (False, True):
        with pytest.raises(runs.RunExists, match="is not empty, and holds no sweep"):
            sweep.carry_out(plan, tmp_path / "mine", resume=resume)
    with pytest.raises(runs.RunExists, match="is a file"):
        sweep.carry_out(plan, tmp_path / "mine" / "notes")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes"]


@pytest.mark.parametrize(
    ("points", "jobs", "threads", "shared"),
    [
        (10, None, None, (8, 1)),
        (2, None, None, (2, 4)),
        (3, None, None, (3, 2)),
        (10, 3, None, (3, 2)),
        (10, None, 3, (2, 3)),
        (10, 16, None, (16, 1)),
        (10, 2, 5, (2, 5)),
        (10, None, 9, (1, 9)),
    ],
)
def test_points_share_the_cores(points: int, jobs: int | None, threads: int | None, shared: tuple[int, int]) -> None:
    assert shares(points, jobs, threads, cores=8) == shared


def test_if_the_sweep_is_killed_its_points_are_interrupted(tmp_path: Path) -> None:
    """Nothing goes on behind the user's back: the point in flight leaves a checkpoint, the next is never begun."""
    home, file = tmp_path / "out", write(tmp_path)
    arguments = ["--grid", "client.lr=0.1,0.2", "--set", "run.rounds=20000", "--jobs", "1", "--out", str(home)]
    program = subprocess.Popen([sys.executable, "-m", "fastfed.app.cli", "sweep", str(file), *arguments])
    first, second = (home / "points" / f"client.lr={lr},seed=0" for lr in (0.1, 0.2))
    await_rounds(first, 3)
    program.kill()
    program.wait()
    limit = time.monotonic() + 60
    while runs.read(first).status == "running":
        assert time.monotonic() < limit, "the point goes on"
        time.sleep(0.01)
    stopped = runs.read(first)
    assert stopped.status == "interrupted"
    # it may be stopped between a round and its row, which the checkpoint has too
    assert max(checkpoint.rounds_of(first / runs.CHECKPOINT)) - len(stopped.history) in (0, 1)
    assert not second.exists()
