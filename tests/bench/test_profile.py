"""`fastfed bench rounds --profile` on tiny cohorts: that all of a round is told of, beside what it could be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from fastfed.app import cli
from fastfed.bench import rooms
from fastfed.bench.common.timing import Timing
from fastfed.bench.rounds import flops, synthetic
from fastfed.bench.rounds.workloads import PEERED, WORKLOADS
from fastfed.models import small_vit
from fastfed.program import trace

_core = pytest.importorskip("fastfed._core", reason="the compiled extension is missing")
bounds = pytest.importorskip("fastfed.bench.rounds.bounds")
profile = pytest.importorskip("fastfed.bench.rounds.profile")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def a_profile(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, Any]]]:
    file = tmp_path_factory.mktemp("profile") / "new" / "rows.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profile, "SLICE", 1e-3)
        patch.setattr(rooms, "SLICE", 1e-3)
        patch.setattr(bounds, "MEMORY", 1 << 16)
        command = ["bench", "rounds", "--profile", "--workloads", "W2,W2x5", "--scale", "0.005", "--rounds", "2"]
        said = CliRunner(env={"COLUMNS": "200"}).invoke(cli.app, [*command, "--threads", "1", "--json", str(file)])
    assert said.exit_code == 0, said.output
    return said.stdout, json.loads(file.read_text())


def test_every_layer_and_every_room_is_told(a_profile: tuple[str, list[dict[str, Any]]]) -> None:
    said, rows = a_profile
    for words in ("W2: MLP 784-200-200-10, 5 clients", "(784) -> (200)", "examples are read", "Rooms of a whole"):
        assert words in said
    assert [row["workload"] for row in rows] == ["W2", "W2x5"]
    for row in rows:
        assert [one["op"] for one in row["layers"]] == ["linear", "relu", "linear", "relu", "linear"]
        assert set(row["rooms"]["rooms"]) == {*rooms.ROOMS, "evaluate", "run"}
        assert (row["clients"], row["rooms"]["clients"], row["rooms"]["tested"]) == (5, 5, 83)


def test_the_parts_are_a_round(a_profile: tuple[str, list[dict[str, Any]]]) -> None:
    for row in a_profile[1]:
        layers = sum(one["forward"] + one["backward"] for one in row["layers"])
        together = layers + sum(row["duties"].values()) + row["around"]
        assert row["around"] > 0  # the server's step is there
        assert 0.5 * row["asked"] < together < 2 * row["asked"]  # means beside a median


def test_shares_follow_from_the_times(a_profile: tuple[str, list[dict[str, Any]]]) -> None:
    row = a_profile[1][0]
    first = next(one for one in row["layers"] if one["op"] == "linear")
    operations = 5 * 100 * 2 * 2 * 784 * 200  # the input's gradient is nobody's
    assert first["of_bound"] == pytest.approx(
        operations / row["peaks"]["flops"] / (first["forward"] + first["backward"])
    )
    bound = row["bound"]
    assert row["of_bound"] == pytest.approx(max(bound["products"], bound["memory"]) / row["seconds"])
    assert [one["of_bound"] for one in row["layers"] if one["op"] == "relu"] == [None, None]


def test_bytes_of_small_and_of_large_models() -> None:
    workload = replace(WORKLOADS["W1"], epochs=3)
    examples = workload.data(10)
    each = 784 * 4 + 8
    data = 3 * 40 * each
    assert bounds.bytes_of_client(workload, examples, 100, threads=2, cache=4 * 3 * 2 * 100) == data
    assert bounds.bytes_of_client(workload, examples, 100, threads=2, cache=2399) == data + 400 * (3 * 6 + 4)
    bags = synthetic.bags(20, 100, 10)
    assert bounds.bytes_of_client(workload, bags, 0, 1, 0) > 0


def test_of_sparse_weights_few_rows_move() -> None:
    workload = WORKLOADS["SO-LR"]
    program = trace(workload.make_module(), workload.data(3).inputs, workload.loss)
    assert program.packing.parameters == 10_000 * 500 + 500
    assert profile._moved_whole(program) == 500


def test_the_bound_is_the_longer_one() -> None:
    times = (("multiply-adds", 0.5), ("sgemm", 0.1), ("read", 0.2))
    timings = {name: Timing(seconds, seconds, seconds, 1, 1) for name, seconds in times}
    peaks = bounds.peaks_of(timings)
    assert peaks == (_core.product_probe(bounds.ROUNDS) / 0.5, 2 * 1024**3 / 0.1, (1 << 28) / 0.2)
    given = bounds.Peaks(10.0, 5.0, 100.0)
    of_products, of_memory = (bounds.bound_of(flops, 200.0, given) for flops in (30.0, 1.0))
    assert (of_products.sgemm, of_products.products, of_products.memory) == (6.0, 3.0, 2.0)
    assert (of_products.seconds, of_products.words) == (3.0, "products")
    assert (of_memory.seconds, of_memory.words) == (2.0, "memory")


def test_operations_of_the_probe_are_counted() -> None:
    """In proportion to the rounds, and to the threads: of each, two for every number of a tile's sums."""
    once = _core.product_probe(1000)
    assert once in (2 * 1000 * sums for sums in (24 * 16, 12 * 8, 8 * 4))
    assert _core.product_probe(3000) == 3 * once
    torch.set_num_threads(2)
    assert _core.product_probe(1000) == 2 * once
    torch.set_num_threads(1)


def test_flops_of_attention() -> None:
    """Scores and values, forward and twice backward; 50 tokens of 96 numbers in four blocks."""
    inputs = torch.zeros(1, 1, 28, 28)
    program = trace(small_vit(), inputs, "cross_entropy")
    each = flops.by_layer(program, inputs)
    found = [one for step, one in zip(program.instructions, each, strict=True) if step.op == "attention"]
    assert found == [3 * 2 * 50 * 50 * (96 + 96)] * 4
    assert sum(each) == flops.per_example(program, inputs)


def test_what_does_not_go_with_it_is_refused() -> None:
    for arguments in (["--scaling"], ["--plot", "a.png"], ["--device", "cuda:0"], ["--workloads", "W9"]):
        said = CliRunner().invoke(cli.app, ["bench", "rounds", "--profile", *arguments])
        assert said.exit_code == 2, said.output
    assert set(profile.choose_workloads(["*"])) == {*WORKLOADS, *PEERED}
