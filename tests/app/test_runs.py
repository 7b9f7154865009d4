"""Runs on disk: whole, never overwritten, and taken up again to the same bits whatever stopped them."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fastfed
from fastfed import files, simulation
from fastfed.app import config, runs
from fastfed.app.config import document
from fastfed.app.runs import beginning, directory
from fastfed.record import writers as record
from fastfed.saved import checkpoint, sealed

from .config.support import tables

ROUNDS = 6


def configured(**of_run: Any) -> config.Config:
    own = {"rounds": ROUNDS, "cohort": 4, "evaluate_every": 2, "checkpoint_every": 2, "seed": 1, **of_run}
    return config.parse(tables(name="small", run=own))


def contents(home: Path) -> dict[str, bytes]:
    return {str(path.relative_to(home)): path.read_bytes() for path in home.rglob("*") if path.is_file()}


def final_model(home: Path) -> tuple[list[dict[str, Any]], list[list[float]]]:
    """The rows of a run without timings, and all tensors of its last checkpoint."""
    _, tensors = checkpoint.read(home / runs.CHECKPOINT)
    return runs.read(home).history.without_seconds(), [tensors[name].flatten().tolist() for name in sorted(tensors)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("runs") / "whole"
    runs.execute(configured(), home, progress=False)
    return home


# ---- what is beside a run -------------------------------------------------------------------------------------------


def test_everything_that_says_what_was_run_is_beside_it(whole: Path) -> None:
    run = runs.read(whole)
    assert (run.name, run.status, run.metric, len(run.history)) == ("small", "done", "test_accuracy", ROUNDS)
    for name, version in (("fastfed", fastfed.__version__), ("torch", torch.__version__)):
        assert run.info[name] == version
    assert {"python", "numpy", "executor", "threads", "started", "finished"} <= set(run.info)
    assert run.info["machine"]["cores"] >= 1
    assert run.info["machine"]["memory_bytes"] > 1 << 20
    assert run.info["seed"] == run.config["run"]["seed"] == 1
    assert run.info["seconds"] > 0
    assert run.clients is not None
    assert sum(run.clients["sizes"]) == run.clients["examples"] == 1442
    assert run.costs is not None
    assert run.costs["bytes_down"] > 0
    assert runs.find(whole.parent) == [whole]


def test_the_configuration_beside_it_gives_the_same_bits(whole: Path, tmp_path: Path) -> None:
    again = runs.execute(config.load(whole / runs.CONFIG), tmp_path / "again", progress=False)
    assert final_model(again.path) == final_model(whole)


def test_classes_are_counted_by_client() -> None:
    fed = configured().federation()
    told = runs.who_has_what(fed)
    assert told["classes"] == list("0123456789")
    assert [sum(row) for row in told["counts"]] == told["sizes"]
    own = torch.bincount(fed.examples.targets[fed.visit(torch.tensor([3])).rows], minlength=10)
    assert told["counts"][3] == own.tolist()


# ---- nothing is overwritten -----------------------------------------------------------------------------------------


def test_a_second_run_into_the_same_directory_changes_nothing(whole: Path) -> None:
    before = contents(whole)
    with pytest.raises(runs.RunExists, match="holds a run already; use --resume to go on, or another --out"):
        runs.execute(configured(seed=9), whole, progress=False)
    assert contents(whole) == before


@pytest.mark.parametrize("part", [runs.CONFIG, runs.INFO, runs.ROUNDS])
def test_a_part_of_a_run_is_enough(tmp_path: Path, part: str) -> None:
    (tmp_path / part).write_text("precious")
    with pytest.raises(runs.RunExists):
        runs.execute(configured(), tmp_path, progress=False)
    assert contents(tmp_path) == {part: b"precious"}


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("precious")
    with pytest.raises(runs.RunExists, match="is a file, and a run needs a directory"):
        runs.execute(configured(), tmp_path / "a", progress=False)
    assert (tmp_path / "a").read_text() == "precious"


def test_of_two_that_go_on_at_once_the_second_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, made = tmp_path / "a", configured()
    going_on = simulation.Simulation.run

    def with_company(sim: simulation.Simulation, *args: Any, **kwargs: Any) -> Any:
        if "log" in kwargs:
            before = contents(home)
            with pytest.raises(runs.RunExists, match="another process is at work on this run"):
                runs.execute(made, home, resume=True, progress=False)
            assert contents(home) == before
            refused.append(home)
        return going_on(sim, *args, **kwargs)

    refused: list[Path] = []
    monkeypatch.setattr(simulation.Simulation, "run", with_company)
    assert runs.execute(made, home, progress=False).status == "done"
    assert refused == [home]


def test_of_two_that_begin_at_once_the_second_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = configured()
    sim = made.simulation()
    runs.create(tmp_path / "a", made, sim)
    before = contents(tmp_path / "a")
    monkeypatch.setattr(beginning, "refuse_existing", lambda path: None)  # the other one was not there yet
    with pytest.raises(runs.RunExists):
        runs.create(tmp_path / "a", made, sim)
    assert contents(tmp_path / "a") == before


@pytest.mark.parametrize("stop", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), KeyboardInterrupt()])
def test_a_beginning_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: BaseException) -> None:
    made = configured()
    sim = made.simulation()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("precious")
    for home in ("new", "mine"):
        with monkeypatch.context() as patched:
            patched.setattr(Path, "open", failing_from(Path.open, stop, calls=3))
            with pytest.raises((runs.RunFailed, KeyboardInterrupt)) as caught:
                runs.create(tmp_path / home, made, sim)
        if isinstance(stop, OSError):
            assert str(caught.value) == f"{tmp_path / home}: cannot be written: {stop.strerror}; nothing was begun"
    assert contents(tmp_path) == {"mine/notes": b"precious"}
    assert not (tmp_path / "new").exists()


def failing_from(function: Callable[..., Any], error: BaseException, calls: int) -> Callable[..., Any]:
    """The function, which raises in every call after so many."""
    made = 0

    def instead(*arguments: Any, **more: Any) -> Any:
        nonlocal made
        made += 1
        if made > calls:
            raise error
        return function(*arguments, **more)

    return instead


# ---- a full disk ----------------------------------------------------------------------------------------------------

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fails(made: config.Config, home: Path, **more: Any) -> str:
    with pytest.raises(runs.RunFailed) as caught:
        runs.execute(made, home, progress=False, **more)
    return str(caught.value)


@pytest.mark.parametrize(
    ("owner", "name", "calls"), [(record.JsonLines, "write", 3), (sealed, "write", 1), (os, "fsync", 8)]
)
def test_a_full_disk_is_a_sentence_and_resuming_goes_on(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, calls: int
) -> None:
    home = tmp_path / "a"
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, failing_from(getattr(owner, name), FULL, calls))
        said = fails(configured(), home)
    assert said == f"{home}: cannot be written: {FULL.strerror}; what was there stays, and --resume goes on from it"
    stopped = runs.read(home)
    assert (stopped.status, stopped.info["error"]) == ("failed", said)
    assert not (home / runs.TRACEBACK).exists()
    assert runs.execute(configured(), home, resume=True, progress=False).status == "done"
    assert final_model(home) == final_model(whole)
    assert runs.read(home).info["error"] is None


def test_a_disk_so_full_that_not_even_the_failure_can_be_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "a"
    with monkeypatch.context() as patched:
        patched.setattr(record.JsonLines, "write", failing_from(record.JsonLines.write, FULL, 1))
        patched.setattr(directory, "write_whole", failing_from(directory.write_whole, FULL, 0))
        assert "cannot be written: No space left on device" in fails(configured(), home)
    stopped = runs.read(home)
    assert (stopped.status, stopped.info["seconds"] > 0) == ("failed", True)  # written over what was there
    assert "No space left on device" in stopped.info["error"]
    assert runs.execute(configured(), home, resume=True, progress=False).status == "done"


def test_a_file_is_written_over_only_in_the_room_that_it_has(tmp_path: Path) -> None:
    target = tmp_path / "run.json"
    target.write_text("long " * 100)
    files.write_over(target, "short")
    assert target.read_text() == "short"
    with pytest.raises(OSError, match="No space left on device"):
        files.write_over(target, "x" * 100_000)
    assert target.read_text() == "short"


# ---- a crash of the machine -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [None, "", "{", "{}", "\0" * 100])
def test_an_empty_run_json_beside_good_checkpoints_is_written_again(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    home = tmp_path / "a"
    with monkeypatch.context() as patched:
        patched.setattr(simulation, "train", failing_from(simulation.train, KeyboardInterrupt(), 3))
        with pytest.raises(KeyboardInterrupt):
            runs.execute(configured(), home, progress=False)
    (home / runs.INFO).unlink()
    if text is not None:
        (home / runs.INFO).write_text(text)
    done = runs.execute(configured(), home, resume=True, progress=False)
    assert final_model(home) == final_model(whole)
    own = {name: value for name, value in done.info.items() if name not in ("started", "finished", "seconds")}
    assert own == {name: value for name, value in runs.read(whole).info.items() if name in own}
    assert done.info["seconds"] > sum(row["seconds_train"] for row in done.history)
    assert done.info["started"] <= done.info["finished"]


def test_all_that_a_run_begins_with_reaches_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.readlink(f"/proc/self/fd/{number}")))
    made = configured()
    home = tmp_path / "a"
    beginning.create(home, made, made.simulation())
    names = (runs.INFO, runs.CONFIG, "clients.json", "costs.json")
    assert synced == [*(str(home / name) for name in names), str(home), str(tmp_path)]


# ---- going back -----------------------------------------------------------------------------------------------------


def test_a_run_goes_on_from_the_checkpoint_that_is_named(whole: Path, tmp_path: Path) -> None:
    home = Path(shutil.copytree(whole, tmp_path / "a"))
    longer = configured(rounds=ROUNDS + 1)
    assert len(runs.execute(longer, home, resume=True, progress=False).history) == ROUNDS + 1
    with pytest.raises(config.ConfigError, match=r"--from: .*has no checkpoint of round 3; it has 4, 6, 7"):
        runs.execute(longer, home, resume=True, from_round=3, progress=False)
    done = runs.execute(configured(), home, resume=True, from_round=4, progress=False)
    assert (done.status, len(done.history)) == ("done", ROUNDS)
    assert final_model(home) == final_model(whole)
    aside = {path.name for path in (home / runs.CHECKPOINT).glob("*.set-aside")}
    assert "round-00000007.safetensors.set-aside" in aside


# ---- going on -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("round_", [0, 1, 2, 3, 5])
def test_after_an_interrupt_it_goes_on_to_the_same_bits(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, round_: int
) -> None:
    home = tmp_path / "a"
    with monkeypatch.context() as patched:
        interrupted = failing_from(simulation.train, KeyboardInterrupt(), round_)
        patched.setattr(simulation, "train", interrupted)
        with pytest.raises(KeyboardInterrupt):
            runs.execute(configured(), home, progress=False)
    stopped = runs.read(home)
    assert (stopped.status, len(stopped.history)) == ("interrupted", round_)
    assert checkpoint.rounds_of(home / runs.CHECKPOINT) >= {round_}
    done = runs.execute(configured(), home, resume=True, progress=False)
    assert done.status == "done"
    assert done.info["seconds"] > stopped.info["seconds"]
    assert final_model(home) == final_model(whole)


def test_more_rounds_and_other_threads_may_be_asked_for(whole: Path, tmp_path: Path) -> None:
    home = tmp_path / "a"
    runs.execute(configured(rounds=3), home, progress=False)
    done = runs.execute(configured(threads=1), home, resume=True, progress=False)
    assert len(done.history) == ROUNDS
    assert final_model(home)[1] == final_model(whole)[1]
    assert done.config["run"]["rounds"] == ROUNDS


def test_what_is_finished_stays_as_it_is(whole: Path) -> None:
    before = contents(whole)
    assert runs.execute(configured(), whole, resume=True, progress=False).status == "done"
    assert contents(whole) == before


def test_another_configuration_is_no_resumption(whole: Path) -> None:
    before = contents(whole)
    with pytest.raises(
        config.ConfigError, match=r"^run\.seed: the run in .* has 1, got 9; --resume goes on with the same"
    ):
        runs.execute(configured(seed=9), whole, resume=True, progress=False)
    assert contents(whole) == before


def test_a_run_from_before_the_papers_activations_has_its_relu(whole: Path) -> None:
    """An EMNIST CNN had a ReLU after its dense layer before there was a key for it: only a file with that goes on."""

    def asked(**model: Any) -> config.Config:
        own = {"rounds": ROUNDS, "cohort": 4, "evaluate_every": 2, "checkpoint_every": 2, "seed": 1}
        return config.parse(tables(name="small", run=own, model={"name": "emnist_cnn", **model}))

    run = runs.read(whole)
    for first_relu in (False, True):
        formerly = {"name": "emnist_cnn", "classes": 62, "dropout": True, "first_relu": first_relu}
        before = replace(run, config={**run.config, "model": formerly})
        first = {"first_relu": True} if first_relu else {}
        assert runs.difference_from(before, asked(dense_relu=True, **first)) is None
        difference = runs.difference_from(before, asked(**first))
        assert difference is not None
        assert "model.dense_relu: the run" in difference


def test_a_run_from_before_images_could_be_augmented_goes_on(tmp_path: Path) -> None:
    data = {"name": "synthetic_images", "clients": 5, "shape": [1, 8, 8], "examples": 6.0, "test_examples": 8}

    def asked(**more: Any) -> config.Config:
        return config.parse(tables(data={**data, **more}, run={"rounds": 2, "cohort": 2}))

    run = runs.execute(asked(), tmp_path / "a", progress=False)
    formerly = {key: value for key, value in run.config["data"].items() if key not in ("crop", "flip", "standardise")}
    assert len(formerly) == len(run.config["data"]) - 3
    before = replace(run, config={**run.config, "data": formerly})
    assert runs.difference_from(before, asked()) is None
    assert "data.flip: the run" in str(runs.difference_from(before, asked(flip=True)))
    assert "data.crop: the run" in str(runs.difference_from(run, asked(crop=8)))


def test_resuming_where_there_is_nothing_begins(tmp_path: Path) -> None:
    assert len(runs.execute(configured(rounds=1), tmp_path / "a", resume=True, progress=False).history) == 1


def test_a_damaged_checkpoint_is_told_with_the_one_before_it(whole: Path, tmp_path: Path) -> None:
    home = tmp_path / "a"
    runs.execute(configured(rounds=4), home, progress=False)
    newest = checkpoint.newest(home / runs.CHECKPOINT)
    newest.write_bytes(newest.read_bytes()[:-20])
    said = fails(configured(), home, resume=True)
    assert said.startswith(f"{home}: cannot go on: {newest}: damaged")
    assert "resume from that" in said


# ---- breaking down --------------------------------------------------------------------------------------------------


def test_what_nobody_expected_is_a_sentence_and_leaves_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(self: Any, plan: Any) -> Any:
        raise RuntimeError("the engine coughed\nand stopped")

    monkeypatch.setattr(simulation, "train", breaks)
    home = tmp_path / "a"
    said = fails(configured(), home)
    assert said == f"{home}: the run failed: RuntimeError: the engine coughed (see traceback.txt there)"
    assert "in breaks" in (home / runs.TRACEBACK).read_text()
    assert (runs.read(home).status, runs.read(home).info["error"]) == ("failed", said)


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        (runs.INFO, None, "holds no run"),
        (runs.INFO, "{", "run.json: cannot be read"),
        (runs.INFO, "[]", "run.json: is damaged: it holds no JSON object"),
        (runs.INFO, "{}", "run.json: is damaged: it does not say 'name'"),
        (runs.CONFIG, None, "config.toml: no such file"),
        (runs.CONFIG, "a =", "config.toml: is not TOML"),
        (runs.ROUNDS, "{]\n", "rounds.jsonl: is damaged"),
    ],
)
def test_a_damaged_run_names_the_file(tmp_path: Path, file: str, text: str | None, problem: str) -> None:
    home = tmp_path / "a"
    home.mkdir()
    (home / runs.CONFIG).write_text(document.write(tables()))
    info = {"name": "a", "status": "done", "metric": "test_accuracy", "seconds": 1.0, "started": "today"}
    (home / runs.INFO).write_text(json.dumps(info))
    runs.read(home)
    (home / file).unlink(missing_ok=True)
    if text is not None:
        (home / file).write_text(text)
    with pytest.raises(runs.DamagedRun) as caught:
        runs.read(home)
    assert problem in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


OLDER = {  # keys that runs of before do not have, and what these runs did
    "plain Adam": ({"rule": "adam", "lr": 0.1}, ["from_first", "bias_correction"], {}),
    "Adam from v0": ({"rule": "adam", "lr": 0.1, "v0": 0.5}, ["bias_correction"], {"bias_correction": True}),
    "a warm-up": ({"rule": "sgd", "lr": 0.1, "warmup": 3}, ["from_first"], {"from_first": True}),
    "SPS": ({"rule": "sps", "lr_max": 1.0}, ["eps"], {"eps": 0.0}),
}


@pytest.mark.parametrize("name", OLDER)
def test_a_run_older_than_a_key_is_the_run_that_does_what_it_did(name: str, tmp_path: Path) -> None:
    client, lacking, did = OLDER[name]
    asked = config.parse(tables(client={**client, **did}))
    runs.execute(asked, tmp_path / "run", progress=False)
    file = tmp_path / "run" / "config.toml"
    told = document.read_alone(file)
    for key in lacking:
        del told["client"][key]
    file.write_text(document.write(told))
    assert runs.difference_from(runs.read(tmp_path / "run"), asked) is None
    as_now = runs.difference_from(runs.read(tmp_path / "run"), config.parse(tables(client=client)))
    assert (as_now is None) == (not did), as_now
