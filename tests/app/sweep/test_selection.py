"""Settings are chosen by one column and another is reported."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fastfed.app import runs, sweep
from fastfed.app.cli import app
from fastfed.app.config import ConfigError
from fastfed.app.sweep import Window, tables, transfer
from fastfed.app.sweep.cells import GridCell, bests, chosen
from fastfed.app.sweep.cells import cells as cells_of
from fastfed.app.sweep.outcome import PointOutcome
from fastfed.record.history import History

from .support import cell, write


def history(rounds: int = 250, every: int = 50) -> History:
    """The training loss is 1000 less the round; the accuracy, every so often, a thousandth of the round."""
    rows = [{"round": n, "train_loss": 1000.0 - n} for n in range(1, rounds + 1)]
    for row in rows:
        if row["round"] % every == 0:
            row["test_accuracy"] = row["round"] / 1000
    return History(rows)


@pytest.mark.parametrize(
    ("window", "accuracy", "loss"),
    [
        (Window(), 0.25, 1000 - sum(range(226, 251)) / 25),  # a tenth of the run
        (Window(evaluations=2), 0.225, 1000 - 249.5),
        (Window(rounds=100), 0.225, 1000 - sum(range(151, 251)) / 100),
        (Window(rounds=3), 0.25, 1000 - 249.0),
    ],
)
def test_a_window_is_of_the_last_evaluations_or_rounds(window: Window, accuracy: float, loss: float) -> None:
    assert window.final(history(), "test_accuracy") == pytest.approx(accuracy)
    assert window.final(history(), "train_loss") == pytest.approx(loss)


def test_the_training_loss_of_a_long_run_is_of_its_last_hundred_rounds() -> None:
    assert Window().final(history(4000), "train_loss") == pytest.approx(1000 - sum(range(3901, 4001)) / 100)
    assert Window().final(history(3), "train_loss") == 997


def test_a_window_without_values_or_with_one_that_is_not_finite_has_none() -> None:
    told = history(10, every=5)
    assert Window(rounds=4).final(told, "validation_accuracy") is None
    told.rounds[-1]["train_loss"] = None
    assert Window().final(told, "train_loss") is None
    assert Window(rounds=4).final(told, "test_accuracy") == pytest.approx(0.01)


def test_tables_choose_by_one_column_and_show_the_other() -> None:
    cells = [
        cell({"client.lr": 1.0}, 0.9, "A", loss=2.0),
        cell({"client.lr": 2.0}, 0.5, "A", loss=1.0),
        cell({"client.lr": 1.0}, 0.8, "B", loss=3.0),
    ]
    table = bests(cells)
    assert [row[""].point.settings["client.lr"] for row in table.values()] == [2.0, 1.0]
    assert [one.choice.mean for one in chosen(cells) if one.choice] == [1.0, 2.0, 3.0]
    leader = tables._leader(table, "", "test_accuracy")  # between methods, what is reported counts
    assert leader is cells[2]


VALIDATED = """
[sweep]
metric = "test_accuracy"
"""


def test_a_sweep_with_a_validation_set_chooses_by_it(tmp_path: Path) -> None:
    file = write(tmp_path, VALIDATED)
    held = ["data.validation=0.25", "data.validation_of=examples"]
    plan = sweep.plan(file, ["client.lr=0.001,0.3"], held)
    swept = sweep.carry_out(plan, tmp_path / "out", jobs=1)
    assert {one.select for one in swept.outcomes} == {"validation_accuracy"}
    for one in swept.outcomes:
        rows = runs.read(tmp_path / "out" / "points" / one.point.name).history
        assert one.choice == rows.last("validation_accuracy")
        assert one.value == rows.last("test_accuracy")
    assert len({one.choice for one in swept.outcomes}) == 2


def test_without_one_it_chooses_by_the_training_loss_and_the_files_tell_both(tmp_path: Path) -> None:
    arguments = ["sweep", str(write(tmp_path)), "--grid", "client.lr=0.001,0.3", "server.lr=0.1,1", "--jobs", "1"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "chosen by" in result.output
    told = json.loads((tmp_path / "out" / "results.json").read_text())
    assert (told["metric"], told["select"]) == ("test_accuracy", "train_loss")
    first = chosen(_cells(tmp_path / "out", tmp_path))[0]
    assert first.choice is not None
    assert first.choice.mean == min(row["choice"] for row in told["rows"])
    names = {path.name for path in (tmp_path / "out" / "figures").glob("*.png")}
    assert {"heat_map_server_lr_client_lr.png", "heat_map_server_lr_client_lr_train_loss.png"} < names
    assert "best_server_lr.png" in names


def _cells(out: Path, folder: Path) -> list[GridCell]:
    plan = sweep.plan(folder / "digits.toml", ["client.lr=0.001,0.3", "server.lr=0.1,1"])
    return cells_of(sweep.carry_out(plan, out, resume=True, jobs=1).outcomes)


TRANSFER = """
[sweep]
tune_on = { "data.alpha" = 0.5 }

[sweep.grid]
"data.alpha" = [0.5, 5.0, 50.0]
"client.lr" = [0.001, 0.1, 0.3]

[[sweep.variants]]
name = "SGD"

[[sweep.variants]]
name = "FedAvgM"
set.server = { rule = "momentum" }
"""


def test_what_is_chosen_on_one_task_is_run_on_the_others(tmp_path: Path) -> None:
    plan = sweep.plan(write(tmp_path, TRANSFER))
    swept = sweep.carry_out(plan, tmp_path / "out", jobs=1)
    assert len(plan.points) == 2 * 9
    assert len(swept.outcomes) == 2 * (3 + 2)
    for method in ("SGD", "FedAvgM"):
        own = [one for one in swept.outcomes if one.point.method == method]
        tuned = [one for one in own if one.point.task["data.alpha"] == 0.5]
        best = min(tuned, key=lambda one: one.choice or 1e9).point.numbers
        assert [one.point.numbers for one in own if one not in tuned] == [best, best]
    again = sweep.carry_out(plan, tmp_path / "out", resume=True, jobs=1)
    assert [one.point.name for one in again.outcomes] == [one.point.name for one in swept.outcomes]


def test_what_cannot_be_tuned_is_told_of_the_other_tasks(tmp_path: Path) -> None:
    plan = sweep.plan(write(tmp_path, TRANSFER))
    tuned = [point for point in plan.points if point.task["data.alpha"] == 0.5]
    of_method = {"SGD": ("failed", None), "FedAvgM": ("done", 0.5)}
    done = [
        PointOutcome(point, of_method[point.method][0], select="train_loss", choice=of_method[point.method][1])
        for point in tuned
    ]
    told = transfer.untuned(plan, done)
    assert [(one.point.method, one.point.task["data.alpha"]) for one in told] == [("SGD", 5.0), ("SGD", 50.0)]
    assert {one.status for one in told} == {"failed"}
    assert all("sweep.tune_on: no run of this method" in str(one.error) for one in told)
    diverged = [replace(one, status="diverged at round 1") if one.status == "failed" else one for one in done]
    assert {one.status for one in transfer.untuned(plan, diverged)} == {"not tuned"}


def test_a_sweep_lists_methods_that_nothing_was_chosen_for(tmp_path: Path) -> None:
    plan = sweep.plan(write(tmp_path, TRANSFER.replace("0.001, 0.1, 0.3", "1e300")))
    swept = sweep.carry_out(plan, tmp_path / "out", jobs=1)
    others = [one for one in swept.outcomes if one.point.task["data.alpha"] != 0.5]
    assert [one.status for one in others] == ["not tuned"] * 4
    assert not swept.failed  # to diverge is a finding
    table = bests(cells_of(swept.outcomes))
    assert {method: len(row) for method, row in table.items()} == {"SGD": 3, "FedAvgM": 3}


@pytest.mark.parametrize(
    ("task", "eta", "sentence"),
    [
        ('{ "data.alpha" = 0.7 }', None, "sweep.tune_on: no point of the sweep has data.alpha = 0.7"),
        ('{ "client.lr" = 0.1 }', None, "sweep.tune_on: no point of the sweep has client.lr = 0.1"),
        ('{ "data.alpha" = 0.5 }', 2, "--halve: does not go with sweep.tune_on"),
        ("3", None, "sweep.tune_on: must be a table of dotted keys and values, got 3"),
    ],
)
def test_a_task_that_is_not_there_is_refused_before_anything_runs(
    tmp_path: Path, task: str, eta: int | None, sentence: str
) -> None:
    file = write(tmp_path, TRANSFER.replace('{ "data.alpha" = 0.5 }', task))
    with pytest.raises(ConfigError) as caught:
        sweep.carry_out(sweep.plan(file), tmp_path / "out", eta=eta)
    assert sentence in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_tables_have_a_row_for_who_learns_nothing(tmp_path: Path) -> None:
    plan = sweep.plan(write(tmp_path, TRANSFER.replace('tune_on = { "data.alpha" = 0.5 }', "")), sets=["client.lr=0.1"])
    swept = sweep.carry_out(plan, tmp_path / "out", jobs=1)
    table = tables.champions(swept)
    assert table is not None
    last = [list(column.cells)[-1] for column in table.columns]
    wanted = runs.read(tmp_path / "out" / "points" / swept.outcomes[0].point.name).info["prior"]
    assert last == ["always the most frequent", *[f"{100 * wanted:.1f}%"] * 3]


def test_points_of_which_some_have_no_validation_set_are_all_chosen_by_the_training_loss(tmp_path: Path) -> None:
    """Or a loss of one would be compared with an accuracy of another."""
    held = '[[sweep.variants]]\nname = "held"\nset = { "data.validation" = 0.2 }\n[[sweep.variants]]\nname = "plain"\n'
    assert sweep.plan(write(tmp_path, held)).spec.select == "train_loss"
    assert sweep.plan(write(tmp_path), sets=["data.validation=0.2"]).spec.select == "validation_accuracy"
    never = ["data.validation=0.2", "run.evaluate_every=0"]
    assert sweep.plan(write(tmp_path), sets=never).spec.select == "train_loss"


def test_a_dry_run_says_how_many_points_are_tuned_on(tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["sweep", str(write(tmp_path, TRANSFER)), "--dry-run"])
    assert "6 of them to tune on" in said.output
