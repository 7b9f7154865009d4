"""`fastfed demo`: what `make run` shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fastfed.app import cli, demo, runs

METHODS = ("FedAvg", "FedYogi", "FedAda2", "Delta-SGD")


def run(home: Path, rounds: int, seeds: int = 2) -> Result:
    return CliRunner().invoke(cli.app, ["demo", "--rounds", str(rounds), "--seeds", str(seeds), "--out", str(home)])


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    home = tmp_path_factory.mktemp("demo") / "new"
    return home, run(home, 30)


def test_it_compares_four_methods_and_says_where_the_page_is(shown: tuple[Path, Result]) -> None:
    home, said = shown
    assert said.exit_code == 0, said.output
    assert all(f"│ {method} " in said.stdout for method in METHODS)
    page = home / "report" / "index.html"
    assert said.stdout.splitlines()[-1] == f"Report: {page}"
    text = page.read_text()
    data = json.loads(text.partition('id="report-data">')[2].partition("</script>")[0])
    lines = data["charts"]["test_accuracy_by_bits"]["series"]
    assert [(line["label"], line["n"]) for line in lines] == [(method, 2) for method in METHODS]
    assert all(line["low"] is None for line in lines)  # two seeds are too few for a band
    assert {"step_size_by_round", "partition", "seconds_per_room"} <= set(data["charts"])
    assert (home / "report" / "figures" / "test_accuracy_by_round.png").stat().st_size > 10_000


def test_every_method_learns(shown: tuple[Path, Result]) -> None:
    found = [runs.read(path) for path in runs.find(shown[0])]
    assert len(found) == 8
    for one in found:
        assert len(one.history) == 30
        assert one.history.last("test_accuracy") > 0.8, one.name


@pytest.mark.exhaustive
def test_a_second_time_nothing_is_run_again(shown: tuple[Path, Result]) -> None:
    home, _ = shown
    before = {path: (path / "run.json").read_text() for path in runs.find(home)}
    said = run(home, 30)
    assert said.exit_code == 0, said.output
    assert said.stdout.count(", run before") == 8
    assert {path: (path / "run.json").read_text() for path in runs.find(home)} == before


def test_a_run_that_was_cut_short_goes_on(tmp_path: Path) -> None:
    config = demo.configurations(3, 1)["fedavg-0"]
    runs.execute(config, tmp_path / "runs" / "fedavg-0", progress=False)
    runs.update(tmp_path / "runs" / "fedavg-0", status="interrupted")
    told: list[str] = []
    found = demo.run(tmp_path / "runs", 6, 1, told.append)
    assert [len(one.history) for one in found] == [6] * 4
    assert [line.partition(":")[0] for line in told] == ["fedavg-0", "fedyogi-0", "fedada2-0", "delta_sgd-0"]
    assert not any("run before" in line for line in told)


def test_more_rounds_go_on_and_fewer_are_refused(shown: tuple[Path, Result]) -> None:
    said = run(shown[0], 20)
    assert said.exit_code == 2
    assert "holds another run already (it has 30 rounds, and 20 were asked for); use another --out" in said.stderr
    assert all(len(runs.read(path).history) == 30 for path in runs.find(shown[0]))


def test_another_run_in_its_place_is_left_alone(tmp_path: Path) -> None:
    other = demo.configurations(2, 2)["fedavg-1"]
    home = tmp_path / "runs" / "fedavg-0"
    runs.execute(other, home, progress=False)
    before = (home / "rounds.jsonl").read_text()
    said = run(tmp_path, 2, 1)
    assert said.exit_code == 2
    assert "holds another run already (run.seed: the run in" in said.stderr
    assert len(said.stderr.splitlines()) == 1
    assert (home / "rounds.jsonl").read_text() == before
    assert runs.find(tmp_path) == [home]


def test_a_page_in_the_way_is_found_before_the_work(tmp_path: Path) -> None:
    theirs = tmp_path / "report" / "index.html"
    theirs.parent.mkdir()
    theirs.write_text("mine")
    said = run(tmp_path, 2, 1)
    assert said.exit_code == 2
    assert "is not a FastFed report" in said.stderr
    assert not (tmp_path / "runs").exists()
