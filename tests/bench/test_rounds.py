"""`fastfed bench rounds` on tiny cohorts: that it measures what it says. No test here asserts a time."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from fastfed.app import cli
from fastfed.bench.common import neighbours, timing
from fastfed.bench.common.place import CPU, Place
from fastfed.bench.peers import rounds as contenders
from fastfed.bench.rounds import agreement, flops, memory, scaling, synthetic, workloads
from fastfed.bench.rounds import run as rounds
from fastfed.bench.rounds import table as round_table
from fastfed.bench.rounds import targets as round_targets
from fastfed.bench.rounds.memory import Footprint, Growth
from fastfed.bench.rounds.prepared import Prepared
from fastfed.bench.rounds.rows import RoundRow
from fastfed.data import Sparse
from fastfed.models import LSTM, mlp
from fastfed.packing import Packing
from fastfed.program import trace
from tests import pretend

WORKLOADS = workloads.WORKLOADS
MEGABYTE = 1_000_000
CONTENDERS = ("fastfed", "plain", "vmap", "chunked vmap")


def row(**changes: Any) -> RoundRow:
    plain = RoundRow(
        workload="W1", contender="fastfed", clients=1000, timed=1000, chunk=1, examples=40, batch=20,
        parameters=7850, flops=1e6, median=0.02, p20=0.018, p80=0.025, rounds=7, loops=5, peak=2e11, difference=1e-7,
        memory=MEGABYTE, to_plain=41.0, to_vmap=3.9, to_chunked=3.1, skipped="", busy=0.02, threads=2,
        machine="a machine", versions="some versions",
    )  # fmt: skip
    return replace(plain, **changes)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Beside other tests, threads of tiny arrays would mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory without starting processes, which takes seconds each."""
    monkeypatch.setattr(memory, "measure", lambda *asked: Footprint(100 * MEGABYTE, 103 * MEGABYTE))


# ---- a whole run ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def a_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], Path]:
    out = tmp_path_factory.mktemp("rounds")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "measure", lambda *asked: Footprint(100 * MEGABYTE, 103 * MEGABYTE))
        for module in (rounds, scaling):
            patch.setattr(module, "SLICE", 1e-3)
        command = ["bench", "rounds", "--workloads", "W1,W2", "--scale", "0.005", "--rounds", "2", "--threads", "1"]
        command += ["--scaling", "--json", str(out / "new" / "r.json"), "--plot", str(out / "r.png")]
        said = CliRunner().invoke(cli.app, command)
    assert said.exit_code == 0, said.exception
    return said.stdout, json.loads((out / "new" / "r.json").read_text()), out / "r.png"


def test_every_contender_has_a_row(a_run: tuple[str, dict, Path]) -> None:
    _, saved, _ = a_run
    names = [(one["workload"], one["contender"]) for one in saved["rows"]]
    assert names == [(workload, name) for workload in ("W1", "W2") for name in CONTENDERS]
    for one in saved["rows"]:
        assert (one["clients"], one["timed"], one["rounds"], one["threads"]) == (5, 5, 2, 1)
        assert 0 < one["p20"] <= one["median"] <= one["p80"]
        assert 0 <= one["difference"] < 1e-5
        assert one["chunk"] == {"vmap": 5, "chunked vmap": 2}.get(one["contender"], 1)
        assert one["memory"] == (3 * MEGABYTE if one["contender"] == "fastfed" else None)
    assert saved["growth"] is None  # full scale only


def test_speeds_and_ratios_follow_from_the_times(a_run: tuple[str, dict, Path]) -> None:
    for workload in ("W1", "W2"):
        those = {one["contender"]: one for one in a_run[1]["rows"] if one["workload"] == workload}
        for one in those.values():
            assert one["updates_per_second"] == pytest.approx(5 / one["median"])
            assert one["gigaflops"] == pytest.approx(one["updates_per_second"] * one["flops"] / 1e9)
            assert one["of_peak"] == pytest.approx(one["gigaflops"] * 1e9 / one["peak"])
            assert one["to_plain"] == pytest.approx(those["plain"]["median"] / one["median"])
            assert one["to_vmap"] == pytest.approx(those["vmap"]["median"] / one["median"])
            assert one["to_chunked"] == pytest.approx(those["chunked vmap"]["median"] / one["median"])


def test_scaling_has_every_cohort_once(a_run: tuple[str, dict, Path]) -> None:
    sizes = [(one["workload"], one["clients"], one["threads"]) for one in a_run[1]["scaling"]]
    assert sizes == [(name, clients, 1) for name in ("W1", "W2") for clients in (1, 5, 50)]
    assert all(one["efficiency"] == 1.0 for one in a_run[1]["scaling"])


def test_the_tables_and_the_picture(a_run: tuple[str, dict, Path]) -> None:
    said, _, picture = a_run
    for words in ("Whole rounds", "5 of 5", "Promised and measured", "not measured", "Scaling", ">= 40x plain"):
        assert words in said
    assert " met" not in said  # five clients prove nothing
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("no_processes")
def test_a_broken_contender_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(contenders.PlainLoop):
        def _train(self, batches: list[Tensor]) -> None:
            super()._train(batches[:1] if len(batches) > 1 else batches)

    monkeypatch.setitem(contenders.PEERS, "plain", Forgetful)
    said = CliRunner().invoke(cli.app, ["bench", "rounds", "--workloads", "W1", "--scale", "0.002", "--rounds", "1"])
    assert said.exit_code == 1
    assert "W1: the aggregates of fastfed and plain after all local steps differ" in said.stderr


@pytest.mark.usefixtures("no_processes")
def test_what_is_skipped_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = {"plain": workloads.Peer(1), "vmap": workloads.Peer(skipped="too slow to wait for")}
    monkeypatch.setitem(WORKLOADS, "W1", replace(WORKLOADS["W1"], peers=peers))
    results = rounds.run(rounds.Plan(("W1",), scale=0.003, rounds=1, threads=1))
    ours, plain, vmap = results.rows
    assert (ours.timed, plain.timed, vmap.timed) == (3, 1, 0)
    assert ours.to_plain == pytest.approx((3 / ours.median) / (1 / plain.median))  # type: ignore[operator]
    assert (vmap.median, vmap.gigaflops, ours.to_vmap) == (None, None, None)
    assert round_table.skipped(results.rows) == ["W1, vmap: skipped, too slow to wait for"]


@pytest.mark.usefixtures("no_processes")
def test_the_fastest_chunk_of_a_peer_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = {"plain": workloads.Peer(2), "vmap": workloads.Peer(4, chunks=(1, 2, 4, 100))}
    monkeypatch.setitem(WORKLOADS, "W1", replace(WORKLOADS["W1"], peers=peers))
    seconds = {"name='vmap', clients=4, chunk=1": 4.0, "chunk=2": 1.0, "chunk=4": 2.0}

    def timings(calls: dict[str, timing.Call], rounds: int, **given: Any) -> dict[str, timing.Timing]:
        medians = {name: next((s for part, s in seconds.items() if part in name), 0.5) for name in calls}
        return {name: timing.Timing(median, median, median, 1, 1) for name, median in medians.items()}

    monkeypatch.setattr(rounds, "take_turns", timings)
    ours, plain, vmap = rounds.run(rounds.Plan(("W1",), scale=0.008, rounds=1, threads=1)).rows
    assert (vmap.chunk, vmap.updates_per_second, plain.updates_per_second) == (2, 4.0, 4.0)
    assert (ours.timed, ours.updates_per_second, ours.to_vmap) == (8, 16.0, 4.0)


def test_bad_usage_names_the_argument() -> None:
    for arguments, named in ((["--workloads", "W9"], "W9"), (["--scale", "0"], "--scale"), (["--rounds", "0"], "--r")):
        said = CliRunner().invoke(cli.app, ["bench", "rounds", *arguments])
        assert said.exit_code == 2
        assert named in said.stderr


def test_help_has_an_example() -> None:
    said = CliRunner().invoke(cli.app, ["bench", "rounds", "--help"])
    assert "Example: fastfed bench rounds" in said.stdout


# ---- agreement ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["W1", "AE", "LSTM", "SO-LR"])
def test_contenders_agree_on_every_kind_of_data(name: str) -> None:
    """Three clients, so that vmap needs two chunks; with fewer and shorter examples than the real ones."""
    workload = replace(WORKLOADS[name], examples=4, batch=2)
    if name == "LSTM":
        workload = replace(workload, data=lambda n: synthetic.text(n, length=9, vocabulary=90))
    prepared = Prepared.of(workload, 3, 1, "native")
    for peer, chunk in (("plain", 1), ("vmap", 2)):
        assert rounds._agree(prepared, rounds._Variant(peer, 3, chunk)) < agreement.ALL_STEPS.parameter


def test_other_batches_are_noticed_at_the_first_step() -> None:
    prepared = Prepared.of(WORKLOADS["W1"], 3, 1, "native")
    work = prepared.workload.work(prepared.start, 3, 3, steps=1)
    ours = contenders.FastFed(prepared.executor, work).aggregate(prepared.start)
    others = contenders.FastFed(prepared.executor, replace(work, seed=work.seed + 1)).aggregate(prepared.start)
    with pytest.raises(agreement.Disagreement, match="of their norm"):
        agreement.compare(prepared.packing, prepared.start, ours, others, agreement.FIRST_STEP)


def test_agreement_of_packed_vectors() -> None:
    packing = Packing.from_shapes({"large": (100,), "small": (4,)})
    start, theirs = packing.zeros(), packing.zeros()
    packing.views(theirs)["large"].fill_(1.0)
    packing.views(theirs)["small"].fill_(1e-4)
    limits = agreement.Limits(1e-3, 2e-2)
    ours = theirs.clone()
    assert agreement.compare(packing, start, ours, theirs, limits) == 0
    packing.views(ours)["small"].mul_(1.01)
    assert agreement.compare(packing, start, ours, theirs, limits) == pytest.approx(0.01, rel=1e-3)
    packing.views(ours)["small"].zero_()  # invisible in the whole
    with pytest.raises(agreement.Disagreement, match="parameter 'small'"):
        agreement.compare(packing, start, ours, theirs, limits)
    packing.views(start)["small"].fill_(100.0)  # float32 has steps of 8e-6 there: 1e-4 cannot be told exactly
    packing.views(ours)["small"].fill_(1e-4 + 8e-6)
    assert agreement.compare(packing, start, ours, theirs, limits) < limits.parameter
    ours[0] = torch.nan
    with pytest.raises(agreement.Disagreement, match="nan"):
        agreement.compare(packing, start, ours, theirs, limits)


# ---- its parts ------------------------------------------------------------------------------------------------------


def test_flops_of_dense_layers() -> None:
    """Both backwards of a layer, only the weight's of the first."""
    inputs = torch.zeros(1, 784)
    program = trace(mlp(784, 200, 200, 10), inputs, "cross_entropy")
    assert flops.per_example(program, inputs) == 2 * (2 * 784 * 200 + 3 * 200 * 200 + 3 * 200 * 10)


def test_flops_of_convolutions() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten())
    inputs = torch.zeros(1, 3, 10, 10)  # 5 x 5, then 3 x 3
    wanted = 2 * (2 * 25 * 8 * 3 * 9 + 3 * 9 * 4 * 8 * 9)
    assert flops.per_example(trace(model, inputs, "mse"), inputs) == wanted


def test_flops_of_an_lstm() -> None:
    model = nn.Sequential(nn.Embedding(9, 5), LSTM(5, 7), nn.Linear(7, 9))
    inputs = torch.zeros(1, 6, dtype=torch.int64)
    wanted = 6 * 2 * (3 * 28 * 5 + 3 * 28 * 7 + 3 * 7 * 9)
    assert flops.per_example(trace(model, inputs, "cross_entropy"), inputs) == wanted


def test_flops_of_sparse_rows_count_non_zeros() -> None:
    inputs = Sparse.of(torch.tensor([[1.0, 0, 0, 0], [1, 2, 3, 0]]))
    program = trace(nn.Sequential(nn.Linear(4, 5)), inputs, "binary_cross_entropy")
    assert flops.per_example(program, inputs) == 2 * 2 * 2 * 5


def test_the_made_up_examples_look_like_the_papers() -> None:
    images = synthetic.pictures(50, 3, 24, 10).inputs
    assert isinstance(images, Tensor)
    assert 0 == float(images.min()) < float(images.mean()) < float(images.max()) <= 1
    text = synthetic.text(20, 80, 90)
    assert isinstance(text.inputs, Tensor)
    assert isinstance(text.targets, Tensor)
    assert torch.equal(text.inputs[:, 1:], text.targets[:, :-1])
    bags = synthetic.bags(200, 10_000, 500)
    assert isinstance(bags.inputs, Sparse)
    assert isinstance(bags.targets, Sparse)
    assert 55 < bags.inputs.columns.numel() / 200 < 65
    assert 2 < bags.targets.columns.numel() / 200 <= 3
    torch.testing.assert_close(bags.inputs.dense(torch.arange(200)).sum(1), torch.ones(200))


def test_data_and_weights_are_the_same_every_time() -> None:
    a, b = (WORKLOADS["W1"].data(10).inputs for _ in range(2))
    assert torch.equal(a, b)  # type: ignore[arg-type]
    a, b = (Packing.of(m).pack(m) for m in (WORKLOADS["W1"].make_module() for _ in range(2)))
    assert torch.equal(a, b)


def test_a_larger_cohort_shares_the_examples() -> None:
    workload = WORKLOADS["W1"]
    work = workload.work(torch.zeros(10), clients=5, stored=2)
    assert work.rows.view(5, 40)[4].tolist() == work.rows.view(5, 40)[0].tolist() == list(range(40))
    assert work.steps.tolist() == [2] * 5


def test_the_workloads_are_the_promised_ones() -> None:
    sizes = {name: (one.clients, one.examples, one.batch) for name, one in WORKLOADS.items()}
    assert sizes == {
        "W1": (1000, 40, 20), "W2": (1000, 100, 20), "W3": (100, 100, 20), "LSTM": (10, 16, 4), "AE": (50, 40, 20),
        "SO-LR": (50, 100, 100), "ResNet": (1, 20, 20),
    }  # fmt: skip
    assert all(peer.skipped or peer.clients <= one.clients for one in WORKLOADS.values() for peer in one.peers.values())


@pytest.mark.exhaustive
def test_memory_is_measured_in_a_process_of_its_own() -> None:
    found = memory.measure("W1", clients=3, stored=2, threads=1)
    assert 20 * MEGABYTE < found.before <= found.peak
    assert found.of_round < 200 * MEGABYTE


def test_a_failing_process_says_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 1, stdout="", stderr="Traceback ...\nMemoryError: too large\n")
    monkeypatch.setattr(subprocess, "run", lambda *command, **options: failed)
    with pytest.raises(RuntimeError, match="the memory of W1 could not be measured: MemoryError: too large"):
        memory.measure("W1", clients=1, stored=1, threads=1)


def test_growth_leaves_out_what_the_cohort_is_described_with() -> None:
    few, many = Footprint(100, 200), Footprint(150, 260)
    assert Growth(few, many, 2).relative == pytest.approx(0.05)
    assert (few.of_round, many.of_round) == (100, 110)


def test_verdicts_are_honest() -> None:
    growth = Growth(Footprint(100, 200), Footprint(100, 209), threads=2)
    results = rounds.Results([row(), row(workload="W2", to_plain=7.4)], growth)
    verdicts = {(v.target.workload, v.target.measure): v for v in round_targets.judge(results)}
    assert verdicts["W1", "plain"].met is True
    assert verdicts["W1", "vmap"].met is False
    assert verdicts["W2", "plain"].met is False
    assert verdicts["W2", "memory"].met is True
    assert verdicts["W2", "memory"].words == "+4.5%"
    assert verdicts["SO-LR", "plain"].met is None
    assert round_targets.judge(replace(results, growth=replace(growth, threads=1)))[-1].met is None
    for changes in ({"clients": 100}, {"threads": 1}, {"to_plain": None}, {"busy": 0.6}):
        judged = round_targets.judge(rounds.Results([row(**changes)]))
        assert judged[0].met is None


def test_a_busy_machine_is_told_and_not_judged() -> None:
    rows = [row(busy=0.6), row(contender="plain", busy=0.6), row(workload="W2", busy=None)]
    assert round_table.disturbed(rows) == ["W1: others used 60% of the machine, so these ratios say little"]
    judged = round_targets.judge(rounds.Results(rows))
    assert "measure again" in judged[0].details
    assert judged[2].met is True  # unknown is not busy


def test_how_busy_the_machine_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    monkeypatch.setattr(neighbours, "_STAT", stat)
    assert neighbours.busy(0) is None  # no such file, as on other systems
    stat.write_text("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 ...\n")
    later = "cpu  140 0 60 840 60 0 0 0 0 0\n"  # 100 ticks more, 50 of them idle or waiting for a disk
    monkeypatch.setattr(neighbours.time, "sleep", lambda seconds: stat.write_text(later))
    assert neighbours.busy() == pytest.approx(0.5)


def test_progress_counts_what_it_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "_bout", lambda workload, plan: [])
    monkeypatch.setattr(scaling, "_cohort", lambda plan, name, clients: [])
    monkeypatch.setattr(memory, "grow", lambda *asked: None)
    plan = rounds.Plan(("W1", "W2", "W3"), threads=1, scaling=True)
    told: list[str] = []
    rounds.run(plan, told.append)
    assert len(told) == plan.bouts == 3 + 1 + 8


# ---- on a card ------------------------------------------------------------------------------------------------------


def on_card(**given: Any) -> Place:
    """Tensors of the CPU, which stand for a card's."""
    return Place(CPU, "Made-up 9000", **given)


@pytest.mark.exhaustive
def test_contenders_on_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rows with the card's name; `batched` beside ours; vmap over cohorts for which a host is too slow."""
    monkeypatch.setattr(rounds, "SLICE", 1e-3)
    monkeypatch.setattr(rounds, "SIDE_ON_CARD", 64)
    monkeypatch.setitem(WORKLOADS, "SO-LR", replace(WORKLOADS["SO-LR"], examples=4, batch=2))
    waited: list[None] = []
    place = on_card(synchronise=lambda: waited.append(None), grown_by=lambda call: 77)
    plan = rounds.Plan(("W1", "SO-LR"), 0.04, 2, 1, executor="eager", place=place)
    results = rounds.run(plan)
    names = [(one.workload, one.contender) for one in results.rows]
    assert names == [
        (w, name) for w in plan.workloads for name in ("fastfed", "batched", "plain", "vmap", "chunked vmap")
    ]
    for one in results.rows:
        assert one.device == "Made-up 9000"
        assert one.median is not None
        assert not one.skipped
        assert one.memory == (77 if one.contender == "fastfed" else None)
    assert len(waited) >= 4 * len(names)
    assert all(verdict.met is None for verdict in round_targets.judge(results))  # promises are for the host


def test_what_does_not_fit_into_a_card_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any) -> None:
        raise torch.OutOfMemoryError("no")

    monkeypatch.setattr(contenders.Vmap, "aggregate", full)
    monkeypatch.setattr(rounds, "SLICE", 1e-3)
    monkeypatch.setattr(rounds, "SIDE_ON_CARD", 64)
    plan = rounds.Plan(("W1",), 0.004, 1, 1, executor="eager", place=on_card())
    rows = {one.contender: one for one in rounds.run(plan).rows}
    assert rows["vmap"].skipped == "4 clients at once do not fit into the card's memory"
    assert rows["vmap"].median is None
    assert rows["plain"].median is not None


def test_contenders_keep_to_the_device() -> None:
    """On a device that refuses to be mixed with the host, and counts what crosses the border."""
    there = torch.device(pretend.NAME)
    prepared = Prepared.of(WORKLOADS["W1"], 2, 1, "native")
    work = prepared.workload.work(prepared.start, 2, 2)
    for name, chunk in (("plain", 1), ("vmap", 2)):
        peer = contenders.PEERS[name](prepared.workload, prepared.peers[name], prepared.examples, work, chunk, there)
        start = prepared.start.to(there)
        pretend.traffic.clear()
        assert peer.aggregate(start).device.type == there.type
        assert pretend.traffic.total() == pretend.Counts()  # nothing is sent, nobody waits


def test_scaling_is_about_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastfed.bench.common.place.find_place", lambda device: on_card())
    said = CliRunner().invoke(cli.app, ["bench", "rounds", "--scaling", "--device", "cuda"])
    assert said.exit_code == 2
    assert "threads of the host" in " ".join(said.stderr.replace("│", " ").split())


def test_a_card_is_given_the_executor_device(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[rounds.Plan] = []
    monkeypatch.setattr("fastfed.bench.common.place.find_place", lambda device: on_card())
    monkeypatch.setattr(rounds, "run", lambda plan, tell: (plans.append(plan), rounds.Results([row(device="M")]))[1])
    said = CliRunner().invoke(cli.app, ["bench", "rounds", "--device", "cuda"])
    assert said.exit_code == 0, said.output
    assert (plans[0].executor, plans[0].place.card, plans[0].measures_growth) == ("device", "Made-up 9000", False)
    assert "M; a machine" in said.stdout
    assert "Promised" not in said.stdout
