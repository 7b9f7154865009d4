"""The benchmark of the event clock: it measures what it says, and refuses what it cannot do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fastfed.bench import events as bench


def test_the_benchmark_measures_what_it_says(tmp_path: Path) -> None:
    command = ["--clients", "500", "--concurrency", "10,50", "--turns", "2", "--events", "1000"]
    said = CliRunner().invoke(bench.app, [*command, "--json", str(tmp_path / "new" / "e.json")])
    assert said.exit_code == 0, said.output
    rows = json.loads((tmp_path / "new" / "e.json").read_text())
    assert [(row["case"], row["concurrency"]) for row in rows] == [
        (case, concurrency) for concurrency in (10, 50) for case in ("plain", "drop-outs", "windows")
    ]
    assert all(row["p20"] <= row["median"] <= row["p80"] and row["turns"] == 2 for row in rows)
    assert "events a second" in said.output


@pytest.mark.parametrize("concurrency", ["10,x", "0", "501"])
def test_the_benchmark_refuses_what_it_cannot_do(concurrency: str) -> None:
    said = CliRunner().invoke(bench.app, ["--clients", "500", "--concurrency", concurrency])
    assert said.exit_code == 2
    assert "--concurrency" in said.output
