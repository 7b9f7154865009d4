"""What goes wrong on one rank is told on all of them, once, and nobody waits for ever."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import fastfed as ff
from fastfed import board
from fastfed.app import cli, runs
from fastfed.app.config import load
from fastfed.kernels import registry
from fastfed.saved import checkpoint

from . import support

pytestmark = pytest.mark.skipif(registry.interpreting(), reason="belongs to the session of the CPU's executors")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("trouble")
    for code, _, errors in support.ended(support.started(2, "tests.ranks.trouble", str(folder))):
        assert code == 0, errors
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("other settings", "ValueError: settings and start model: must be the same on all ranks, but rank 0 has "),
        ("other model", "ValueError: settings and start model: must be the same on all ranks, but rank 0 has "),
        ("other data", "ValueError: fed: must be the same on all ranks, but rank 0 has "),
        ("exchange", "ValueError: exchange: Own cannot be dealt to several ranks: it has no `stores`, which would say"),
        ("joined twice", "RuntimeError: join: this process is a rank already"),
    ],
)
def test_all_ranks_refuse_what_cannot_be_dealt(told: list[dict[str, Any]], what: str, says: str) -> None:
    for rank in told:
        assert rank[what].startswith(says)


def test_an_error_of_one_rank_is_an_error_of_all(told: list[dict[str, Any]]) -> None:
    first, second = (rank["failing client"] for rank in told)
    assert first.startswith("RankFailed: rank 1: RuntimeError: client ")
    assert second.startswith("RuntimeError: client ")
    assert first.endswith("local step 1: no such loss")
    assert told[0]["each"].startswith("ZeroDivisionError")
    assert told[1]["each"].startswith("RankFailed: rank 0: ZeroDivisionError")
    assert told[0]["disk"].startswith("NotADirectoryError")
    assert told[1]["disk"].startswith("RankFailed: rank 0: NotADirectoryError")


def test_ctrl_c_on_one_rank_ends_all_after_the_same_round_with_a_checkpoint(told: list[dict[str, Any]]) -> None:
    for rank in told:
        assert rank["interrupted"] == {"said": "KeyboardInterrupt: ", "round": 3, "saved": [3], "rows": 3}


@pytest.mark.parametrize(
    ("what", "saved"),
    [("begin", []), ("after_round", [2]), ("after_round beside an evaluation", [2]), ("end", [3])],
)
def test_a_hook_that_fails_on_one_rank_fails_on_all(told: list[dict[str, Any]], what: str, saved: list[int]) -> None:
    says = f"ArithmeticError: cannot {what.split()[0]}"
    assert told[0]["hooks"][what] == {"said": f"RankFailed: rank 1: {says}", "saved": saved}
    assert told[1]["hooks"][what] == {"said": says, "saved": saved}


def test_an_evaluation_that_fails_on_one_rank_fails_on_all_and_leaves_a_checkpoint(told: list[dict[str, Any]]) -> None:
    says = "ArithmeticError: no such loss"
    assert told[0]["evaluation"] == {"said": f"RankFailed: rank 1: {says}", "saved": [2]}
    assert told[1]["evaluation"] == {"said": says, "saved": [2]}


def test_a_full_disk_of_the_first_rank_is_told_on_all(told: list[dict[str, Any]]) -> None:
    says = "OSError: [Errno 28] No space left on device"
    assert told[0]["full disk"] == {"said": says, "saved": [1]}
    assert told[1]["full disk"] == {"said": f"RankFailed: rank 0: {says}", "saved": [1]}


def test_ranks_with_different_memory_deal_by_the_least(told: list[dict[str, Any]]) -> None:
    assert told[0]["other memory"] == told[1]["other memory"]
    assert (told[0]["other memory"]["said"], told[0]["other memory"]["memory"]) == ("nothing", 20_000)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("cohort", "ArithmeticError: no such cohort"),
        ("data", "OSError: [Errno 5] Input/output error"),
        ("data on eager", "OSError: [Errno 5] Input/output error"),
    ],
)
def test_a_cohort_or_data_that_one_rank_lacks_is_told_on_all(told: list[dict[str, Any]], what: str, says: str) -> None:
    assert (told[0][what], told[1][what]) == (f"RankFailed: rank 1: {says}", says)


def test_ranks_are_used_within_their_block(told: list[dict[str, Any]]) -> None:
    for rank in told:
        assert rank["after the block"].startswith("RuntimeError: ranks: the block of `join` has ended")
        assert rank["a group of its own"].startswith("RuntimeError: join: this process has a process group of torch")


def test_the_threads_of_a_group_end_with_its_block(told: list[dict[str, Any]]) -> None:
    """One that still held a tensor while Python ends would abort the process."""
    for rank in told:
        assert rank["threads after the block"] == []


def test_all_ranks_stop_when_the_hook_of_the_first_says_so(told: list[dict[str, Any]]) -> None:
    for rank in told:
        assert (rank["stopped by the first"], rank["stopped by the second"]) == (1, 4)


FILE = """
name = "ranks"
method = "scaffold"
[data]
name = "digits"
partition = "dirichlet"
clients = 60
alpha = 0.3
[model]
name = "mlp"
sizes = [64, 32, 10]
[client]
lr = 0.1
[run]
rounds = 1000000
cohort = 40
batch_size = 5
evaluate_every = 0
checkpoint_every = 3
"""


@pytest.mark.parametrize("way", ["board", pytest.param("network", marks=pytest.mark.exhaustive)])
def test_a_lost_rank_is_one_sentence_and_the_run_goes_on_as_three(tmp_path: Path, way: str) -> None:
    asked = {board.LEFT_OUT: "1"} if way == "network" else {}
    file, home = tmp_path / "run.toml", tmp_path / "run"
    file.write_text(FILE)
    command = ("fastfed", "run", str(file), "--out", str(home))
    processes = support.started(2, *command, **asked)
    until = time.monotonic() + 120
    while not checkpoint.all_of(home / runs.CHECKPOINT) and time.monotonic() < until:
        time.sleep(0.05)
    processes[1].kill()
    (code, said, errors), _ = support.ended(processes)
    assert (code, said) == (1, "")
    lost = "rank 1 of 2 was lost (a process that ended, or a machine out of reach)"
    sentences = [line for line in errors.splitlines() if line.startswith("fastfed: ")]
    assert sentences == [f"fastfed: {home}: {lost}; the last checkpoint can be resumed, on any number of ranks"]
    assert runs.read(home).status == "failed"
    assert not (home / runs.TRACEBACK).exists()

    rounds = checkpoint.round_of(checkpoint.newest(home / runs.CHECKPOINT)) + 4
    longer = ("--resume", "--set", f"run.rounds={rounds}")
    ended = support.ended(support.started(3, *command, *longer))
    assert [code for code, *_ in ended] == [0, 0, 0], ended
    assert [bool(said) for _, said, _ in ended] == [True, False, False]  # the first alone tells how it went
    assert (runs.read(home).status, runs.read(home).info["ranks"]) == ("done", 3)
    one = runs.execute(load(file, [f"run.rounds={rounds}"]), tmp_path / "one", progress=False)
    params = [ff.Simulation.resume(place / runs.CHECKPOINT).params for place in (home, one.path)]
    assert torch.equal(*params)
    assert runs.read(home).history.without_seconds() == one.history.without_seconds()


OURS = """
import os

import fastfed as ff


def narrow():
    if os.environ["RANK"] == "1":
        raise ValueError("the weights are not on this machine")
    return ff.models.mlp(64, 8, 10)
"""


def test_a_rank_that_cannot_set_up_says_so_itself(tmp_path: Path) -> None:
    (tmp_path / "ours.py").write_text(OURS)
    file = tmp_path / "run.toml"
    file.write_text(FILE.replace('name = "mlp"\nsizes = [64, 32, 10]', 'name = "ours:narrow"'))
    ended = support.ended(support.started(2, "fastfed", "run", str(file), "--out", str(tmp_path / "run")))
    assert [code for code, *_ in ended] == [1, 2], ended
    said = [[line for line in errors.splitlines() if line.startswith("fastfed: ")] for *_, errors in ended]
    assert said[0] == []
    (sentence,) = said[1]
    assert "the weights are not on this machine" in sentence
    assert "Traceback" not in ended[1][2]


def test_a_process_alone_joins_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with ff.ranks.join() as ranks:
        assert ranks is None
        assert ff.ranks.current() is None
    for name, value in support.environment(0, 1, 1).items():
        if name not in os.environ:
            monkeypatch.setenv(name, value)
    with ff.ranks.join() as ranks:
        assert ranks is None


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
def test_what_torchrun_would_not_set_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for key, value in {**support.environment(0, 2, 1), name: "abc"}.items():
        monkeypatch.setenv(key, value)
    refused = rf"{name}: must be a whole number, as torchrun sets it, got 'abc'"
    with pytest.raises(ValueError, match=refused), ff.ranks.join():
        pass
    result = CliRunner().invoke(cli.app, ["methods"])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith(f"fastfed: {name}: must be a whole number")


@pytest.mark.parametrize(
    ("alive", "says"), [([0], "at least one of ranks 1, 2 of 3 was lost"), ([0, 1], "rank 2 of 3 was lost")]
)
def test_the_sentence_about_lost_ranks_says_no_more_than_is_known(
    monkeypatch: pytest.MonkeyPatch, alive: list[int], says: str
) -> None:
    class Store:
        def set(self, key: str, value: str) -> None: ...

        def check(self, keys: list[str]) -> bool:
            return keys in [[f"fastfed/alive/{rank}"] for rank in alive]

    monkeypatch.setattr("fastfed.ranks._GRACE", 0.0)
    monkeypatch.setattr("torch.distributed.distributed_c10d._get_default_store", Store)
    assert ff.ranks.Ranks(0, 3)._who_is_lost(RuntimeError()).startswith(f"{says} (a process that ended")


@pytest.mark.parametrize("timeout", [0, -1.0, float("inf"), float("nan")])
def test_a_timeout_is_a_number_of_seconds(timeout: float) -> None:
    with (
        pytest.raises(ValueError, match=r"timeout: must be a number of seconds > 0, got"),
        ff.ranks.join(timeout=timeout),
    ):
        pass


@pytest.mark.parametrize(("rank", "says"), [(0, True), (1, False)])
def test_other_commands_refuse_torchrun(monkeypatch: pytest.MonkeyPatch, rank: int, says: bool) -> None:
    for name, value in support.environment(rank, 2, 1).items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(cli.app, ["methods"])
    only = "fastfed: torchrun: several processes share the work of `fastfed run` alone, got methods\n"
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", only if says else "")
