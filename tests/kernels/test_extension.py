"""Rules by name: both languages have the same lists of names, and an extension built from others is refused.

Each test edits a scratch copy of the Python sources and leaves the compiled extension as it is: what happens to a
checkout that was not rebuilt.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fastfed.kernels import extension, table
from fastfed.train.work import SCALARS

pytestmark = pytest.mark.skipif(extension.why_not() is not None, reason="the compiled extension is missing")

ROOT = Path(__file__).parents[2]
ROW = '        ServerRule("momentum", "momentum", ("m",), {**_AVERAGING, "momentum": Option(0.9, DECAY)}),\n'
FIRST = '        ServerRule("sgd", "sgd", (), _AVERAGING),\n'


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for place in ("fastfed", "kernels", "csrc"):
        shutil.copytree(ROOT / place, tmp_path / place, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "setup.py", tmp_path)
    return tmp_path


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1, f"{file.name} has not once\n{old}"
    file.write_text(text.replace(old, new))


def python(program: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "FASTFED_BACKEND"}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False)


def test_both_languages_know_the_same_names() -> None:
    core = extension.load()
    assert sorted(core.server_formulas()) == sorted(table.SERVER_FORMULAS)
    assert sorted(core.directions()) == sorted(table.DIRECTIONS)
    assert sorted(core.covers()) == ["I", "II", "none"]
    assert sorted(core.step_sizes()) == ["delta_sgd", "given", "sps"]
    assert tuple(core.server_numbers()) == table.ServerNumbers._fields
    assert tuple(core.client_numbers()) == table.ClientNumbers._fields
    assert sorted(core.scalars()) == sorted(SCALARS)


@pytest.mark.parametrize("change", ["a new formula", "a formula less", "another name"])
def test_an_extension_of_other_formulas_is_refused_at_import(copy: Path, change: str) -> None:
    new = {
        "a new formula": ROW + ROW.replace('"momentum", "momentum"', '"nesterov", "nesterov"'),
        "a formula less": "",
        "another name": ROW.replace('"momentum", "momentum"', '"momentum", "heavy_ball"'),
    }
    edit(copy / "kernels" / "table.py", ROW, new[change])
    said = python("import fastfed", copy)
    assert said.returncode == 1
    last = said.stderr.splitlines()[-1]
    assert last.startswith(
        "ImportError: fastfed._core was built from other sources: its server_formulas are adam, ams,"
    )
    assert last.endswith("rebuild it with 'pip install -e .'")


@pytest.mark.parametrize(
    ("said", "file", "old", "new"),
    [
        ("covers", "kernels/table.py", '= "none", "given"', '= "bare", "given"'),
        ("step_sizes", "kernels/table.py", '= "none", "given"', '= "none", "asked"'),
        ("client_numbers", "kernels/table.py", "gamma: float\n    delta: float", "delta: float\n    gamma: float"),
        ("server_numbers", "kernels/table.py", "of_delta: bool\n", "second: bool\n    of_delta: bool\n"),
        ("scalars", "fastfed/train/work.py", '"mean_loss", "delta_norm"', '"average_loss", "delta_norm"'),
    ],
    ids=["covers", "step_sizes", "client_numbers", "server_numbers", "scalars"],
)
def test_other_names_are_refused(copy: Path, said: str, file: str, old: str, new: str) -> None:
    """Covers, step sizes, the numbers of a step in their order; and what a round tells of a client."""
    edit(copy / file, old, new)
    told = python("import fastfed.train.native", copy)
    assert told.returncode == 1
    last = told.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: fastfed._core was built from other sources: its {said} are ")
    assert f"those of {file} " in last


def test_an_extension_from_before_there_were_lists_is_refused(copy: Path) -> None:
    edit(copy / "kernels" / "extension.py", '"directions", DIRECTIONS', '"orientations", DIRECTIONS')
    said = python("import fastfed", copy)
    assert said.returncode == 1
    assert "its orientations are not told" in said.stderr.splitlines()[-1]


def test_the_order_of_the_rows_does_not_matter(copy: Path) -> None:
    """Numbers are asked for by name: with rows in another order every rule still computes itself."""
    file = copy / "kernels" / "table.py"
    edit(file, FIRST, "")
    edit(file, '        ServerRule("ams", ', FIRST + '        ServerRule("ams", ')
    program = """
import torch
from fastfed import kernels
assert list(kernels.SERVER_RULES)[0] == "momentum"
for rule in kernels.SERVER_RULES:
    runs = []
    for backend in ("cpp", "reference"):
        x = torch.linspace(-1, 1, 99, dtype=torch.float64)
        state = kernels.server_state(rule, x)
        for step in range(3):
            kernels.server_step(rule, x, torch.cos(x + step), state, lr=0.1, backend=backend)
        runs.append(x)
    torch.testing.assert_close(*runs, rtol=1e-12, atol=0)
"""
    said = python(program, copy)
    assert said.returncode == 0, said.stderr
