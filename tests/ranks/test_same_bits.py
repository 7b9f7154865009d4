"""Any number of ranks gives the bits of one process: models, rows, and all that a checkpoint holds."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from fastfed.kernels import registry

from ..golden import setups as golden
from . import setups, support, worker

pytestmark = pytest.mark.skipif(registry.interpreting(), reason="belongs to the session of the CPU's executors")

# Of every kind one: what is kept by clients, what is summed in another way, what has no cohort of its own.
CHOSEN = (
    "scaffold/native",
    "moon/native",
    "fedbuff/native",
    "private/native",
    "top-k/native",
    "blend/eager",
    "many",
    "many-scaffold",
    "many-int8",
    "many-median",
    "many-own-reduction",
    "many-sparse",
    "many-fedexp",
    "many-fednova",
    "many-feddyn",
    "many-fedlion",
    "many-ditto",
    "many-laps",
    "norm-average",
    "norm-local",
    "generated",
)
# A dozen for which a rank is killed: a process of its own each.
KILLED = (
    "scaffold/native",
    "moon/native",
    "fathom/native",
    "client-centric/native",
    "fedbuff/native",
    "private/native",
    "top-k/native",
    "sparse/native",
    "scaffold/eager",
    "many",
    "many-median",
    "norm-local",
)


def compare(found: list[dict[str, Any]], names: tuple[str, ...] | list[str]) -> None:
    """With runs of this process, and with the hashes that were kept of earlier ones on machines of this kind."""
    kept = json.loads(golden.HASHES.read_text()).get(golden.kind_of_machine(), {})
    for name in names:
        expected = worker.alone(name)
        if name in kept:
            assert expected["params"] == kept[name]["params"], name
        for rank, by_name in enumerate(found):
            parts = expected.keys() if rank == 0 else expected.keys() - {"state"}  # the first has what clients keep
            assert {part: by_name[name][part] for part in parts} == {part: expected[part] for part in parts}, name


@pytest.fixture(scope="module")
def of_three(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return support.job(tmp_path_factory.mktemp("ranks"), CHOSEN, 3)


def test_three_ranks_give_the_bits_of_one_process(of_three: list[dict[str, Any]]) -> None:
    compare(of_three, CHOSEN)


def test_every_client_is_visited_by_one_rank_alone(of_three: list[dict[str, Any]]) -> None:
    for name in ("scaffold/native", "many", "blend/eager", "generated"):
        sim = worker.half_done(name)
        plan = sim.planner.plan(sim.round, sim.tuner.tuning)
        assert plan is not None
        visited = [client for rank in of_three for client in rank[name]["visits"]]
        assert sorted(visited) == sorted(plan.cohort.tolist()), name
        assert all(rank[name]["visits"] for rank in of_three), f"{name}: a rank had nothing to do"


def test_a_rank_moves_a_few_vectors_whatever_the_cohort(of_three: list[dict[str, Any]]) -> None:
    """120 clients in 64 lanes on three ranks: at most four subtrees each, two thirds of which leave, and the slices;
    twelve numbers a client go besides."""
    d = worker.setups.begun("many").packing.size
    for rank in of_three:
        vectors = rank["many"]["moved"] - 2 * 12 * (120 / 3 + 4) / d
        assert 0 < vectors <= (4 + 1) * 2 / 3 + 0.1


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_every_setup_on_any_number_of_ranks(count: int, tmp_path: Path) -> None:
    compare(support.job(tmp_path / "job", setups.names(), count), setups.names())


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_two_ranks_of_which_one_is_killed_go_on_as_three(tmp_path: Path) -> None:
    for name in KILLED:
        ended = support.ended(support.started_job(tmp_path, [name], 2, dies=True))
        assert [code for code, *_ in ended] == [1, -signal.SIGKILL], (name, ended)
        assert "RankLost: rank 1 of 2 was lost" in ended[0][2], (name, ended[0][2])
    compare(support.job(tmp_path, KILLED, 3, resume=True), KILLED)
