"""The table of hostile clients: what is asked for is run, the mean falls and others stand, the page has all of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("fastfed._core", reason="the compiled extension is missing")

from fastfed.bench import robust

PAGE = Path(__file__).parents[2] / "docs" / "robust.md"


def test_the_command_prints_and_keeps_what_was_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    asked = ["--attacks", "fail,huge", "--reductions", "Mean,Geo*", "--clients", "10", "--hostile", "2"]
    said = CliRunner().invoke(robust.app, [*asked, "--rounds", "12", "--seeds", "1", "--json", str(file)])
    assert said.exit_code == 0, said.output
    rows = {(row["attack"], row["reduction"]): row for row in json.loads(file.read_text())}
    refused = {which: row["refused"] for which, row in rows.items()}
    assert refused["fail", "Mean"] == refused["fail", "GeometricMedian"] == 2 * 12
    assert refused["huge", "GeometricMedian"] == 0
    assert refused["huge", "Mean"] == 10 * 11  # of a model of 1e29, nobody can train
    reached = {which: row["accuracies"][0] for which, row in rows.items()}
    assert reached["huge", "Mean"] < 0.3 < 0.8 < min(value for which, value in reached.items() if "huge" not in which)
    assert reached["huge", "GeometricMedian"] > 0.8
    assert "| 1e30 everywhere | " in said.output


def test_a_majority_is_not_withstood_and_refused() -> None:
    said = CliRunner().invoke(robust.app, ["--clients", "10", "--hostile", "5"])
    assert said.exit_code == 2
    assert "less than half" in said.output


def test_what_the_hostile_send() -> None:
    hostile, honest = torch.tensor([[1.0, -2.0]]), torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    sent = {name: spoil(hostile, honest)[0].tolist() for name, spoil in robust.SENT.items()}
    little = 2 - 1.5 * 2**0.5
    assert sent.pop("little") == pytest.approx([little, 0.0])
    assert sent == {
        "flip": [-1.0, 2.0], "flip10": [-10.0, 20.0], "scale": [100.0, -200.0], "huge": pytest.approx([1e30, 1e30]),
    }  # fmt: skip


def test_the_page_has_every_attack_and_every_reduction() -> None:
    lines = [line.split("|")[1:-1] for line in PAGE.read_text().splitlines() if re.match(r"\| .* \d+\.\d \|$", line)]
    assert [line[0].strip() for line in lines] == list(robust.ATTACKS.values())
    assert all(len(line) == 1 + len(robust.REDUCTIONS) for line in lines)
    for name in robust.REDUCTIONS:
        assert f"`{name}`" in PAGE.read_text()
