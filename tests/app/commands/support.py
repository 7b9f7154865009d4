"""The command line as a user meets it."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

from fastfed.app import cli
from fastfed.app.config import document

from ..config.support import tables


def fastfed(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def small_file(directory: Path, name: str = "a.toml", rounds: int = 4) -> Path:
    """A configuration that runs in no time."""
    file = directory / name
    own = {"rounds": rounds, "cohort": 4, "evaluate_every": 2, "checkpoint_every": 2}
    file.write_text(document.write(tables(name="small", run=own)))
    return file


def assert_refused(said: Result, code: int, sentence: str) -> None:
    """An exit code, one sentence on standard error, and nothing else."""
    assert said.exit_code == code, said.output
    assert said.stderr.startswith(f"fastfed: {sentence}"), said.stderr
    assert len(said.stderr.splitlines()) == 1, said.stderr
    assert said.stdout == ""
