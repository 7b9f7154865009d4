"""`fastfed sweep` as a user meets it: files, tables, pictures, exit codes."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner, Result

from fastfed.app import cli, runs

from ..sweep.support import write


def command(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sweep")


@pytest.fixture(scope="module")
def said(place: Path) -> Result:
    """Two client rates, of which one diverges, and two server rates, with two seeds; both axes after one --grid."""
    arguments = ("--grid", "client.lr=0.1,1e38", "server.lr=0.5,1", "--seeds", "2")
    return command("sweep", write(place), *arguments, "--out", place / "out")


def rows(place: Path) -> list[dict[str, str]]:
    with (place / "out" / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_it_ends_well_with_a_table(said: Result) -> None:
    """A point that diverges is a finding, not a failure."""
    assert said.exit_code == 0, said.output
    lines = [line for line in said.stdout.splitlines() if line.startswith("│")]
    assert [line.split("│")[1].strip() for line in lines] == ["1", "2", "3", "4"]
    assert [line.split("│")[2].strip() for line in lines] == ["0.1", "0.1", "1e+38", "1e+38"]
    assert "±" in lines[0]
    assert "diverged at round 1" in lines[-1]


def test_a_line_for_every_point(said: Result) -> None:
    assert "loading digits" in said.stderr
    assert sum("client.lr 0.1, server.lr 0.5, seed 1: test accuracy" in line for line in said.stderr.splitlines()) == 1
    assert "[8/8] " in said.stderr


def test_results_are_those_of_the_runs(said: Result, place: Path) -> None:
    table = rows(place)
    assert len(table) == 8
    assert list(table[0]) == [
        "point", "client.lr", "server.lr", "seed", "status", "metric", "value", "best", "select", "choice", "rounds",
        "bytes", "gradients", "seconds", "error",
    ]  # fmt: skip
    for row in table:
        run = runs.read(place / "out" / "points" / row["point"])
        assert float(row["client.lr"]) == run.config["client"]["lr"]
        assert float(row["server.lr"]) == run.config["server"]["lr"]
        assert int(row["seed"]) == run.config["run"]["seed"] == run.info["seed"]
        assert row["metric"] == "test_accuracy"
        diverged = float(row["client.lr"]) > 1
        assert row["value"] == ("" if diverged else str(run.history.rounds[-1]["test_accuracy"]))
        assert float(row["best"]) == run.history.best("test_accuracy")
        assert int(row["bytes"]) == sum(one["bytes_down"] + one["bytes_up"] for one in run.history)
        assert row["status"] == ("diverged at round 1" if diverged else "done")
    told = json.loads((place / "out" / "results.json").read_text())
    assert (told["metric"], told["last"], told["interrupted"]) == ("test_accuracy", None, False)
    assert ["" if row["value"] is None else str(row["value"]) for row in told["rows"]] == [
        row["value"] for row in table
    ]


def test_a_point_is_the_same_bits_as_a_run(said: Result, place: Path) -> None:
    alone = place / "alone"
    sets = ("--set", "client.lr=0.1", "--set", "server.lr=0.5", "--set", "run.seed=1")
    assert command("run", place / "digits.toml", *sets, "--out", alone, "--quiet").exit_code == 0
    point = place / "out" / "points" / "client.lr=0.1,server.lr=0.5,seed=1"
    assert runs.read(point).history.without_seconds() == runs.read(alone).history.without_seconds()
    mine, theirs = (load_file(home / "checkpoint" / "round-00000004.safetensors") for home in (point, alone))
    assert mine
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_pictures(said: Result, place: Path) -> None:
    maps = {"heat_map_server_lr_client_lr", "heat_map_server_lr_client_lr_train_loss", "best_server_lr"}
    names = maps | {"sensitivity_client_lr", "sensitivity_server_lr", "ranks", "ranked_curves"}
    drawn = {path.name for path in (place / "out" / "figures").iterdir()}
    assert drawn == {f"{name}.{suffix}" for name in names for suffix in ("png", "svg")}
    assert "heat_map_server_lr_client_lr.png" in said.stdout


def test_a_second_sweep_into_the_same_place_is_refused(said: Result, place: Path) -> None:
    before = (place / "out" / "results.csv").read_bytes()
    again = command("sweep", place / "digits.toml", "--grid", "client.lr=0.1", "--out", place / "out")
    assert again.exit_code == 2
    assert "holds a sweep already; use --resume to go on, or another --out" in again.stderr
    assert (place / "out" / "results.csv").read_bytes() == before


def test_resume_with_nothing_missing_only_tells(said: Result, place: Path) -> None:
    """Ranked by another metric; with --json, standard output is rows."""
    arguments = ("--grid", "client.lr=0.1,1e38", "server.lr=0.5,1", "--seeds", "2", "--metric", "test_loss")
    again = command(
        "sweep", place / "digits.toml", *arguments, "--last", "2", "--out", place / "out", "--resume", "--json"
    )
    assert again.exit_code == 0, again.output
    told = [json.loads(line) for line in again.stdout.splitlines()]
    assert [row["seed"] for row in told] == [0, 1] * 4
    run = runs.read(place / "out" / "points" / told[0]["point"])
    assert told[0]["value"] == pytest.approx(sum(run.history.column("test_loss")[-2:]) / 2)


def test_resume_with_a_grid_that_leaves_out_results_is_refused(said: Result, place: Path) -> None:
    before = {path.name: path.read_bytes() for path in (place / "out").iterdir() if path.is_file()}
    smaller = ("--grid", "client.lr=0.1,0.2", "server.lr=0.5", "--seeds", "2", "--out", place / "out", "--resume")
    again = command("sweep", place / "digits.toml", *smaller)
    assert again.exit_code == 2
    assert "holds results of client.lr=0.1,server.lr=1,seed=0 and 5 more runs, which this" in again.stderr
    assert {path.name: path.read_bytes() for path in (place / "out").iterdir() if path.is_file()} == before


def test_it_ends_with_what_to_type_for_a_report(said: Result, place: Path) -> None:
    assert f"Report:   type fastfed report {place / 'out'}" in said.stdout


@pytest.mark.parametrize("options", [("--dry-run",), ()])
def test_a_directory_that_is_not_there_is_refused_once_before_anything(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    file = write(tmp_path)
    file.write_text(file.read_text().replace('name = "digits"', f'name = "mnist"\nroot = "{tmp_path / "nowhere"}"'))
    said = command("sweep", file, "--grid", "client.lr=0.1,0.2,0.3", "--out", tmp_path / "out", *options)
    assert said.exit_code == 2
    assert said.stderr == f"fastfed: data.root: {tmp_path / 'nowhere'}: there is no such directory\n"
    assert not (tmp_path / "out").exists()


def test_the_same_failure_of_many_runs_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    file = write(tmp_path)
    file.write_text(file.read_text().replace('name = "digits"', f'name = "mnist"\nroot = "{tmp_path / "empty"}"'))
    said = command("sweep", file, "--grid", "client.lr=0.1,0.2,0.3", "--out", tmp_path / "out", "--quiet")
    assert said.exit_code == 1
    assert said.stderr.count("no such file") == 1
    assert "(and 2 others for the same reason)" in said.stderr
    assert "3 of 3 runs failed" in said.stderr


def test_a_failed_point_is_a_sentence_and_exit_code_1(tmp_path: Path) -> None:
    more = "[[sweep.variants]]\nname = 'few'\n[[sweep.variants]]\nname = 'many'\nset = { data.clients = 100000 }\n"
    said = command("sweep", write(tmp_path, more), "--out", tmp_path / "out", "--quiet")
    assert said.exit_code == 1
    assert said.stdout == ""
    assert "fastfed: many, seed 0: data.clients: " in said.stderr
    assert "1 of 2 runs failed; --resume tries them again" in said.stderr
    assert runs.read(tmp_path / "out" / "points" / "few,seed=0").status == "done"


def test_dry_run_writes_nothing(tmp_path: Path) -> None:
    said = command(
        "sweep", write(tmp_path), "--grid", "client.lr=1:2:lin30", "--jobs", "2", "--dry-run", "--out", tmp_path / "out"
    )
    assert said.exit_code == 0
    assert said.stdout.startswith("30 runs, 2 at once with ")
    assert "  client.lr 1, seed 0\n" in said.stdout
    assert "and 10 more" in said.stdout
    assert not (tmp_path / "out").exists()


def test_dry_run_for_other_programs(tmp_path: Path) -> None:
    """Every point of a shard as JSON, all of them and nothing else."""
    request = ("sweep", write(tmp_path), "--grid", "client.lr=1:2:lin30", "--seeds", "2", "--dry-run", "--json")
    said = command(*request, "--out", tmp_path / "out")
    assert (said.exit_code, said.stderr) == (0, "")
    points = [json.loads(line) for line in said.stdout.splitlines()]
    assert len(points) == 60
    assert points[1] == {"point": "client.lr=1,seed=1", "client.lr": 1, "seed": 1}
    part = command(*request, "--shard", "2/7")
    assert [json.loads(line) for line in part.stdout.splitlines()] == points[1::7]
    shown = command("sweep", write(tmp_path), "--grid", "client.lr=1:2:lin30", "--shard", "2/7", "--dry-run").stdout
    assert shown.startswith("5 runs of 30, ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--grid", "client.lr=1:2:3"), "fastfed: --grid: client.lr: a range must end in logN or linN"),
        (("--grid", "client.lr=1", "nonsense"), "fastfed: --grid: must be a dotted key and its values"),
        (("--grid", "client.lrr=1,2"), "client.lrr: client rule 'sgd' has no such option"),
        (("--metric", "accuracy"), "fastfed: --metric: the runs do not measure 'accuracy'"),
        (("--grid", "client.lr=1,2", "--shard", "3/2"), "fastfed: --shard: must be i/n with 1 <= i <= n"),
        (("--grid", "client.lr=1,2", "--pool", "ray://a"), "fastfed: --pool: must be the address of a scheduler"),
        (("--grid", "run.rounds=1,2", "--halve"), "fastfed: --halve: all points must have the same run.rounds"),
        (("--eta", "1"), "--eta"),
        (("--jobs", "0"), "--jobs"),
    ],
)
def test_bad_usage_is_exit_code_2_and_nothing_is_written(
    tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    said = command("sweep", write(tmp_path), *arguments, "--out", tmp_path / "out")
    assert said.exit_code == 2
    assert sentence in said.stderr
    assert not (tmp_path / "out").exists()


def test_run_refuses_a_file_that_describes_many_runs(tmp_path: Path) -> None:
    said = command("run", write(tmp_path, "[sweep]\nseeds = 2\n"), "--out", tmp_path / "out")
    assert said.exit_code == 2
    assert "`fastfed sweep` runs them" in said.stderr
