"""The experiments' scripts: they parse, say how they are used, and run on data where it is at hand."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data"
SCRIPTS = {
    "client_centric": ["fmnist"],
    "fashion_mnist": ["fmnist"],
    "fathom": ["qmnist_writers", "mnist"],
    "private_tags": ["stackexchange"],
    "qmnist_writers": ["qmnist_writers", "mnist"],
    "shakespeare": ["shakespeare_roles"],
    "stack_exchange": ["stackexchange"],
    "stragglers": ["qmnist_writers", "mnist"],
}


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "experiments" / f"{script}.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_every_script_is_in_this_list() -> None:
    found = {path.stem for path in (ROOT / "experiments").glob("*.py")} - {"common"}
    assert found == set(SCRIPTS)


@pytest.mark.parametrize(
    ("script", "methods"),
    [
        ("fashion_mnist", ("Delta-SGD", "SGD 0.1")),
        ("qmnist_writers", ("FedAvg", "FedAdam")),
        ("stack_exchange", ("FedAvg", "FedAdam")),
        ("fathom", ("FedAvg 0.1 x 256", "FATHOM 0.1 x 256")),
        ("private_tags", ("FedAvg", "FedAda2")),
        ("stragglers", ("synchronous", "FedAsync")),
    ],  # the Shakespeare model's evaluation alone takes longer than all of these
)
def test_it_runs_on_real_data(script: str, methods: tuple[str, str], tmp_path: Path) -> None:
    folders = [DATA / name for name in SCRIPTS[script]]
    if not all(folder.is_dir() for folder in folders):
        pytest.skip(f"the real data is not here: {', '.join(map(str, folders))}")
    said = run(script, *map(str, folders), "--rounds", "2", "--only", ",".join(methods), "--out", str(tmp_path))
    assert said.returncode == 0, said.stderr
    assert f"│ {methods[1]} " in said.stdout
    rows = json.loads((tmp_path / f"{script}.json").read_text())
    assert [len(rows[name]["rounds"]) for name in methods] == [2, 2]
    assert (tmp_path / f"{script}.png").stat().st_size > 10_000


def test_the_best_rate_of_a_grid_is_run_to_the_end(tmp_path: Path) -> None:
    folder = DATA / "fmnist"
    if not folder.is_dir():
        pytest.skip(f"the real data is not here: {folder}")
    options = ["--rounds", "2", "--trial", "1", "--only", "CC-FedAMS", "--out", str(tmp_path)]
    said = run("client_centric", str(folder), *options)
    assert said.returncode == 0, said.stderr
    tried = dict(re.findall(r"^CC-FedAMS, server lr (\S+): (\S+)%$", said.stderr, re.MULTILINE))
    assert len(tried) == 9
    best = max(tried, key=lambda rate: float(tried[rate]))
    rows = json.loads((tmp_path / "client_centric.json").read_text())
    assert {name: len(one["rounds"]) for name, one in rows.items()} == {f"CC-FedAMS, {best}": 2}


def test_help_and_bad_usage() -> None:
    assert "Fashion-MNIST as in DSGD" in run("fashion_mnist", "--help").stdout
    said = run("fashion_mnist", "/nowhere", "--only", "FedNothing")
    assert said.returncode == 2
    assert "FedNothing is not among Delta-SGD" in said.stderr.replace("\n", " ").replace("│", "")
