"""The command line as a user meets it, and the README's examples."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

import fastfed
from fastfed.app import cli, config, doctor, runs
from fastfed.app.commands import terminal
from fastfed.kernels.table import CLIENT_RULES, SERVER_RULES

ROOT = Path(__file__).parents[2]


def in_process(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, list(arguments))


def as_a_program(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fastfed.app.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)


def test_version() -> None:
    said = in_process("--version")
    assert (said.exit_code, said.stdout.strip()) == (0, f"fastfed {fastfed.__version__}")


def commands(group: Any, *above: str) -> list[tuple[str, ...]]:
    """Every command of a group, and of the groups in it."""
    found: list[tuple[str, ...]] = [above]
    for name, command in getattr(group, "commands", {}).items():
        found += commands(command, *above, name)
    return found


ALL = commands(typer.main.get_command(cli.app))


def test_all_commands_are_there() -> None:
    groups = {("bench", "kernels"), ("bench", "rounds"), ("data", "list"), ("data", "check"), ("data", "show")}
    groups |= {("data", "features"), ("data", "get"), ("bench", "peers")}
    single = {"init", "run", "sweep", "compare", "report", "methods", "schema", "doctor", "demo", "bench", "data"}
    single |= {"export", "watch"}
    assert set(ALL) == {(), *groups, *((name,) for name in single)}


@pytest.mark.parametrize("command", ALL, ids=" ".join)
def test_help_has_an_example_of_the_command(command: tuple[str, ...]) -> None:
    said = in_process(*command, "--help")
    assert said.exit_code == 0
    assert f"Example: {' '.join(('fastfed', *command))}" in " ".join(said.stdout.split())


@pytest.mark.parametrize("arguments", [("--help",), ("init", "a.toml")], ids=" ".join)
def test_what_needs_no_torch_does_not_import_it(arguments: tuple[str, ...], tmp_path: Path) -> None:
    watched = (
        "import sys; from fastfed.app import cli\n"
        "try: cli.main()\n"
        "finally: print([name for name in ('torch', 'numpy') if name in sys.modules])"
    )
    command = [sys.executable, "-c", watched, *arguments]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    said = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, check=True
    )
    assert said.stdout.splitlines()[-1] == "[]"


def test_the_package_gives_what_it_names() -> None:
    for name in fastfed.__all__:
        assert getattr(fastfed, name) is not None
    assert set(fastfed.__all__) <= set(dir(fastfed))
    with pytest.raises(AttributeError, match="has no attribute 'simulation_of'"):
        _ = fastfed.simulation_of


@pytest.mark.parametrize("command", [one for one in ALL if one], ids=" ".join)
def test_an_unknown_option_is_exit_code_2(command: tuple[str, ...]) -> None:
    said = in_process(*command, "--nonsense")
    assert said.exit_code == 2
    assert "--nonsense" in said.stderr


@pytest.mark.parametrize("error", [RuntimeError("a\nb"), AssertionError(), KeyError("lr")])
def test_what_nobody_expected_is_one_sentence_unless_asked_for(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr(cli, "app", fails)
    monkeypatch.delenv("FASTFED_TRACEBACK", raising=False)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith(f"fastfed: something unexpected: {type(error).__name__}: ")
    assert len(said.splitlines()) == 1
    monkeypatch.setenv("FASTFED_TRACEBACK", "1")
    with pytest.raises(type(error)):
        cli.main()


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (terminal.CommandError("no engine"), 1, "no engine"),
        (config.ConfigError("client.lr: must be"), 2, "client.lr: must be"),
        (runs.RunExists("a: holds a run"), 2, "a: holds a run"),
        (runs.DamagedRun("a: is damaged"), 2, "a: is damaged"),
        (runs.RunFailed("a: failed"), 1, "a: failed"),
        (ImportError("h5py: is not installed"), 1, "h5py: is not installed"),
        (MemoryError(), 1, "MemoryError"),
        (PermissionError(13, "Permission denied", "a.toml"), 1, "a.toml: Permission denied"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_every_command_ends_in_an_exit_code_and_a_sentence(
    error: BaseException, code: int, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: Any) -> None:
        raise error

    monkeypatch.setattr(doctor, "examine", fails)
    said = in_process("doctor")
    assert (said.exit_code, said.stdout, said.stderr) == (code, "", f"fastfed: {sentence}\n")


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


def test_readme_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [block] = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(compile(block, "README.md", "exec"), names)
    assert names["history"].rounds[49]["test_accuracy"] > 0.9


def test_the_page_of_rules_names_every_rule_and_option() -> None:
    text = (ROOT / "docs" / "rules.md").read_text()
    for rule in (*SERVER_RULES.values(), *CLIENT_RULES.values()):
        missing = [name for name in (rule.name, *rule.options) if f"`{name}`" not in text]
        assert not missing, f"{rule.name}: {missing}"
