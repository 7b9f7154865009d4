"""The benchmark of the host's share: it runs the rounds that it says, and refuses what it cannot do."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from fastfed.bench import host_time as bench
from fastfed.bench.rounds.workloads import WORKLOADS
from fastfed.packing import Packing
from fastfed.train import Outcome, RoundWork
from fastfed.train.batched import Batched


def test_rounds_have_the_workloads_clients_and_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    works: list[RoundWork] = []
    run = Batched.run

    def noting(executor: Batched, work: RoundWork) -> Outcome:
        works.append(work)
        return run(executor, work)

    monkeypatch.setattr(Batched, "run", noting)
    workload = bench.with_next_to_no_model(WORKLOADS["W1"])
    assert Packing.of(workload.make_module()).parameters == 4
    taken = bench.seconds_per_step(workload, clients=6, rounds=3)
    assert len(taken) == 3
    assert all(seconds >= 0 for seconds in taken)
    assert len(works) == 4  # one goes before
    assert works[0].counts.tolist() == [40] * 6
    assert works[0].steps.tolist() == [2] * 6


def test_the_command_says_what_it_measured() -> None:
    said = CliRunner().invoke(bench.app, ["--clients", "5", "--rounds", "2", "--workload", "W2"])
    assert said.exit_code == 0, said.output
    assert "W2, 5 clients: " in said.output
    assert "ms of host time a local step (from " in said.output


def test_an_unknown_workload_is_refused() -> None:
    said = CliRunner().invoke(bench.app, ["--workload", "W9"])
    assert said.exit_code == 2
    assert "must be one of W1, W2" in said.output
