"""Successive halving: where its rungs are, and who goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastfed.app import sweep
from fastfed.app.config import ConfigError
from fastfed.app.sweep import PointOutcome, halving
from fastfed.app.sweep.cells import GridCell

from .support import cell, write


@pytest.mark.parametrize(
    ("points", "rounds", "every", "eta", "rungs"),
    [
        (9, 90, 1, 3, [10, 30, 90]),
        (8, 90, 1, 3, [30, 90]),
        (8, 80, 1, 2, [10, 20, 40, 80]),
        (9, 90, 20, 3, [20, 40, 90]),  # on evaluated rounds
        (9, 5, 10, 3, [5]),  # too few rounds to look in between
        (2, 90, 1, 3, [90]),
    ],
)
def test_rungs(tmp_path: Path, points: int, rounds: int, every: int, eta: int, rungs: list[int]) -> None:
    sets = [f"run.rounds={rounds}", f"run.evaluate_every={every}"]
    plan = sweep.plan(write(tmp_path), [f"client.lr=1:2:lin{points}"], sets, seeds=2)
    assert halving.rungs(plan, eta) == rungs


def test_all_points_must_run_equally_long(tmp_path: Path) -> None:
    plan = sweep.plan(write(tmp_path), ["run.rounds=1,2"])
    with pytest.raises(ConfigError, match=r"--halve: all points must have the same run\.rounds, got 1, 2"):
        halving.rungs(plan, 3)


def test_one_in_eta_of_every_contest_goes_on() -> None:
    """By the mean over seeds; other methods and tasks are no rivals."""
    cells = [
        *(cell({"client.lr": lr}, [value, value], "A") for lr, value in ((1, 0.3), (2, 0.2), (3, 0.9), (4, 0.1))),
        cell({"client.lr": 5}, [0.99, None], "A"),  # a seed failed
        cell({"client.lr": 6}, [0.95, 0.1], "A"),
        *(cell({"client.lr": lr}, 0.01 * lr, "B") for lr in (1, 2, 3)),
        cell({"client.lr": 1, "data.alpha": 1}, 0.001, "B"),
    ]
    kept = halving.survivors(_outcomes(cells), 3)
    assert kept == {cells[i].point.cell for i in (2, 5, 8, 9)}


def test_of_a_loss_the_lowest_go_on() -> None:
    cells = [cell({"client.lr": lr}, lr, metric="test_loss") for lr in (3.0, 1.0, 2.0)]
    assert halving.survivors(_outcomes(cells), 3) == {cells[1].point.cell}


def _outcomes(cells: list[GridCell]) -> list[PointOutcome]:
    return [one for each in cells for one in each.outcomes]
