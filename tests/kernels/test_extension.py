"""Rules by name: both languages have the same lists of names, and an extension built from others is refused.

Each test edits a scratch copy of the Python sources and leaves the compiled extension as it is: what happens to a
checkout that was not rebuilt.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fastfed.kernels import extension, table
from fastfed.train.work import SCALARS

pytestmark = [
    pytest.mark.skipif(extension.why_not() is not None, reason="the compiled extension is missing"),
    pytest.mark.xdist_group("extension"),  # one worker makes the copies
]

ROOT = Path(__file__).parents[2]
ROW = '        ServerRule("momentum", "momentum", ("m",), {**_AVERAGING, "momentum": Option(0.9, DECAY)}),\n'
FIRST = '        ServerRule("sgd", "sgd", (), _AVERAGING),\n'


# What somebody changes without a rebuild: file, text there, text instead of it, what is imported then.
Change = tuple[str, str, str, str]
TABLE = "kernels/table.py"
CHANGES: dict[str, Change] = {
    "a new formula": (
        TABLE,
        ROW,
        ROW + ROW.replace('"momentum", "momentum"', '"nesterov", "nesterov"'),
        "fastfed.kernels",
    ),
    "a formula less": (TABLE, ROW, "", "fastfed.kernels"),
    "another name": (TABLE, ROW, ROW.replace('"momentum", "momentum"', '"momentum", "heavy_ball"'), "fastfed.kernels"),
    "covers": (TABLE, '= "none", "given"', '= "bare", "given"', "fastfed.kernels"),
    "step_sizes": (TABLE, '= "none", "given"', '= "none", "asked"', "fastfed.kernels"),
    "client_numbers": (TABLE, "gamma: float\n    delta: float", "delta: float\n    gamma: float", "fastfed.kernels"),
    "server_numbers": (TABLE, "of_delta: bool\n", "second: bool\n    of_delta: bool\n", "fastfed.kernels"),
    "scalars": (
        "fastfed/train/work.py",
        '"mean_loss", "delta_norm"',
        '"average_loss", "delta_norm"',
        "fastfed.train.native",
    ),
    "no lists": ("kernels/extension.py", '"directions", DIRECTIONS', '"orientations", DIRECTIONS', "fastfed.kernels"),
}
# Torch is imported once and every copy in a child of that process: alone, each would take seconds for it.
IMPORT_EACH = """
import json, os, sys, traceback
import torch
for home, module in json.load(sys.stdin):
    child = os.fork()
    if not child:
        os.chdir(home)
        sys.path[0] = home
        try:
            __import__(module)
        except BaseException as error:
            open("said", "w").write("".join(traceback.format_exception_only(error)))
        os._exit(0)
    os.waitpid(child, 0)
"""


def copy_to(home: Path) -> Path:
    for place in ("fastfed", "kernels", "csrc"):
        shutil.copytree(ROOT / place, home / place, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "setup.py", home)
    return home


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1, f"{file.name} has not once\n{old}"
    file.write_text(text.replace(old, new))


def python(program: str, home: Path, given: str = "") -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "FASTFED_BACKEND"}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=home, env=environment, input=given, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the import says after each change; nothing where it succeeds."""
    homes = {name: copy_to(tmp_path_factory.mktemp("copy")) for name in ("nothing", *CHANGES)}
    for name, (file, old, new, _) in CHANGES.items():
        edit(homes[name] / file, old, new)
    modules = {"nothing": "fastfed.train.native", **{name: change[-1] for name, change in CHANGES.items()}}
    told = python(IMPORT_EACH, ROOT, json.dumps([(str(home), modules[name]) for name, home in homes.items()]))
    assert told.returncode == 0, told.stderr
    files = {name: home / "said" for name, home in homes.items()}
    return {name: file.read_text().strip() if file.exists() else "" for name, file in files.items()}


def test_both_languages_know_the_same_names() -> None:
    core = extension.load()
    assert sorted(core.server_formulas()) == sorted(table.SERVER_FORMULAS)
    assert sorted(core.directions()) == sorted(table.DIRECTIONS)
    assert sorted(core.covers()) == ["I", "II", "none"]
    assert sorted(core.step_sizes()) == ["delta_sgd", "given", "sps"]
    assert tuple(core.server_numbers()) == table.ServerNumbers._fields
    assert tuple(core.client_numbers()) == table.ClientNumbers._fields
    assert sorted(core.scalars()) == sorted(SCALARS)


def test_a_copy_that_nobody_changed_is_imported(said: dict[str, str]) -> None:
    assert said["nothing"] == ""


@pytest.mark.parametrize("change", ["a new formula", "a formula less", "another name"])
def test_an_extension_of_other_formulas_is_refused_at_import(said: dict[str, str], change: str) -> None:
    assert said[change].startswith(
        "ImportError: fastfed._core was built from other sources: its server_formulas are adam, ams,"
    )
    assert said[change].endswith("rebuild it with 'pip install -e .'")


@pytest.mark.parametrize("names", ["covers", "step_sizes", "client_numbers", "server_numbers", "scalars"])
def test_other_names_are_refused(said: dict[str, str], names: str) -> None:
    """Covers, step sizes, the numbers of a step in their order; and what a round tells of a client."""
    assert said[names].startswith(f"ImportError: fastfed._core was built from other sources: its {names} are ")
    assert f"those of {CHANGES[names][0]} " in said[names]


def test_an_extension_from_before_there_were_lists_is_refused(said: dict[str, str]) -> None:
    assert "its orientations are not told" in said["no lists"]


@pytest.mark.exhaustive
def test_the_order_of_the_rows_does_not_matter(tmp_path: Path) -> None:
    """Numbers are asked for by name: with rows in another order every rule still computes itself."""
    copy = copy_to(tmp_path)
    file = copy / TABLE
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
    told = python(program, copy)
    assert told.returncode == 0, told.stderr
