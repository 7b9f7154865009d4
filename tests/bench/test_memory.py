"""The benchmark of memory: who holds memory is seen to, what was there before is not counted, and absence is told."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from fastfed.bench import memory as bench
from fastfed.bench.peers import resident
from fastfed.bench.peers.contender import Contender

MEGABYTE = 1 << 20

HOLDING = """
import numpy as np
from peers import serving

class Holding:
    trained = []
    def __init__(self, task):
        self.task = task
    def begin(self, steps):
        self.kept = None
    def run(self, rounds):
        Holding.trained.append(self.task.folder.name)
        self.kept = [np.ones(20 << 17) for _ in range(rounds)]
    def model(self):
        return [np.array([len(self.trained), self.trained[0] == "wake"])]

serving.serve(Holding, {"numpy": "1"})
"""


def folder(place: Path, megabytes: int) -> Path:
    """A task whose inputs are so many megabytes."""
    place.mkdir()
    for name, size in (("inputs", megabytes << 17), ("targets", 1), ("batches", 1)):
        np.save(place / f"{name}.npy", np.ones(size))
    return place


def test_a_round_has_what_it_takes_and_not_what_was_there(tmp_path: Path) -> None:
    """Two rounds of 20 MB each, on 60 MB of data that nobody has looked at before."""
    task, wake = folder(tmp_path / "task", 60), folder(tmp_path / "wake", 1)
    contender = Contender([sys.executable, "-c", HOLDING, str(task), "5", "1", "0"], [{}], threads=1)
    try:
        before = contender.watch(wake)
        contender.begin(None)
        contender.run(2)
        grown = contender.peak() - before
        contender.model(tmp_path / "model.npz")
    finally:
        contender.end()
    assert before > 60 * MEGABYTE
    assert 40 * MEGABYTE <= grown < 55 * MEGABYTE
    with np.load(tmp_path / "model.npz") as held:
        assert held["0"].tolist() == [2, 1]  # another task first, then its own


def test_the_peak_is_not_forgotten() -> None:
    before = resident.watch()
    held = bytearray(50 * MEGABYTE)
    del held
    assert resident.peak() - before > 49 * MEGABYTE  # the system counts by pages, and not at once


def test_the_command_says_and_keeps_what_it_measured(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    asked = ["--workloads", "W2", "--threads", "1", "--scale", "0.02", "--environments", str(tmp_path)]
    said = CliRunner().invoke(bench.app, [*asked, "--json", str(file)])
    assert said.exit_code == 0, said.output
    rows = json.loads(file.read_text())
    assert [(row["contender"], row["clients"], row["threads"]) for row in rows] == [
        ("fastfed", 2, 1), ("plain", 2, 1), ("pfl", 2, 1),
    ]  # fmt: skip
    ours, plain, pfl = rows
    model = 4 * ours["parameters"]
    assert ours["of_round"] == ours["peak"] - ours["before"] > model
    assert plain["of_round"] > 0
    assert (pfl["of_round"], pfl["skipped"]) == (None, ".venv-pfl is not there: make bench-peers")
    assert ".venv-pfl is not there" in said.output


def test_lines_compare_with_ours() -> None:
    ours = bench.MemoryRow("W2", "fastfed", 100, 250_000, 2, 10_000_000, 14_000_000, "", "a machine")
    theirs = bench.MemoryRow("W2", "plain", 100, 250_000, 2, 20_000_000, 28_000_000, "", "a machine")
    lines = bench.table([ours, theirs])
    assert lines[1].split() == ["W2", "2", "fastfed", "10.0", "4.0", "2.0", "2.0", "1.00x"]
    assert lines[2].split() == ["W2", "2", "plain", "20.0", "8.0", "4.0", "4.0", "2.00x"]


def test_an_unknown_workload_is_refused() -> None:
    said = CliRunner().invoke(bench.app, ["--workloads", "W9"])
    assert said.exit_code == 2
    assert "must be some of W1" in said.output
