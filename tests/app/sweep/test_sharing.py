"""Several processes at one sweep: points that others have, shards, a disk without locks, a Dask cluster."""

from __future__ import annotations

import errno
import fcntl
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastfed.app import runs, sweep
from fastfed.app.config import ConfigError
from fastfed.app.sweep import host
from fastfed.app.sweep.runner import Event
from fastfed.app.sweep.shard import Shard
from fastfed.saved import checkpoint

from .support import write
from .test_runner import Listener, await_rounds

GRID = ["client.lr=0.1,0.2,0.3"]
LONGER = ["run.rounds=200", "run.evaluate_every=100"]


@pytest.fixture(scope="module")
def one_sweep(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the points come to where one process runs them all."""
    folder = tmp_path_factory.mktemp("alone")
    sweep.carry_out(sweep.plan(write(folder), GRID, LONGER), folder / "out", jobs=2, threads=1)
    return digests(folder / "out")


def digests(home: Path) -> dict[str, Any]:
    """What came of every point: its rows, without what depends on the machine and its clock."""
    told = {}
    for run in runs.find(home):
        rows = [json.loads(line) for line in (run / runs.ROUNDS).read_text().splitlines()]
        told[run.name] = [{k: v for k, v in row.items() if "seconds" not in k} for row in rows]
    return told


# ---- points that others have ----------------------------------------------------------------------------------------


def test_what_another_process_has_is_passed_over_and_taken_up_later(tmp_path: Path) -> None:
    home, plan = tmp_path / "out", sweep.plan(write(tmp_path), GRID)
    theirs = home / "points" / plan.points[1].name

    class Holding(Listener):
        """Another process begins with the second point while the first is loading."""

        held: Any = None

        def __call__(self, event: Event) -> None:
            super().__call__(event)
            if self.held is None:
                self.held = runs.alone(theirs)
                self.held.__enter__()

    heard = Holding()
    report = sweep.carry_out(plan, home, jobs=1, threads=1, tell=heard)
    assert [one.status for one in report.outcomes] == ["done", "elsewhere", "done"]
    assert (report.failed, [one.point.name for one in report.elsewhere]) == ([], [plan.points[1].name])
    heard.held.__exit__(None, None, None)
    report = sweep.carry_out(plan, home, jobs=1, threads=1, resume=True)
    assert [one.status for one in report.outcomes] == ["done"] * 3
    assert not (theirs / ".lock").exists()


def test_what_is_to_be_chosen_among_must_all_be_there(tmp_path: Path) -> None:
    home, plan = tmp_path / "out", sweep.plan(write(tmp_path), GRID)
    theirs = home / "points" / plan.points[2].name
    held: list[Any] = []

    def tell(event: Event) -> None:
        if not held:
            held.append(runs.alone(theirs))
            held[0].__enter__()

    with pytest.raises(
        runs.RunFailed, match=r"another process is at work on client\.lr 0\.3, seed 0, among which is to"
    ):
        sweep.carry_out(plan, home, jobs=1, threads=1, eta=3, tell=tell)
    held[0].__exit__(None, None, None)


@pytest.mark.exhaustive
def test_two_sweeps_at_once_share_the_points(tmp_path: Path, one_sweep: dict[str, Any]) -> None:
    """Both end well, and the bits are those of one sweep alone."""
    options = [word for text in LONGER for word in ("--set", text)]
    command = [sys.executable, "-m", "fastfed", "sweep", str(write(tmp_path)), "--grid", *GRID, *options]
    command += ["--out", str(tmp_path / "out"), "--resume", "--jobs", "1", "--threads", "1"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert digests(tmp_path / "out") == one_sweep


def test_what_others_write_aside_keeps_nobody_from_beginning(tmp_path: Path) -> None:
    """Another one may have made the directory just now, and have come as far as a file that is to become sweep.json."""
    home, plan = tmp_path / "out", sweep.plan(write(tmp_path), ["client.lr=0.1"])
    home.mkdir()
    (home / ".sweep.json.abcdef.12.tmp").touch()
    assert not sweep.carry_out(plan, home, jobs=1, threads=1).failed


def test_a_directory_that_another_is_about_to_begin_is_cleared_under_its_lock(tmp_path: Path) -> None:
    """What a killed process left is removed; the lock stays until all is gone, so that nobody begins in between."""
    home = tmp_path / "point"
    home.mkdir()
    (home / runs.CONFIG).write_text("half")
    seen = []
    real = Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path.name != runs.LOCK:
            seen.append((home / runs.LOCK).exists())
        real(path, missing_ok)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "unlink", unlink)
        host._clear_unborn(home)
    assert seen == [True]
    assert list(home.iterdir()) == []


# ---- locks ----------------------------------------------------------------------------------------------------------


def without_locks(*_: object) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


def test_a_disk_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = sweep.plan(write(tmp_path), GRID)
    monkeypatch.setattr(fcntl, "flock", without_locks)
    with pytest.raises(
        runs.RunFailed, match=r"its disk has no locks \(No locks available\).*use --out with another disk"
    ):
        sweep.carry_out(plan, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_single_run_goes_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (point,) = sweep.plan(write(tmp_path), ["client.lr=0.1"]).configs.values()
    monkeypatch.setattr(fcntl, "flock", without_locks)
    assert runs.execute(point, tmp_path / "a", progress=False).status == "done"


def test_a_lock_whose_file_was_removed_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who had it may remove it between our opening the file and our locking it: a third one could lock a new file."""
    home, real = tmp_path / "a", fcntl.flock
    removed = []

    def late(handle: Any, how: int) -> None:
        if not removed:
            removed.append(home / ".lock")
            (home / ".lock").unlink()
        real(handle, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with runs.alone(home), pytest.raises(runs.RunBusy), runs.alone(home):
        pass
    assert removed
    assert not home.exists()  # nothing was written into it


# ---- shards ---------------------------------------------------------------------------------------------------------


def test_shards_together_are_the_sweep(tmp_path: Path, one_sweep: dict[str, Any]) -> None:
    """On a disk that they share; none is told of the others, and --resume is not needed."""
    plan = sweep.plan(write(tmp_path), GRID, LONGER)
    names = [point.name for point in plan.points]
    second, first = Listener(), Listener()
    report = sweep.carry_out(plan, tmp_path / "out", jobs=1, threads=1, shard=Shard(2, 2), tell=second)
    assert second.points("finished") == names[1::2]
    assert [one.status for one in report.outcomes] == ["elsewhere", "done", "elsewhere"]
    report = sweep.carry_out(plan, tmp_path / "out", jobs=1, threads=1, shard=Shard(1, 2), tell=first)
    assert (first.points("finished"), first.points("kept")) == (names[0::2], names[1::2])
    assert [one.status for one in report.outcomes] == ["done"] * 3
    assert digests(tmp_path / "out") == one_sweep
    other = sweep.plan(write(tmp_path), ["client.lr=0.4,0.5"])
    with pytest.raises(runs.RunExists, match="holds another sweep, of which this is no shard"):
        sweep.carry_out(other, tmp_path / "out", shard=Shard(1, 2))


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/0", "-1/2", "1/2/3", ""])
def test_a_shard_that_is_none(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--shard: must be i/n with 1 <= i <= n, as in 2/4, got "):
        Shard.of(text)


def test_shards_choose_nothing(tmp_path: Path) -> None:
    plan = sweep.plan(write(tmp_path), GRID)
    with pytest.raises(ConfigError, match="--shard: does not go with --halve"):
        sweep.carry_out(plan, tmp_path / "out", eta=3, shard=Shard(1, 2))
    with pytest.raises(ConfigError, match="--shard: there are only 3 points, got 1/4"):
        sweep.carry_out(plan, tmp_path / "out", shard=Shard(1, 4))
    assert not (tmp_path / "out").exists()


# ---- a cluster ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed", reason="distributed is missing: pip install 'fastfed[dask]'")
    workers = {"n_workers": 2, "threads_per_worker": 2, "processes": True}
    with distributed.LocalCluster(**workers, host="127.0.0.1", dashboard_address=None) as made:
        yield made


def address(cluster: Any) -> str:
    return str(cluster.scheduler_address).replace("tcp://", "dask://")


@pytest.mark.exhaustive
def test_a_cluster_gives_the_same_bits(tmp_path: Path, cluster: Any, one_sweep: dict[str, Any]) -> None:
    plan = sweep.plan(write(tmp_path), GRID, LONGER)
    heard = Listener()
    report = sweep.carry_out(plan, tmp_path / "out", pool=address(cluster), tell=heard)
    assert digests(tmp_path / "out") == one_sweep
    assert sorted(heard.points("finished")) == sorted(point.name for point in plan.points)
    assert [one.status for one in report.outcomes] == ["done"] * 3


def test_a_point_that_fails_on_the_cluster_is_a_sentence(tmp_path: Path, cluster: Any) -> None:
    plan = sweep.plan(write(tmp_path), ["data.clients=100000"])
    (failed,) = sweep.carry_out(plan, tmp_path / "out", pool=address(cluster)).failed
    assert failed.error is not None
    assert failed.error.startswith("data.clients: ")


def test_a_stopped_sweep_leaves_checkpoints_on_the_cluster(tmp_path: Path, cluster: Any) -> None:
    from fastfed.app.sweep.dask_pool import DaskPool

    rounds = 100_000
    plan = sweep.plan(write(tmp_path), GRID, [f"run.rounds={rounds}", "run.evaluate_every=0"], select="train_loss")
    homes = [(point, tmp_path / point.name) for point in plan.points]
    with DaskPool(address(cluster), 1) as pool:
        events = pool.run(homes, None, True)

        def stop_later() -> None:
            await_rounds(homes[0][1], 3)
            await_rounds(homes[1][1], 3)
            pool.stop()

        thread = threading.Thread(target=stop_later)
        thread.start()
        told = list(events)
        thread.join()
    assert [(one["status"], one["error"]) for one in told] == [("interrupted", None)] * 2
    for _, home in homes[:2]:
        assert checkpoint.all_of(home / runs.CHECKPOINT)
        assert runs.read(home).status == "interrupted"
    assert not homes[2][1].exists()


@pytest.mark.parametrize(
    ("pool", "sentence"),
    [
        ("ray://127.0.0.1:1", "--pool: must be the address of a scheduler, dask://HOST:PORT, got 'ray://127.0.0.1:1'"),
        ("dask://", "--pool: must be the address of a scheduler, dask://HOST:PORT, got 'dask://'"),
    ],
)
def test_an_address_that_is_none(tmp_path: Path, pool: str, sentence: str) -> None:
    plan = sweep.plan(write(tmp_path), GRID)
    with pytest.raises(ConfigError, match=f"^{sentence}"):
        sweep.carry_out(plan, tmp_path / "out", pool=pool)
    assert not (tmp_path / "out").exists()


def test_a_scheduler_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="distributed is missing: pip install 'fastfed[dask]'")
    monkeypatch.setattr("fastfed.app.sweep.dask_pool._SECONDS_TO_CONNECT", 1)
    plan = sweep.plan(write(tmp_path), GRID)
    with pytest.raises(ConfigError, match=r"^--pool: no scheduler answers at dask://127\.0\.0\.1:9: "):
        sweep.carry_out(plan, tmp_path / "out", pool="dask://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"^--jobs: is for this machine"):
        sweep.carry_out(plan, tmp_path / "out", pool="dask://127.0.0.1:9", jobs=2)
