"""The benchmark of further epochs: every way of every number of them is measured, and promises are told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fastfed.bench import epochs as bench

pytest.importorskip("fastfed._core", reason="the compiled extension is missing")


def test_the_command_says_and_keeps_what_it_measured(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    asked = ["--workloads", "W1", "--epochs", "3", "--scale", "0.01", "--turns", "2", "--json", str(file)]
    said = CliRunner().invoke(bench.app, asked)
    assert said.exit_code == 0, said.output
    rows = json.loads(file.read_text())
    assert {(row["epochs"], row["way"]) for row in rows} == {(n, way) for n in (1, 3) for way in bench.WAYS}
    assert all(row["milliseconds"] > 0 and row["p20"] <= row["ratio"] <= row["p80"] for row in rows)
    assert [row["ratio"] for row in rows if (row["epochs"], row["way"]) == (1, "as ever")] == [1.0]
    assert "10 clients" in said.output


def test_misses_are_told() -> None:
    row = bench.EpochsRow("W2", 200, 5, "by itself", 1.0, 2.5, 2.4, 2.6, 7, 2, "a machine")
    rows = [row, replace(row, workload="W1"), replace(row, way="as ever"), replace(row, epochs=20)]
    kept, missed = bench.promises(rows)
    assert kept.startswith("W2, 5 epochs: at most 2.6x")
    assert kept.endswith("2.50x measured: kept")
    assert missed.startswith("W1, 5 epochs: at most 1.8x")
    assert missed.endswith("2.50x measured: missed")


def test_an_unknown_workload_is_refused() -> None:
    said = CliRunner().invoke(bench.app, ["--workloads", "W9"])
    assert said.exit_code == 2
    assert "must be some of W1" in said.output
