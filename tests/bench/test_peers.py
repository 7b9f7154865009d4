"""`fastfed bench peers`: that it asks, compares, judges and tells as it says. No test here asserts a time."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import fastfed as ff
from fastfed import models
from fastfed.app import cli
from fastfed.bench.peers import (
    contender,
    handing,
    line_up,
    plot,
    run,
    table,
    targets,
    tasks,
    whole,
    whole_plain,
    whole_tasks,
)
from fastfed.bench.peers.contender import Contender, ContenderFailed
from fastfed.bench.peers.line_up import ENTRANTS, Entrant, Variant
from fastfed.bench.peers.rounds import LOSSES
from fastfed.bench.peers.rows import PeerRow
from fastfed.bench.peers.serving import Task, save_arrays
from fastfed.bench.rounds.workloads import PEERED, WORKLOADS, Workload

# ---- the protocol ---------------------------------------------------------------------------------------------------

COUNTING = """
import sys
import numpy as np
from peers.serving import serve

class Counting:
    def __init__(self, task):
        print("noise on standard output")
        self.task = task
    def begin(self, steps):
        if steps == 7:
            raise LookupError("seven is refused\\nfor a long reason")
        if steps == 8:
            print("the last words", file=sys.stderr, flush=True)
            __import__("os")._exit(3)
        self.steps, self.x = steps, 0
    def run(self, rounds):
        self.x += rounds * (self.steps or 100)
    def model(self):
        return [np.full((2, 3), self.x), np.array([self.task.clients, self.task.threads, self.task.chunk])]

serve(Counting, {"counting": "1.2"})
"""


def counting(count: int = 1, **given: Any) -> Contender:
    command = [sys.executable, "-c", COUNTING, "a/folder", "5", "2", "3"]
    return Contender(command, [{} for _ in range(count)], threads=2, **given)


def test_a_contender_trains_when_a_line_asks_it_to(tmp_path: Path) -> None:
    one = counting(2)
    assert one.versions == {"counting": "1.2"}
    one.begin(2)
    assert one.run(3) >= 0
    one.run(1)
    one.model(tmp_path / "model.npz")
    one.end()
    with np.load(tmp_path / "model.npz") as held:
        assert held["0"].tolist() == [[8, 8, 8]] * 2
        assert held["1"].tolist() == [5, 2, 3]


def test_what_a_contender_cannot_do_is_its_reason() -> None:
    refusing, dying = counting(), counting()
    with pytest.raises(ContenderFailed, match=r"^LookupError: seven is refused$"):
        refusing.begin(7)
    with pytest.raises(ContenderFailed, match="it ended: the last words"):
        dying.begin(8)
    with pytest.raises(ContenderFailed):
        dying.run(1)  # nobody is there any more
    refusing.end()
    dying.end()


def test_nobody_waits_for_ever() -> None:
    with pytest.raises(ContenderFailed, match=r"no answer within 0\.2 s"):
        Contender([sys.executable, "-c", "import time; time.sleep(60)"], [{}], threads=1, patience=0.2)


def test_contenders_wait_as_they_do_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    given = contender.environment_of(3)
    assert "OMP_WAIT_POLICY" not in given
    assert given["OMP_NUM_THREADS"] == "3"


# ---- what is handed over --------------------------------------------------------------------------------------------


def small(name: str = "W1", **changes: Any) -> Workload:
    return replace(PEERED[name], **{"examples": 4, "batch": 2, "epochs": 1, **changes})


def test_a_task_has_the_batches_of_the_plain_loop(tmp_path: Path) -> None:
    workload = small(epochs=2)
    packing = handing.hand_over(workload, 3, tmp_path)
    task = Task(tmp_path, clients=2, threads=1, chunk=0)
    assert task.batches.shape == (2, 4, 2)  # clients, steps of two epochs, a batch
    for client in range(2):
        mine = set(range(4 * client, 4 * client + 4))
        first, second = task.batches[client][:2].ravel(), task.batches[client][2:].ravel()
        assert set(first.tolist()) == set(second.tolist()) == mine
    inputs, targets = task.visit(1, steps=1)
    assert np.array_equal(inputs, task.inputs[task.batches[1][0]])
    assert np.array_equal(targets, task.targets[task.batches[1][0]])
    assert (task.steps(None), task.steps(1)) == (4, 1)
    assert task.told["names"] == ["1.weight", "1.bias"]
    x = handing.read_model(packing, tmp_path / "start.npz")
    assert torch.equal(x, packing.pack(workload.make_module()))
    save_arrays(tmp_path / "other.npz", [task.start[1], task.start[0]])
    with pytest.raises(ValueError, match=r"'1\.weight': must be \(10, 784\)"):
        handing.read_model(packing, tmp_path / "other.npz")


def test_the_workloads_are_the_promised_ones() -> None:
    sizes = {name: (one.clients, one.examples, one.epochs) for name, one in PEERED.items()}
    assert sizes == {
        "W1": (1000, 40, 1), "W2": (1000, 100, 1), "W2x5": (1000, 100, 5), "W3": (100, 100, 1), "LSTM": (10, 16, 1),
        "ResNet10": (10, 20, 1), "AE": (50, 40, 1), "ViT": (20, 40, 1),
    }  # fmt: skip
    assert WORKLOADS["W1"] is PEERED["W1"]
    assert {target.workload for target in targets.TARGETS} <= set(PEERED)
    assert {target.measure for target in targets.TARGETS} <= set(ENTRANTS)


def test_what_each_framework_is_given() -> None:
    of = {name: entrant.variants(PEERED["W2"], 1000, 2) for name, entrant in ENTRANTS.items()}
    assert of["plain"] == of["flower"] == of["fedjax"] == [Variant(200, 0)]
    assert [(one.clients, one.chunk) for one in of["pfl"]] == [(200, 1), (200, 2)]
    assert [(one.clients, one.chunk) for one in of["vmap"]] == [(200, 25), (200, 50), (200, 100), (200, 200)]
    assert ENTRANTS["vmap"].variants(PEERED["W3"], 3, 2) == [Variant(3, 2, "2 at once"), Variant(3, 3, "3 at once")]


# ---- a run with made-up frameworks ----------------------------------------------------------------------------------


class Made(Contender):
    """A framework whose model moves by one in every round, in steps of a local step."""

    def __init__(self, task: Path, variant: Variant, seconds: float, move: float, fails: str = "") -> None:
        self.versions = {"made": "1"}
        self.task, self.variant = Task(task, variant.clients, 1, variant.chunk), variant
        self.seconds, self.move, self.fails, self.asked = seconds, move, fails, 0

    def begin(self, steps: int | None) -> None:
        self.x, self.steps = 0.0, self.task.steps(steps)

    def run(self, rounds: int) -> float:
        self.asked += 1
        if self.fails and self.asked > 3:
            raise ContenderFailed(self.fails)
        self.x += rounds * self.move * self.steps
        return rounds * self.seconds * (self.variant.chunk or 1) + (9.0 if self.asked == 1 else 0.0)

    def model(self, into: Path) -> None:
        save_arrays(into, [array + np.float32(self.x) for array in self.task.start])

    def end(self) -> None:
        pass


def made(name: str, variants: Sequence[Variant], **given: Any) -> Entrant:
    class MadeEntrant(Entrant):
        def start(self, variant: Variant, task: Path, threads: int, environments: Path) -> Contender:
            return Made(task, variant, **{"seconds": 1.0, "move": 0.5, **given})

    return MadeEntrant(name, "made", "", lambda workload, clients, threads: list(variants))


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> dict[str, Entrant]:
    """FastFed and frameworks that are made up."""
    twice = [Variant(2, 3, "three"), Variant(2, 1, "one"), Variant(2, 2, "two")]
    given = {
        "fine": made("fine", twice),
        "other": made("other", [Variant(2, 0)], move=0.53),
        "broken": made("broken", [Variant(2, 0)], fails="out of luck"),
        "absent": Entrant("absent", "absent", "absent", lambda *asked: twice),
    }
    monkeypatch.setattr(run, "OURS", made("fastfed", [Variant(4, 0)], seconds=0.5))
    monkeypatch.setattr(run, "ENTRANTS", given)
    monkeypatch.setattr(run, "busy", lambda: 0.01)
    return given


def test_only_who_agrees_is_timed_and_the_quickest_way_counts(line: dict[str, Entrant], tmp_path: Path) -> None:
    plan = run.Plan(("W1",), tuple(line), scale=0.004, turns=3, threads=1, environments=tmp_path)
    told: list[str] = []
    ours, fine, other, broken, absent = run.run(plan, told.append).rows
    assert told == ["W1: softmax regression 784-10"]
    assert (ours.median, ours.timed, ours.first, ours.compiling, ours.ratio) == (0.5, 4, 9.5, 9.0, 1.0)
    assert (fine.side_by_side, fine.median, fine.timed, fine.loops) == ("one", 1.0, 2, 1)
    assert fine.ratio == (4 / 0.5) / (2 / 1.0)
    assert (fine.turns, fine.versions) == (3, "made 1")
    assert (other.disagrees, other.median, other.ratio) == (True, None, None)
    assert other.skipped.startswith("its model and FastFed's differ by 0.057 of their norm")
    assert (broken.skipped, broken.disagrees, broken.median) == ("out of luck", False, None)
    assert absent.skipped == ".venv-absent is not there: make bench-peers"


def test_an_environment_that_could_not_be_made_says_why(tmp_path: Path) -> None:
    (tmp_path / ".venv-pfl").mkdir()
    (tmp_path / ".venv-pfl" / "failed").write_text("ERROR: No matching distribution found for pfl\n")
    assert ENTRANTS["pfl"].missing(tmp_path) == "does not install: ERROR: No matching distribution found for pfl"
    assert ENTRANTS["plain"].missing(tmp_path) == ""


@pytest.mark.usefixtures("line")
def test_a_workload_that_fastfed_cannot_run_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing() -> torch.nn.Module:
        raise LookupError("fastfed.models has no 'small_vit'")

    monkeypatch.setitem(PEERED, "W1", small(module=nothing))
    (only,) = run.run(run.Plan(("W1",), ("fine",), scale=0.004, turns=1, threads=1)).rows
    assert (only.peer, only.skipped) == ("fastfed", "fastfed.models has no 'small_vit'")


def test_the_command_tells_everything_and_fails_where_models_differ(
    line: dict[str, Entrant], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run, "choose_peers", lambda patterns: tuple(line))
    command = ["bench", "peers", "--workloads", "W1", "--scale", "0.004", "--turns", "2", "--threads", "1"]
    command += ["--json", str(tmp_path / "new" / "p.json"), "--plot", str(tmp_path / "p.png")]
    said = CliRunner().invoke(cli.app, [*command, "--environments", str(tmp_path)])
    assert said.exit_code == 1
    assert "another model than FastFed's, so not timed: W1, other" in said.stderr
    for words in ("fine, one", "2 of 4", "4.00x", "disagrees", "W1, absent: not run, .venv-absent is not there: make"):
        assert words in said.stdout
    saved = json.loads((tmp_path / "new" / "p.json").read_text())["rows"]
    assert [one["peer"] for one in saved] == ["fastfed", *line]
    assert saved[1]["updates_per_second"] == 2.0
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_bad_usage_names_the_argument() -> None:
    for arguments, named in (
        (["--workloads", "W9"], "W9"),
        (["--peers", "flaxfed"], "--peers"),
        (["--turns", "0"], "--t"),
    ):
        said = CliRunner().invoke(cli.app, ["bench", "peers", *arguments])
        assert said.exit_code == 2
        assert named in said.stderr


# ---- promised and measured ------------------------------------------------------------------------------------------


def row(**changes: Any) -> PeerRow:
    plain = PeerRow(
        workload="W1", peer="pfl", clients=1000, timed=1000, side_by_side="2 processes", examples=40, batch=20,
        epochs=1, parameters=7850, median=1.0, p20=0.9, p80=1.25, turns=5, loops=1, first=1.5, difference=1e-6,
        ratio=46.0,
        skipped="", disagrees=False, busy=0.02, threads=2, machine="a machine", versions="pfl 0.6, torch 2",
    )  # fmt: skip
    return replace(plain, **changes)


def test_verdicts_are_honest() -> None:
    rows = [row(), row(peer="plain", ratio=44.9), row(peer="flower", ratio=None, median=None, skipped="no luck")]
    judged = {verdict.target.measure: verdict for verdict in targets.judge(rows)}
    assert set(judged) == {"pfl", "plain", "flower"}  # what was not asked for is not judged
    assert (judged["pfl"].met, judged["pfl"].words) == (True, "46.00x")
    assert judged["plain"].met is False
    assert (judged["flower"].met, judged["flower"].details) == (None, "no luck")
    for changes in ({"clients": 100}, {"threads": 1}, {"busy": 0.5}):
        (verdict,) = targets.judge([row(**changes)])
        assert verdict.met is None
        assert verdict.details.startswith("46.00x ")


def test_a_row_of_the_table() -> None:
    assert table._cells(row()) == ("1,000 of 1,000", "1,000", "-20% +11%", "0.50 s", "46.00x", "1e-06")
    assert table.versions([row(), row(versions="torch 2, jax 1")]) == "pfl 0.6, torch 2, jax 1"
    assert table.place([row()], []) == "a machine; 2 threads; pfl 0.6, torch 2"
    assert table.disturbed([row(peer="fastfed", busy=0.6), row()]) == [
        "W1: others used 60% of the machine, so these ratios say little"
    ]


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing was timed"):
        plot.save([row(median=None)], tmp_path / "p.png")


# ---- whole tasks ----------------------------------------------------------------------------------------------------


DIGITS = replace(tasks.WHOLE_TASKS["digits"], rounds=2, every=1, cohort=3, target=0.2)


def test_a_whole_task_is_the_same_for_a_simulation_and_the_plain_loop(tmp_path: Path) -> None:
    """The visits that are handed over are FastFed's own: both have one model after two rounds."""
    whole_tasks.hand_over(DIGITS, tmp_path, tmp_path / "task")
    task = whole.WholeTask(tmp_path / "task", threads=torch.get_num_threads())
    learner = whole_plain.PlainLearner(task)
    for visits in task.rounds():
        assert [[len(rows) for rows in visit.batches] for visit in visits] == [[10, 4, 10, 4]] * 3
        assert {visit.examples for visit in visits} == {14}
        learner.learn(visits)
    sim = ff.Simulation(
        DIGITS.module(),
        DIGITS.fed(tmp_path),
        client=ff.clients.SGD(lr=0.1),
        cohort=task.array("cohorts").tolist(),
        epochs=2,
        batch_size=10,
        seed=tasks.SEED,
        threads=1,
    )
    sim.step()
    sim.step()
    torch.testing.assert_close(sim.packing.pack(learner.module), sim.params, rtol=1e-4, atol=1e-6)
    assert learner.accuracy() == pytest.approx(sim.evaluate()["test_accuracy"])


def test_a_task_ends_where_the_accuracy_is(tmp_path: Path) -> None:
    class Learner:
        def __init__(self) -> None:
            self.rounds = 0

        def learn(self, visits: Sequence[whole.Visit]) -> None:
            self.rounds += 1

        def accuracy(self) -> float:
            return 0.1 * self.rounds

    whole_tasks.hand_over(replace(DIGITS, rounds=5, every=2, target=0.35), tmp_path, tmp_path)
    assert whole._reached(whole.WholeTask(tmp_path, 1), Learner()) == (4, pytest.approx(0.4))
    whole_tasks.hand_over(replace(DIGITS, rounds=5, every=2, target=0.7), tmp_path, tmp_path)
    with pytest.raises(RuntimeError, match=r"0\.400 after all rounds, not 0\.7"):
        whole._reached(whole.WholeTask(tmp_path, 1), Learner())


def test_whole_tasks_take_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seconds = {"fastfed": [1.0, 3.0, 2.0], "plain": [8.0, 8.0, 9.0]}
    asked: list[str] = []

    def once(name: str, home: str, task: Path, threads: int, environments: Path) -> whole_tasks._Done:
        asked.append(name)
        return whole_tasks._Done(seconds[name][(len(asked) - 1) // 2], 60, 0.955)

    monkeypatch.setattr(whole_tasks, "_once", once)
    monkeypatch.setattr(run, "WHOLE_TASKS", {"digits": DIGITS})
    plan = run.Plan(("digits",), ("pfl", "plain"), turns=3, threads=1, environments=tmp_path)
    found = {row.peer: row for row in run.run(plan).whole}
    assert asked == ["fastfed", "plain"] * 3
    assert (found["fastfed"].median, found["plain"].median, found["plain"].ratio) == (2.0, 8.0, 4.0)
    assert found["pfl"].skipped == ".venv-pfl is not there: make bench-peers"
    assert table._whole_cells(found["plain"]) == ("8.00", "8.00 to 8.60", "60", "0.9550", "4.00x")


def test_real_files_that_are_not_there_are_told(tmp_path: Path) -> None:
    plan = run.Plan(("writers",), ("plain",), turns=1, threads=1, data=tmp_path)
    (only,) = run.run(plan).whole
    assert "qmnist_writers: no such directory" in only.skipped


# ---- models for JAX -------------------------------------------------------------------------------------------------


def tiny_vit() -> torch.nn.Module:
    return models.VisionTransformer(classes=5, size=8, patch=4, channels=12, depth=2, heads=3, colours=1)


@pytest.mark.parametrize(
    "name", ["W3", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("W2", "LSTM", "ResNet10", "ViT"))]
)
def test_models_for_jax_are_those_of_torch(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses, and for all but the deepest the gradients, of the same weights in float32."""
    jax = pytest.importorskip("jax", reason="jax is not installed; the extra bench brings it")
    from fastfed.bench.peers import jax_models

    workload = small(name, examples=2)
    if name == "ViT":
        pictures = PEERED["ViT"].data.keywords | {"side": 8, "classes": 5}  # type: ignore[attr-defined]
        workload = replace(workload, module=tiny_vit, data=lambda n: PEERED["ViT"].data.func(n, **pictures))  # type: ignore[attr-defined]
    handing.hand_over(workload, 1, tmp_path)
    task = Task(tmp_path, 1, 1, 0)
    parameters = jax_models.from_torch(task.start)
    for ours, given in zip(jax_models.to_torch(parameters), task.start, strict=True):
        assert np.array_equal(ours, given)
    module = workload.make_module()
    expected: Tensor = LOSSES[workload.loss](module(torch.from_numpy(task.inputs)), torch.from_numpy(task.targets))
    loss = jax_models.loss_of(task.told)
    given = parameters, jax_models.pictures(task.inputs), task.targets
    if name == "ResNet10":  # its backward pass is JAX's own, and takes long to compile
        assert float(jax.jit(loss)(*given)) == pytest.approx(expected.item(), rel=1e-4)
        return
    found, gradients = jax.jit(jax.value_and_grad(loss))(*given)
    assert float(found) == pytest.approx(expected.item(), rel=1e-4)
    expected.backward()
    for mine, parameter in zip(jax_models.to_torch(gradients), module.parameters(), strict=True):
        assert parameter.grad is not None
        np.testing.assert_allclose(mine, parameter.grad.numpy(), rtol=1e-3, atol=2e-5)


def test_a_model_that_jax_has_not_is_a_reason() -> None:
    pytest.importorskip("jax", reason="jax is not installed; the extra bench brings it")
    from fastfed.bench.peers import jax_models

    with pytest.raises(LookupError, match="no model for JAX of 'W9'"):
        jax_models.loss_of({"workload": "W9", "loss": "mse"})


def test_line_up_has_a_file_for_everybody() -> None:
    folder = Path(line_up.__file__).parent
    for entrant in (line_up.OURS, *ENTRANTS.values()):
        assert (folder / f"in_{entrant.stem}.py").exists(), entrant.name
