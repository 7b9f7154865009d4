"""`fastfed compare`: runs side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from fastfed.app import cli

from ..report.support import rows, write_run


def command(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli.app, ["compare", *(str(argument) for argument in arguments)])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """FedYogi with two seeds, better than FedAvg with one."""
    settings = "[run]\nrounds = 3\n[server]\nlr = {lr}\n"
    for seed, last in ((0, 0.9), (1, 0.8)):
        write_run(
            tmp_path / f"yogi{seed}",
            rows([0.1, 0.6, last]),
            method="fedyogi",
            seed=seed,
            settings=settings.format(lr=0.1),
        )
    write_run(tmp_path / "avg", rows([0.2, 0.5, 0.55]), method="fedavg", settings=settings.format(lr=1.0))
    return tmp_path


def told(*arguments: str | Path) -> dict[str, Any]:
    said = command(*arguments, "--json")
    assert said.exit_code == 0, said.output
    found: dict[str, Any] = json.loads(said.stdout)
    return found


def test_groups_over_seeds_the_best_first(place: Path) -> None:
    found = told(place, "--target", "0.5")
    assert (found["metric"], found["target"]) == ("test_accuracy", 0.5)
    yogi, avg = found["runs"]
    assert (yogi["label"], yogi["seeds"], avg["label"], avg["seeds"]) == ("FedYogi", [0, 1], "FedAvg", [0])
    assert (yogi["final"]["mean"], yogi["final"]["n"]) == (pytest.approx(0.85), 2)
    assert avg["final"] == {"mean": 0.55, "half_width_95": None, "n": 1}
    assert (yogi["rounds_to_target"], yogi["bytes_to_target"]["mean"]) == ([2, 2], 2 * 1_500_000)
    assert (avg["rounds_to_target"], avg["seconds"]["mean"]) == ([2], 9.0)
    assert found["differences"]["server.lr"] == [0.1, 1.0]
    assert "seed" not in found["differences"]


def test_another_metric(place: Path) -> None:
    found = told(place / "avg", place / "yogi0", "--metric", "train_loss", "--target", "0.45")
    assert found["metric"] == "train_loss"
    assert [run["final"]["mean"] for run in found["runs"]] == [pytest.approx(0.1), pytest.approx(0.45)]
    assert [run["rounds_to_target"] for run in found["runs"]] == [[2], [3]]


def test_tables(place: Path) -> None:
    said = command(place, "--target", "0.6")
    assert said.exit_code == 0, said.output
    lines = said.stdout.splitlines()
    results = [line for line in lines if line.startswith("│ Fed")]
    assert [line.split("│")[1].strip() for line in results] == ["FedYogi", "FedAvg"]
    assert "rounds to 60%" in said.stdout
    assert any(line.startswith("│ server.lr") and "0.1" in line for line in lines)


def test_many_runs_are_rows_of_the_differences(tmp_path: Path) -> None:
    for lr in range(1, 7):
        write_run(tmp_path / f"run{lr}", rows([lr / 10]), settings=f"[server]\nlr = {lr}.5\n")
    said = command(tmp_path)
    differences = said.stdout.partition("Settings in which they differ")[2]
    found = [line.split("│")[2].strip() for line in differences.splitlines() if line.startswith("│")]
    assert found == ["6.5", "5.5", "4.5", "3.5", "2.5", "1.5"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("--metric", "test_acuracy"),
            "no run has a column 'test_acuracy'; there are train_loss, test_loss, test_accuracy",
        ),
        (("--target", "high"), "--target"),
    ],
)
def test_bad_usage(place: Path, arguments: tuple[str, ...], sentence: str) -> None:
    said = command(place, *arguments)
    assert said.exit_code == 2
    assert sentence in " ".join(said.stderr.split())


def test_no_run_there(tmp_path: Path) -> None:
    said = command(tmp_path / "nowhere")
    assert said.exit_code != 0
    assert "no such directory" in said.stderr
