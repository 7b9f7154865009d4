"""`fastfed report` as a user meets it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fastfed.app import cli
from tests.app.report.support import rows, write_run


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, ["report", *map(str, arguments)])


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A directory with two runs."""
    home = tmp_path / "runs"
    write_run(home / "a", rows([0.5, 0.9]), method="fedavg")
    write_run(home / "b", rows([0.6, 0.8]), method="fedyogi")
    return home


def test_a_directory_of_runs_becomes_a_page_whose_place_is_told(two: Path) -> None:
    said = run(two, "--figures", "svg")
    assert said.exit_code == 0, said.output
    page = two / "report" / "index.html"
    assert said.stdout.splitlines() == [f"Report:  {page}", f"Figures: {page.parent / 'figures'}"]
    assert "FedAvg reaches 90.0% test accuracy after 2 rounds, ahead of FedYogi by 10.0 points." in page.read_text()
    assert (page.parent / "figures" / "test_accuracy_by_bits.svg").is_file()


def test_runs_by_name_go_to_a_report_here(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(two)
    assert run("a", "b", "--no-figures").exit_code == 0
    text = (two / "report" / "index.html").read_text()
    assert "FedAvg" in text
    assert "FedYogi" in text
    assert not (two / "report" / "figures").exists()


def test_one_run(two: Path, tmp_path: Path) -> None:
    said = run(two / "b", "--no-figures", "--out", tmp_path / "out", "--title", "Mine & yours", "--target", "0.55")
    assert said.exit_code == 0
    assert said.stdout == f"Report:  {tmp_path / 'out' / 'index.html'}\n"
    text = (tmp_path / "out" / "index.html").read_text()
    assert "<title>Mine &amp; yours</title>" in text
    assert "rounds to 55%" in text
    assert "FedAvg" not in text


def test_a_second_report_replaces_the_first(two: Path) -> None:
    assert run(two, "--no-figures").exit_code == 0
    assert run(two, "--no-figures", "--title", "Second").exit_code == 0
    assert "<title>Second</title>" in (two / "report" / "index.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("none",), "none: no such directory"),
        (("empty",), "empty: no run there; looked for run.json beside config.toml in it and below"),
        (("damaged",), "damaged/rounds.jsonl: is damaged"),
        (("runs", "--target", "90"), "--target: must be between 0 and 1 for test_accuracy, got 90"),
        (("runs", "--target", "nan"), "--target: must be a finite number"),
        (("runs", "--figures", "gif"), "--figures: must be some of png, svg, pdf, separated by commas, got 'gif'"),
        ((), "RUN"),
    ],
)
def test_wrong_requests_are_sentences_and_write_nothing(
    two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (write_run(tmp_path / "damaged", rows([0.5])) / "rounds.jsonl").write_text("{broken\n")
    before = sorted(tmp_path.rglob("*"))
    said = run(*arguments)
    assert said.exit_code == 2
    assert words in " ".join(said.stderr.split()).replace("Invalid value for ", "")
    assert "Traceback" not in said.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_somebodys_page_is_not_overwritten(two: Path) -> None:
    theirs = two / "report" / "index.html"
    theirs.parent.mkdir()
    theirs.write_text("mine")
    said = run(two)
    assert said.exit_code == 2
    assert said.stderr.startswith(f"fastfed: {theirs}: is not a FastFed report")
    assert len(said.stderr.splitlines()) == 1
    assert theirs.read_text() == "mine"


def test_a_disk_that_refuses_is_exit_code_1(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastfed.app.report import files

    def full(*_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "render", full)
    said = run(two, "--no-figures")
    assert said.exit_code == 1
    assert said.stderr.startswith("fastfed: ")
    assert said.stderr.endswith("No space left on device\n")
    assert len(said.stderr.splitlines()) == 1
