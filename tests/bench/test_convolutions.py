"""The benchmark of convolutions: shapes are the models', every way is measured, the quicker one is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("fastfed._core", reason="the compiled extension is missing")

from fastfed.bench import convolutions as bench


def test_the_command_says_and_keeps_what_it_measured(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    asked = ["--models", "lenet", "--batch", "2", "--turns", "1", "--json", str(file)]
    said = CliRunner().invoke(bench.app, asked)
    assert said.exit_code == 0, said.output
    first, second = json.loads(file.read_text())
    assert [first["shape"], second["shape"]] == ["1 -> 6, 28x28, 5x5, first", "6 -> 16, 12x12, 5x5"]
    for row in (first, second):
        assert set(row["ways"]) == {"direct", "unrolled"}
        assert all(time > 0 for pair in [*row["ways"].values(), row["library"]] for time in pair)
        assert row["ratio"] == pytest.approx(sum(row["library"]) / sum(row["ways"][row["taken"]]))
    assert "1 -> 6, 28x28, 5x5, first" in said.output


def test_shapes_are_told_apart_and_come_once() -> None:
    shapes = bench.shapes_of("resnet18_gn")
    assert len(shapes) == len(set(shapes)) == 11
    assert [shape.words for shape in shapes[:3]] == [
        "3 -> 64, 24x24, 3x3, first", "64 -> 64, 24x24, 3x3", "64 -> 128, 24x24, 3x3 by 2x2",
    ]  # fmt: skip
    assert shapes[2].products == 12 * 12 * 128 * 64 * 9


def test_a_quicker_way_is_told() -> None:
    row = bench.ConvolutionRow("a shape", "m", 20, "direct", {"direct": (1, 2), "unrolled": (1, 1)}, (2, 4), 1.0, 1, "")
    assert row.ratio == 2.0
    assert bench.table([row]).endswith("2.00x 1.00  unrolled is quicker")
