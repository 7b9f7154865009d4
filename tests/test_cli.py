"""The command line as a user meets it, and the README's examples."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import fastfed
from fastfed import cli, demo
from fastfed.kernels.table import CLIENT_RULES, SERVER_RULES

ROOT = Path(__file__).parents[1]


def in_process(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, list(arguments))


def as_a_program(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fastfed.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)


def test_version() -> None:
    said = in_process("--version")
    assert (said.exit_code, said.stdout.strip()) == (0, f"fastfed {fastfed.__version__}")


@pytest.mark.parametrize("command", [(), ("doctor",), ("bench",), ("bench", "kernels"), ("demo",)])
def test_help_has_an_example(command: tuple[str, ...]) -> None:
    said = in_process(*command, "--help")
    assert said.exit_code == 0
    assert "Example: fastfed" in said.stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("nonsense",), "nonsense"),
        (("bench", "kernels", "--sizes", "big"), "--sizes"),
        (("bench", "kernels", "--sizes", "0"), "--sizes"),
        (("bench", "kernels", "--rounds", "0"), "--rounds"),
        (("bench", "kernels", "--ops", "server_adm"), "Did you mean 'server_adam'?"),
        (("bench", "kernels", "--backend", "fortran"), "--backend"),
    ],
)
def test_bad_usage_is_exit_code_2_and_names_the_argument(arguments: tuple[str, ...], named: str) -> None:
    said = in_process(*arguments)
    assert said.exit_code == 2
    assert named in said.stderr


def test_a_backend_that_cannot_run_is_exit_code_1_and_one_sentence() -> None:
    said = as_a_program("bench", "kernels", "--backend", "triton", CUDA_VISIBLE_DEVICES="", TRITON_INTERPRET="0")
    assert said.returncode == 1
    assert said.stderr.startswith("fastfed: backend: 'triton' cannot run here: ")
    assert len(said.stderr.splitlines()) == 1


def test_demo_shows_all_methods_and_a_picture(tmp_path: Path) -> None:
    said = in_process("demo", "--rounds", "5", "--out", str(tmp_path / "new" / "demo.png"))
    assert said.exit_code == 0
    assert all(f"│ {method} " in said.stdout for method in demo.METHODS)
    assert "demo.png" in said.stdout
    assert (tmp_path / "new" / "demo.png").stat().st_size > 10_000


def test_every_method_of_the_demo_learns() -> None:
    for run in demo.run(30):
        assert len(run.history) == 30
        assert run.history.last("test_accuracy") > 0.8, run.name


def test_readme_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 6
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert names["history"].rounds[49]["test_accuracy"] > 0.9
    assert names["again"].round == 65


def test_readme_names_every_rule_and_option() -> None:
    text = (ROOT / "README.md").read_text()
    for rule in (*SERVER_RULES.values(), *CLIENT_RULES.values()):
        missing = [name for name in (rule.name, *rule.options) if f"`{name}`" not in text]
        assert not missing, f"{rule.name}: {missing}"
