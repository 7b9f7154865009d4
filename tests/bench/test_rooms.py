"""The benchmark of rooms: whole simulations are measured, nothing of a round is lost, and promises are told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from fastfed.bench import rooms as bench
from fastfed.bench.rounds.workloads import WORKLOADS
from fastfed.record.history import ROOMS

pytest.importorskip("fastfed._core", reason="the compiled extension is missing")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def row(**changes: Any) -> bench.RoomsRow:
    rooms = dict.fromkeys((*ROOMS, "evaluate", "run"), 0.0) | {"train": 0.9, "evaluate": 0.04, "run": 0.02}
    return replace(bench.RoomsRow("W1", 100, 10_000, 1.0, rooms, 10, 3, 2, 0.0, "a machine"), **changes)


def test_the_command_says_and_keeps_what_it_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SLICE", 1e-3)
    file = tmp_path / "rows.json"
    asked = ["--workloads", "W1", "--clients", "2,20", "--tested", "50", "--turns", "1", "--threads", "1"]
    said = CliRunner().invoke(bench.app, [*asked, "--json", str(file)])
    assert said.exit_code == 0, said.output
    rows = json.loads(file.read_text())
    assert [(one["clients"], one["rounds"], one["tested"]) for one in rows] == [(2, 10, 50), (20, 10, 50)]
    for one in rows:
        assert sum(one["rooms"].values()) == pytest.approx(one["seconds"])
        assert all(seconds > 0 for seconds in one["rooms"].values())
        assert one["per_client"] == pytest.approx(one["seconds"] / one["clients"])
    assert "W1, 20 clients: evaluation and records" in said.output


def test_a_run_evaluates_and_saves_as_often_as_by_default(tmp_path: Path) -> None:
    """A turn that evaluated more often, or left out its files, would measure another run."""
    sim = bench.simulation(WORKLOADS["W1"], 2, 30, 1)
    bench.turn(sim, bench.EVERY, tmp_path)
    bench.turn(sim, 2 * bench.EVERY, tmp_path)
    evaluated = [one["round"] for one in sim.history if "test_accuracy" in one]
    assert evaluated == [10, 20, 30]
    assert len((tmp_path / "rounds.jsonl").read_text().splitlines()) == 30
    assert list((tmp_path / "saved").iterdir())


def test_a_large_cohort_shares_the_examples() -> None:
    sim = bench.simulation(WORKLOADS["W1"], bench.STORED + 1, 1, 1)
    assert len(sim.fed) == bench.STORED + 1
    assert len(sim.fed.examples) == 40 * bench.STORED
    assert sim.fed.rows_of(bench.STORED).tolist() == list(range(40))


def test_promises_are_kept_or_missed() -> None:
    few, many = row(), row(clients=1000, seconds=10.6)
    small = row(clients=10, seconds=0.01, rooms=row().rooms | {"record": 0.002})
    lines = bench.promises([small, few, many])
    assert lines == [
        "W1, 100 to 1,000 clients: at most 10.5x the time is promised, 10.60x measured: missed",
        "W1, 10 clients: evaluation and records in less than 10% of a round are promised, 620.0% measured: missed",
        "W1, 100 clients: evaluation and records in less than 10% of a round are promised, 6.0% measured: kept",
        "W1, 1,000 clients: evaluation and records in less than 10% of a round are promised, 0.6% measured: kept",
    ]


def test_an_unknown_workload_is_refused() -> None:
    said = CliRunner().invoke(bench.app, ["--workloads", "W9"])
    assert said.exit_code == 2
    assert "must be some of W1" in said.output
