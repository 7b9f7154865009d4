"""Checkpoints of format 2: every kind of damage is named, a directory of them goes on, and rounds have one each."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fastfed as ff
from fastfed.saved import checkpoint
from fastfed.saved.checkpoint import DamagedCheckpoint
from fastfed.saved.restore import run_id

from ..golden.setups import RUN_OF_FORMAT_2


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RUN_OF_FORMAT_2 / "checkpoint", tmp_path / "checkpoint"))


@pytest.mark.parametrize(
    "damage",
    ["truncated tensors", "no tensors", "truncated json", "other seed", "no history", "other rows", "format 9"],
)
def test_every_kind_of_damage_is_named(damage: str, home: Path) -> None:
    path = home / "round-00000002.json"
    content = json.loads(path.read_text())
    held = home / content["manifest"]["tensors"]
    if damage == "truncated tensors":
        held.write_bytes(held.read_bytes()[:100])
    elif damage == "no tensors":
        held.unlink()
    elif damage == "truncated json":
        path.write_text(path.read_text()[:-20])
    elif damage == "other seed":
        path.write_text(path.read_text().replace('"seed": 1', '"seed": 2'))
    elif damage == "other rows":
        (home / "history.jsonl").write_text((home / "history.jsonl").read_text().replace('"steps": 12', '"steps": 13'))
    else:
        content["manifest"] |= {"format": 9} if damage == "format 9" else {}
        del content["manifest"]["history"]
        path.write_text(json.dumps(content))
    with pytest.raises(
        DamagedCheckpoint, match=r"round-00000002.json: damaged .* The one before it is .*00000001.json"
    ):
        checkpoint.read(home)


def test_a_round_that_is_saved_again_has_one_checkpoint(home: Path) -> None:
    sim = ff.Simulation.resume(home)
    sim.save(home)
    names = sorted(path.name for path in home.glob("round-00000002*"))
    assert names == ["round-00000002.safetensors"]
    again = ff.Simulation.resume(home)
    assert (again.round, again.history.rounds) == (2, sim.history.rounds)


@pytest.mark.parametrize("backwards", [False, True])
def test_of_one_round_the_newer_format_is_the_newer(
    backwards: bool, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = (home / "round-00000002.json").read_bytes()
    path = ff.Simulation.resume(home).save(home)
    (home / "round-00000002.json").write_bytes(kept)  # as if it had been killed before it removed the old one
    names = sorted(os.listdir(home), reverse=backwards)
    monkeypatch.setattr(os, "listdir", lambda directory: names)
    assert checkpoint.newest(home) == path
    assert checkpoint.rounds_of(home) == {1, 2}


def test_another_run_is_refused_and_later_rounds_are_set_aside(home: Path) -> None:
    with pytest.raises(ValueError, match=r"round-00000001.json of another run"):
        checkpoint.claim(home, "another", 2, resumed=False)
    sim = ff.Simulation.resume(home / "round-00000001.json")
    sim.run(rounds=2, checkpoint=home, evaluate_every=0, progress=False)
    assert (home / "round-00000002.json.set-aside").exists()
    assert [path.name for path in checkpoint.all_of(home)] == ["round-00000001.json", "round-00000003.safetensors"]


@pytest.mark.parametrize(
    ("timing", "known"),
    [
        (None, "9234876014aa2ee7"),
        (ff.timing.ClientCentric(2, 1), "943a68ee34423f2a"),
        (ff.timing.EventDriven(4, 2), "458ce3b43acfd252"),
    ],
    ids=["rounds", "client-centric", "event-driven"],
)
def test_settings_that_came_later_do_not_make_another_run(timing: ff.timing.Timing | None, known: str) -> None:
    """The names that these runs had before there were shares, availabilities, replacement and random epochs."""
    assert run_of(timing=timing, cohort=3 if timing is None else None) == known


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ({"server": ff.servers.FedAdagrad(lr=0.1)}, "046a52d9d31eb5cc"),
        ({"server": ff.servers.FedAdam(lr=0.1)}, "20f71978ee244b92"),
        ({"server": ff.servers.FedYogi(lr=0.1, tau=0.01)}, "22cffa600bba7637"),
        ({"server": ff.servers.FedAMS(lr=0.1)}, "2e60b893c2b3ea7f"),
        ({"exchange": ff.exchange.ControlVariates()}, "b5e8558a3fd535c4"),
        ({"exchange": ff.exchange.PreviousModels(mu=0.0)}, "c4fbe5f3637544c7"),
    ],
    ids=lambda given: next(iter(given.values())).__class__.__name__ if isinstance(given, dict) else "",
)
def test_neither_do_later_options_of_servers_and_exchanges(given: dict[str, Any], known: str) -> None:
    """The names that these runs had before servers had `eps` and exchanges a `store`; with eps it is another run."""
    assert run_of(cohort=3, **given) == known
    if "server" in given:
        assert run_of(cohort=3, server=replace(given["server"], eps="torch")) != known


def run_of(**given: Any) -> str:
    fed = ff.data.iid(ff.data.digits(), clients=12, seed=0)
    sim = ff.Simulation(ff.models.softmax_regression(64), fed, client=ff.clients.SGD(lr=0.1), **given)
    return run_id(sim.settings.by_name(), torch.zeros(3))
