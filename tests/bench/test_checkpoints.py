"""The benchmark of checkpoints: both runs are measured, and the checkpoints are really written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fastfed.bench import checkpoints as bench
from fastfed.saved import sealed


def test_the_benchmark_measures_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, write = [], sealed.write

    def counted(path: Path, *arguments: object) -> None:
        written.append(path)
        write(path, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(sealed, "write", counted)
    command = ["--rounds", "20", "--every", "5", "--turns", "2", "--folder", str(tmp_path)]
    said = CliRunner().invoke(bench.app, [*command, "--json", str(tmp_path / "new" / "c.json")])
    assert said.exit_code == 0, said.output
    rows = json.loads((tmp_path / "new" / "c.json").read_text())
    assert len(rows) == 2
    assert all(row["wall_without"] > 0 and row["wall_with"] > 0 for row in rows)
    assert len(written) == 2 * 4  # of the runs with checkpoints alone
    assert all(tmp_path in path.parents for path in written)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]  # it clears up behind itself
    assert "The bar is 1.3" in said.output


def test_ratios_are_of_a_turn() -> None:
    row = bench.CheckpointsRow(10, 5, 2.0, 3.0, 4.0, 5.0, "a machine")
    assert (row.wall, row.processor) == (1.5, 1.25)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    said = CliRunner().invoke(bench.app, ["--folder", str(tmp_path / "none")])
    assert said.exit_code == 2
    assert "--folder" in said.output
