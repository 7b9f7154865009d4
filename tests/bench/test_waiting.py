"""The benchmark of waiting: every setting is a process that was told so, and all works are measured in each."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from fastfed.bench import waiting as bench


def test_costs_are_of_every_call() -> None:
    found = bench.costs(lambda: sum(range(20_000)), 3)
    assert len(found) == 3
    assert all(wall > 0 and used >= -1e-3 for wall, used in found)  # the clock of a process is coarser than the wall's


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_the_command_says_what_it_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SETTINGS", {name: bench.SETTINGS[name] for name in ("FastFed's own", "passive")})
    said = CliRunner().invoke(bench.app, ["--turns", "1", "--times", "2", "--beside", "0"])
    assert said.exit_code == 0, said.output
    lines = said.output.splitlines()
    assert lines[0].startswith("2 threads on ")
    assert [line.split()[0] for line in lines[1:]] == ["FastFed's", "passive"]
    for line in lines[1:]:
        assert all(work in line for work in (*bench.WORKS, "a step of 1e6"))


def test_loops_end() -> None:
    with bench.loops(1):
        pass
