"""A file that is based on another says only what differs, and its run does not need the other any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastfed.app import config, runs, sweep
from fastfed.app.config import document

from ..commands.support import assert_refused, fastfed
from ..test_runs import final_model
from .support import tables


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a whole file below it."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "whole.toml").write_text(document.write(tables(name="whole")))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(file: str, text: str) -> Path:
    Path(file).write_text(text)
    return Path(file)


def refusal(file: Path) -> str:
    with pytest.raises(config.ConfigError) as caught:
        config.load(file)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


# ---- what it says ---------------------------------------------------------------------------------------------------


def test_tables_are_merged_key_by_key_and_anything_else_is_replaced(home: Path) -> None:
    write(
        "base.toml", 'list = [1, 2]\nword = "a"\n[table]\nkept = 1\nchanged = 2\n[table.inner]\nkept = 3\n[gone]\na = 1'
    )
    top = write(
        "top.toml", 'base = "base.toml"\nlist = [3]\ngone = 5\n[table]\nchanged = 4\ninner.new = 6\n[new]\nb = 2'
    )
    assert document.read(top) == {
        "list": [3],
        "word": "a",
        "table": {"kept": 1, "changed": 4, "inner": {"kept": 3, "new": 6}},
        "gone": 5,
        "new": {"b": 2},
    }


def test_keys_keep_the_order_of_the_base(home: Path) -> None:
    """The axes of a sweep name its runs in their order."""
    write("base.toml", "[sweep.grid]\nb = [1]\na = [2]")
    top = write("top.toml", 'base = "base.toml"\n[sweep.grid]\nc = [0]\na = [3]')
    assert list(document.read(top)["sweep"]["grid"]) == ["b", "a", "c"]


def test_a_base_may_have_a_base_each_relative_to_its_own_file(home: Path) -> None:
    write("shared/middle.toml", 'base = "whole.toml"\n[client]\nlr = 0.5\n[run]\nseed = 1')
    top = write("top.toml", 'base = "shared/middle.toml"\n[run]\nseed = 2')
    whole, made = config.load("shared/whole.toml").resolved(), config.load(top).resolved()
    assert (made["client"]["lr"], made["run"]["seed"]) == (0.5, 2)
    made["client"]["lr"], made["run"]["seed"] = whole["client"]["lr"], whole["run"]["seed"]
    assert made == whole


def test_two_files_may_have_the_same_base_and_options_win_over_both(home: Path) -> None:
    for name, rate in (("one", 0.25), ("other", 0.75)):
        file = write(f"{name}.toml", f'base = "shared/whole.toml"\n[client]\nlr = {rate}')
        assert config.load(file).resolved()["client"]["lr"] == rate
        assert config.load(file, ["client.lr=2.0"]).resolved()["client"]["lr"] == 2.0


def test_a_sweep_may_be_in_the_base(home: Path) -> None:
    write("grid.toml", 'base = "shared/whole.toml"\n[sweep]\nseeds = 2\n[sweep.grid]\n"client.lr" = [0.1, 0.2]')
    plan = sweep.plan(write("top.toml", 'base = "grid.toml"\n[sweep]\nseeds = 1\n[run]\nrounds = 7'))
    assert [point.name for point in plan.points] == ["client.lr=0.1,seed=0", "client.lr=0.2,seed=0"]
    assert {made.run_settings["rounds"] for made in plan.configs.values()} == {7}


# ---- what is wrong with it ------------------------------------------------------------------------------------------


def test_a_base_that_is_missing_is_named_beside_the_file(home: Path) -> None:
    top = write("top.toml", 'base = "shared/none.toml"')
    assert refusal(top) == "top.toml: base: shared/none.toml: no such file"
    write("shared/middle.toml", 'base = "none.toml"')
    deeper = write("deeper.toml", 'base = "shared/middle.toml"')
    assert refusal(deeper) == "deeper.toml: base: shared/middle.toml: base: shared/none.toml: no such file"


@pytest.mark.parametrize("first", ["a", "b", "self"])
def test_a_circle_is_walked_once(home: Path, first: str) -> None:
    write("a.toml", 'base = "b.toml"')
    write("b.toml", 'base = "shared/../a.toml"')
    write("self.toml", 'base = "self.toml"')
    told = {
        "a": "a.toml: base: b.toml: base: shared/../a.toml: is a base of itself",
        "b": "b.toml: base: shared/../a.toml: base: shared/../b.toml: is a base of itself",
        "self": "self.toml: base: self.toml: is a base of itself",
    }
    assert refusal(Path(f"{first}.toml")) == told[first]


def test_a_base_that_is_no_toml_is_named_beside_the_file(home: Path) -> None:
    write("shared/none.toml", "a = ")
    assert refusal(write("top.toml", 'base = "shared/none.toml"')).startswith(
        "top.toml: base: shared/none.toml: is not TOML: "
    )
    assert refusal(write("top.toml", 'base = "shared"')).startswith("top.toml: base: shared: cannot be read (")


def test_a_base_must_be_a_path(home: Path) -> None:
    assert refusal(write("top.toml", "base = 3")) == (
        "top.toml: base: must be the path of another file, relative to this one, got 3"
    )


def test_a_base_belongs_to_files_and_cannot_be_set(home: Path) -> None:
    with pytest.raises(config.ConfigError, match=r"^shared/whole\.toml: base: is a key of files"):
        config.load("shared/whole.toml", ["base=top.toml"])
    with pytest.raises(config.ConfigError, match=r"Did you mean 'base'\?$"):
        config.parse(tables(bse="a.toml"))


def test_commands_say_it_in_a_sentence(home: Path) -> None:
    write("top.toml", 'base = "none.toml"')
    for command in ("run", "sweep"):
        assert_refused(fastfed(command, "top.toml"), 2, "top.toml: base: none.toml: no such file")


def test_editors_know_the_key() -> None:
    assert config.json_schema()["properties"]["base"]["type"] == "string"


# ---- the run does not need it any more ------------------------------------------------------------------------------


@pytest.mark.parametrize("becomes", [None, "[client]\nlr = 9.0"])
def test_a_run_goes_on_when_its_base_is_gone_or_another(home: Path, becomes: str | None) -> None:
    top = write("top.toml", 'base = "shared/whole.toml"\n[run]\nrounds = 2\nevaluate_every = 2')
    assert fastfed("run", top, "--out", "runs/a", "--quiet").exit_code == 0
    assert fastfed("run", top, "--set", "run.rounds=4", "--out", "runs/whole", "--quiet").exit_code == 0
    base = home / "shared" / "whole.toml"
    base.unlink() if becomes is None else base.write_text(becomes)
    assert "base" not in runs.read("runs/a").config
    said = fastfed("run", "runs/a/config.toml", "--set", "run.rounds=4", "--out", "runs/a", "--resume", "--quiet")
    assert said.exit_code == 0, said.output
    assert len(runs.read("runs/a").history) == 4
    assert final_model(home / "runs" / "a") == final_model(home / "runs" / "whole")


def test_points_of_a_sweep_hold_all_that_the_base_said(home: Path) -> None:
    top = write("top.toml", 'base = "shared/whole.toml"\n[run]\nrounds = 1\n[sweep.grid]\n"client.lr" = [0.1]')
    assert fastfed("sweep", top, "--out", "all", "--jobs", "1", "--quiet").exit_code == 0
    (home / "shared" / "whole.toml").unlink()
    (point,) = runs.find("all")
    assert config.load(point / runs.CONFIG).resolved()["model"] == runs.read(point).config["model"]
    assert runs.read(point).config["run"]["rounds"] == 1
