"""A file may name a function of the user's own that makes the model, in a module beside it or on the import path."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fastfed.app import config, runs, sweep
from fastfed.app.config import document
from fastfed.app.config.own import digest_of
from fastfed.app.config.schema import file_model

from ..commands.support import assert_refused, fastfed
from .support import read_again, tables

MODULE = """
import torch
from torch import nn

from helper import HIDDEN

NUMBER = 3


def narrow(width: int = HIDDEN, *, bias=True, activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width, bias=bias), activation(), nn.Linear(width, 10))


def spread(*sizes: int, **others):
    return nn.Sequential(nn.Flatten(), nn.Linear(*sizes), nn.Dropout(others.get("rate", 0.0)))


class Net(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.layer = nn.Linear(64, width)

    def forward(self, x):
        return self.layer(x.flatten(1))


def needs(block: nn.Module): ...
def nothing(): return 7
def fails(): raise KeyError("no such thing")
def refuses(): raise ValueError("width: must be odd")
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "ours.py").write_text(MODULE)
    (tmp_path / "helper.py").write_text("HIDDEN = 6\n")
    return tmp_path


def write(home: Path, model: Any, name: str = "a.toml", **changed: Any) -> Path:
    file = home / name
    file.write_text(document.write(tables(model=model, **changed)))
    return file


def widths(made: config.Config) -> list[tuple[int, ...]]:
    return [tuple(p.shape) for p in made.make_model().parameters()]


@pytest.mark.parametrize("model", ["ours:narrow", {"name": "ours:narrow"}])
def test_a_function_beside_the_file_with_its_defaults(home: Path, model: Any) -> None:
    made = config.load(write(home, model))
    assert widths(made) == [(6, 64), (6,), (10, 6), (10,)]
    told = made.resolved()["model"]
    digest = digest_of("ours", str(home))
    assert len(digest) == 12
    place = {"from": str(home), "source-digest": digest}
    assert told == {"name": "ours:narrow", **place, "width": 6, "bias": True}  # a class is no TOML value


def test_arguments_classes_lists_and_whatever_else_is_taken(home: Path) -> None:
    own = {"name": "ours:narrow", "width": 4, "bias": False}
    assert widths(config.load(write(home, own))) == [(4, 64), (10, 4), (10,)]
    assert widths(config.load(write(home, {"name": "ours:Net", "width": 10}))) == [(10, 64), (10,)]
    made = config.load(write(home, {"name": "ours:spread", "sizes": [64, 10], "rate": 0.25}))
    dropout = list(made.make_model().modules())[-1]
    assert isinstance(dropout, nn.Dropout)
    assert dropout.p == 0.25
    assert widths(made) == [(10, 64), (10,)]


def test_the_seed_makes_the_first_weights(home: Path) -> None:
    first, again, other = (
        next(config.load(write(home, "ours:narrow"), [f"run.seed={seed}"]).make_model().parameters())
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_what_it_writes_is_read_again_from_anywhere(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = config.load(write(home, {"name": "ours:narrow", "width": 5}))
    monkeypatch.chdir("/")
    again = read_again(made)
    assert again.resolved() == made.resolved()
    assert widths(again) == widths(made)
    file_model().model_validate(document.without_none(made.resolved()))
    file_model().model_validate(tables(model="ours:narrow"))
    file_model().model_validate(tables(model="lenet"))


def test_two_directories_may_have_modules_of_the_same_name(home: Path) -> None:
    other = home / "other"
    other.mkdir()
    (other / "ours.py").write_text(MODULE)
    (other / "helper.py").write_text("HIDDEN = 3\n")
    files = [write(home, "ours:narrow"), write(other, "ours:narrow")]
    assert [widths(config.load(file))[0] for file in (*files, *files)] == [(6, 64), (3, 64), (6, 64), (3, 64)]
    assert str(home) not in sys.path
    assert str(other) not in sys.path


def test_a_base_finds_it_beside_itself_and_a_name_takes_the_whole_place_of_its_table(home: Path) -> None:
    below = home / "base"
    below.mkdir()
    (below / "theirs.py").write_text("from torch import nn\n\ndef wide(w=9): return nn.Linear(64, w)\n")
    write(below, {"name": "theirs:wide", "w": 8}, "base.toml")
    top = home / "top.toml"
    top.write_text('base = "base/base.toml"\n')
    place = {"from": str(below), "source-digest": digest_of("theirs", str(below))}
    assert config.load(top).resolved()["model"] == {"name": "theirs:wide", **place, "w": 8}
    top.write_text('base = "base/base.toml"\nmodel = "ours:narrow"\n')
    assert config.load(top).resolved()["model"]["from"] == str(home)
    assert config.load(top, ["model=lenet"]).resolved()["model"] == {
        "name": "lenet",
        "classes": 10,
        "channels": 1,
        "size": 28,
    }
    other = ["model.name=mlp", "model.w=none", "model.sizes=[64, 10]"]
    with pytest.raises(config.ConfigError, match=r"model\.w") as caught:
        config.load(home / "base" / "base.toml", other)
    assert "model.from" not in str(caught.value)
    top.write_text('base = "base/base.toml"\n\n[model]\nname = "mlp"\nsizes = [64, 10]\n')
    with pytest.raises(config.ConfigError, match=r"model\.w: .*'mlp' has no such option") as caught:
        config.load(top)
    assert "from" not in str(caught.value)


def test_the_import_path_is_looked_at_too(tmp_path: Path) -> None:
    made = config.load(write(tmp_path, {"name": "torch.nn:Linear", "in_features": 64, "out_features": 10}))
    assert widths(made) == [(10, 64), (10,)]
    made = config.parse(tables(model={"name": "torch.nn:Linear", "in_features": 64, "out_features": 10}))
    assert widths(made) == [(10, 64), (10,)]
    assert "from" not in made.resolved()["model"]


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("nowhere:narrow", "model.name: there is no module 'nowhere' in {home} or on the import path"),
        ("ours.inner:narrow", "model.name: there is no module 'ours.inner' in {home}"),
        ("ours:wide", "model.name: the module 'ours' ({home}/ours.py) has no function or class 'wide'"),
        ("ours:NUMBER", "model.name: the module 'ours' ({home}/ours.py) has a int, no function, as 'NUMBER'"),
        ("ours:", "model.name: must be written \"package.module:function\", got 'ours:'"),
        ("broken:narrow", "model.name: broken:narrow could not be imported: it raised ZeroDivisionError: division by"),
        (
            "lacking:narrow",
            "model.name: lacking:narrow could not be imported: it raised ModuleNotFoundError: No mod",
        ),
        ("json:loads", "model.name: another module 'json' is in use ("),
        ("ours:Net", "model.width: model 'ours:Net' needs it"),
        ("ours:needs", "model.block: model 'ours:needs' needs it, and no file can hold it; give it a default"),
        ({"name": "ours:narrow", "widht": 3}, "model.widht: model 'ours:narrow' has no such option (it takes width, b"),
        ({"name": "ours:narrow", "width": "x"}, "model.width: must be a whole number, got 'x'"),
        ({"name": "ours:narrow", "from": 3}, "model.from: must be the directory of the module, got 3"),
        (
            {"name": "mlp", "sizes": [64, 10], "from": "."},
            "model.from: model 'mlp' has no such option (it takes sizes)",
        ),
        (3, "model: must be a table, got 3"),
    ],
)
def test_every_way_in_which_it_can_go_wrong_is_one_sentence(home: Path, model: Any, sentence: str) -> None:
    (home / "broken.py").write_text("1 / 0\n")
    (home / "lacking.py").write_text("import no_such_library_anywhere\n")
    (home / "json.py").write_text("")
    file = write(home, model)
    said = fastfed("run", file, "--out", home / "out")
    assert_refused(said, 2, f"{file}: {sentence.format(home=home)}")
    assert not (home / "out").exists()


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("ours:nothing", "model.name: ours:nothing gives a int, not a torch.nn.Module"),
        ("ours:fails", "model.name: ours:fails raised KeyError: 'no such thing'"),
        ("ours:refuses", "model.name: ours:refuses raised ValueError: width: must be odd"),
    ],
)
def test_what_its_own_code_does_wrong_is_one_sentence(home: Path, model: str, sentence: str) -> None:
    assert_refused(fastfed("run", write(home, model), "--out", home / "out"), 2, sentence)
    assert not (home / "out").exists()


def test_a_run_goes_on_wherever_it_is_resumed_from(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(home, {"name": "ours:narrow", "width": 5})
    whole, parts = (home / name for name in ("whole", "parts"))
    assert fastfed("run", file, "--set", "run.rounds=4", "--out", whole).exit_code == 0
    assert fastfed("run", file, "--out", parts).exit_code == 0
    monkeypatch.chdir("/")
    said = fastfed("run", parts / "config.toml", "--set", "run.rounds=4", "--out", parts, "--resume")
    assert said.exit_code == 0, said.output
    rows = [[row["train_loss"] for row in runs.read(path).history] for path in (whole, parts)]
    assert len(rows[0]) == 4
    assert rows[0] == rows[1]
    assert fastfed("report", whole, parts, "--out", home / "report").exit_code == 0
    moved = home / "moved"
    moved.mkdir()
    for name in ("ours.py", "helper.py", file.name):
        (moved / name).write_text((home / name).read_text())
    said = fastfed("run", moved / file.name, "--set", "run.rounds=5", "--out", parts, "--resume")
    assert said.exit_code == 0, said.output
    other = fastfed("run", file, "--set", "model.width=6", "--out", parts, "--resume")
    assert_refused(other, 2, f"model.width: the run in {parts} has 5, got 6")


def test_points_of_a_sweep_find_it_in_their_own_processes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(home, "ours:narrow", sweep={"grid": {"model.width": [2, 3]}})
    monkeypatch.chdir(home.parent)
    sweep.carry_out(sweep.plan(file), home / "swept", jobs=2, threads=1)
    told = [runs.read(path) for path in runs.find(home / "swept")]
    assert sorted((run.config["model"]["width"], run.status) for run in told) == [(2, "done"), (3, "done")]
    names = sweep.plan(file, grid=["model.name=ours:narrow,ours:Net"], sets=["model.width=10"]).points
    assert [point.tables["model"]["from"] for point in names] == [str(home)] * 2
