"""Checkpoints: resuming gives the bits of never having stopped, and nothing half-written is ever taken for one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fastfed as ff
from fastfed.record.writers import read_json_lines
from fastfed.saved import checkpoint
from fastfed.saved.checkpoint import DamagedCheckpoint

from ..simulation.support import simulation, small_federation

METHODS: dict[str, dict[str, Any]] = {
    "fedavg": ff.methods.fedavg(0.1),
    "fedavgm": ff.methods.fedavgm(0.1),
    "fedyogi": ff.methods.fedyogi(0.1, 0.05),
    "fedams, bias corrected": {
        "client": ff.clients.Momentum(lr=0.05),
        "server": ff.servers.FedAMS(lr=0.05, bias_correction=True, v0=0.0, vmax0=1e-3),
    },
    "scaffold": ff.methods.scaffold(0.1),
    "moon": ff.methods.moon(0.1, mu=2.0, head="3"),
    "fedada2, transmitted": ff.methods.fedada2("adam", "adam", transmit=True, client_lr=0.01, server_lr=0.01),
    "delta-sgd": ff.methods.delta_sgd(),
    "poisson, scheduled": {
        "client": ff.clients.SGD(lr=0.1),
        "cohort": ff.plan.Poisson(0.4),
        "client_schedule": ff.schedules.Drops(6),
        "server_schedule": ff.schedules.Staircase(0.5, 2),
    },
}


@pytest.mark.parametrize("method", METHODS)
def test_resuming_gives_the_same_bits(method: str, tmp_path: Path) -> None:
    whole, part = simulation(**METHODS[method]), simulation(**METHODS[method])
    whole.run(rounds=6, evaluate_every=2, progress=False)
    part.run(rounds=3, evaluate_every=2, progress=False)
    del (
        part.history.rounds[-1]["test_loss"],
        part.history.rounds[-1]["test_accuracy"],
    )  # the last round's, asked for once
    part.save(tmp_path)
    resumed = ff.Simulation.resume(tmp_path, fed=small_federation())
    resumed.run(rounds=3, evaluate_every=2, progress=False)
    assert_same(resumed, whole)


def assert_same(one: ff.Simulation, other: ff.Simulation) -> None:
    tensors = one.tensors(), other.tensors()
    assert tensors[0].keys() == tensors[1].keys()
    for name in tensors[0]:
        assert torch.equal(tensors[0][name], tensors[1][name]), name
    assert one.history.without_seconds() == other.history.without_seconds()


def test_everything_is_made_again_from_recipes(tmp_path: Path) -> None:
    fed = ff.data.dirichlet(ff.data.digits(), clients=20, alpha=0.5, seed=3)
    sim = ff.Simulation(ff.models.mlp(64, 16, 10), fed, cohort=4, threads=1, **ff.methods.fedyogi(0.1, 0.03))
    sim.run(rounds=2, evaluate_every=0, progress=False)
    resumed = ff.Simulation.resume(sim.save(tmp_path), threads=2)
    assert resumed.settings.threads == 2
    for one in (sim, resumed):
        one.run(rounds=2, evaluate_every=1, progress=False)
    assert_same(resumed, sim)


def test_the_random_state_of_torch_is_left_alone(tmp_path: Path) -> None:
    fed = ff.data.iid(ff.data.digits(), clients=5)
    simulation_file = ff.Simulation(ff.models.mlp(64, 10), fed, cohort=2, **ff.methods.fedavg(0.1)).save(tmp_path)
    before = torch.get_rng_state()
    ff.Simulation.resume(simulation_file)
    assert torch.equal(before, torch.get_rng_state())


def test_what_json_cannot_hold_must_be_given_again(tmp_path: Path) -> None:
    schedule = lambda round: 0.5**round  # noqa: E731
    weights = torch.arange(1.0, 13.0)
    sim = simulation(client_schedule=schedule, weights=weights)
    sim.run(rounds=2, progress=False)
    path = sim.save(tmp_path)
    with pytest.raises(ValueError, match="fed: must be given again"):
        ff.Simulation.resume(path)
    with pytest.raises(ValueError, match="weights: must be given again"):
        ff.Simulation.resume(path, fed=sim.fed)
    with pytest.raises(ValueError, match="client_schedule: must be given again"):
        ff.Simulation.resume(path, fed=sim.fed, weights=weights)
    resumed = ff.Simulation.resume(path, fed=sim.fed, client_schedule=schedule, weights=weights)
    for one in (sim, resumed):
        one.run(rounds=2, progress=False)
    assert_same(resumed, sim)


def test_another_model_other_data_and_other_settings_are_refused(tmp_path: Path) -> None:
    path = simulation().save(tmp_path)
    fed = small_federation()
    with pytest.raises(ValueError, match="fed: is not the data of this checkpoint"):
        ff.Simulation.resume(path, fed=small_federation(seed=4))
    other = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    with pytest.raises(ValueError, match="model: is not the one of this checkpoint"):
        ff.Simulation.resume(path, fed=fed, model=other)
    with pytest.raises(ValueError, match="seed: is a setting of the checkpoint; only executor, threads, device"):
        ff.Simulation.resume(path, fed=fed, seed=5)
    with pytest.raises(ValueError, match="lr: is a setting"):
        ff.Simulation.resume(path, fed=fed, lr=5)


def test_frozen_parameters_and_buffers_come_back(tmp_path: Path) -> None:
    def model() -> nn.Module:
        made = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
        made[0].requires_grad_(False)
        made.register_buffer("note", torch.rand(3))
        return made

    sim = ff.Simulation(model(), small_federation(), client=ff.clients.SGD(lr=0.1), cohort=3)
    path = sim.save(tmp_path)
    resumed = ff.Simulation.resume(path, model=model(), fed=sim.fed)
    for one in (sim, resumed):
        one.run(rounds=2, evaluate_every=1, progress=False)
    assert_same(resumed, sim)


def test_the_last_and_the_best_are_kept(tmp_path: Path) -> None:
    sim = simulation(server=ff.servers.FedAvg(lr=1.0), client_schedule=lambda r: 1.0 if r < 6 else 200.0)
    history = sim.run(rounds=12, evaluate_every=1, checkpoint=tmp_path, checkpoint_every=1, keep=2, progress=False)
    accuracies = history.column("test_accuracy")
    best = accuracies.index(max(accuracies)) + 1
    assert best < 11  # the wild learning rate of the later rounds makes it worse
    assert [checkpoint.round_of(path) for path in checkpoint.all_of(tmp_path)] == [best, 11, 12]
    assert len(list(tmp_path.iterdir())) == 3  # one file each, and nothing else


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_offered(tmp_path: Path) -> None:
    sim = simulation()
    sim.run(rounds=2, checkpoint=tmp_path, checkpoint_every=1, progress=False)
    older, newer = checkpoint.all_of(tmp_path)
    content = bytearray(newer.read_bytes())
    content[-5] ^= 1  # one bit of one parameter
    newer.write_bytes(content)
    with pytest.raises(DamagedCheckpoint) as caught:
        ff.Simulation.resume(tmp_path, fed=sim.fed)
    assert str(newer) in str(caught.value)
    assert f"The one before it is {older}" in str(caught.value)
    assert ff.Simulation.resume(older, fed=sim.fed).round == 1


def test_a_change_of_any_byte_is_noticed(tmp_path: Path) -> None:
    path = simulation().save(tmp_path)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(DamagedCheckpoint, match=r"round-00000000.safetensors: damaged .* There is none before it"):
            checkpoint.read(tmp_path)
    path.write_bytes(whole)
    assert checkpoint.read(tmp_path)[0]["round"] == 0


def test_a_checkpoint_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []

    def fsync(file: int) -> None:
        found.append((os.fstat(file).st_size, checkpoint.rounds_of(tmp_path)))

    monkeypatch.setattr(os, "fsync", fsync)
    sim = simulation()
    sim.run(rounds=1, evaluate_every=0, progress=False)
    path = sim.save(tmp_path)
    assert found[0] == (path.stat().st_size, set())  # all of it, before it has its name
    assert [there for _, there in found[1:]] == [{1}]


@pytest.mark.parametrize("length", [0, 5, 8, 100, -8, -1])
def test_a_file_that_ends_too_early_is_noticed(length: int, tmp_path: Path) -> None:
    path = simulation().save(tmp_path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DamagedCheckpoint, match=r"round-00000000.safetensors: damaged .* There is none before it"):
        ff.Simulation.resume(tmp_path)


@pytest.mark.parametrize("text", ["", "[" * 100_000, '{"manifest": 3}', "[]"])
def test_a_file_that_is_called_almost_as_a_checkpoint(text: str, tmp_path: Path) -> None:
    sim = simulation()
    sim.save(tmp_path)
    odd = tmp_path / "round-x.json"
    odd.write_text(text)
    with pytest.raises(DamagedCheckpoint, match=r"round-x.json: damaged .*A checkpoint is called round-00000120.safe"):
        checkpoint.read(odd)
    sim.step()
    sim.saved.save(sim, tmp_path, keep=1)  # which looks through the directory
    assert checkpoint.newest(tmp_path).name == "round-00000001.safetensors"
    assert odd.exists()


def test_another_format_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "FORMAT", 99)
    simulation().save(tmp_path)
    monkeypatch.undo()
    with pytest.raises(DamagedCheckpoint, match="it has format 99, this FastFed reads 3"):
        ff.Simulation.resume(tmp_path)


def test_a_directory_belongs_to_one_run(tmp_path: Path) -> None:
    sim = simulation()
    sim.run(rounds=3, checkpoint=tmp_path, checkpoint_every=1, progress=False)
    with pytest.raises(ValueError, match=r"round-00000001.safetensors of another run; name another directory"):
        simulation(seed=12).run(rounds=9, checkpoint=tmp_path, progress=False)
    with pytest.raises(
        ValueError, match=r"holds round-00000003.safetensors, and this run is at round 0; go on from there"
    ):
        simulation().run(rounds=9, checkpoint=tmp_path, progress=False)
    assert checkpoint.rounds_of(tmp_path) == {1, 2, 3}
    sim.run(rounds=1, checkpoint=tmp_path, progress=False)
    assert ff.Simulation.resume(tmp_path, fed=sim.fed).round == 4


def test_a_damaged_checkpoint_belongs_to_nobody_else(tmp_path: Path) -> None:
    sim = simulation()
    path = sim.save(tmp_path)
    other = path.read_bytes().replace(sim.saved.run.encode(), b"0" * len(sim.saved.run))
    path.write_bytes(other)
    sim.run(rounds=1, checkpoint=tmp_path, evaluate_every=0, progress=False)
    assert ff.Simulation.resume(tmp_path, fed=sim.fed).round == 1


def test_what_a_killed_run_left_is_removed_and_what_is_set_aside_stays(tmp_path: Path) -> None:
    left = tmp_path / ".round-00000001.safetensors.123.tmp"
    left.write_text("half of the n")
    (tmp_path / "round-00000007.safetensors.set-aside").write_text("kept")
    simulation().run(rounds=1, checkpoint=tmp_path, evaluate_every=0, progress=False)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"round-00000001.safetensors", "round-00000007.safetensors.set-aside"}


def test_going_back_behind_a_damaged_checkpoint(tmp_path: Path) -> None:
    sim = simulation()
    sim.run(rounds=4, checkpoint=tmp_path, checkpoint_every=2, progress=False)
    older, newer = checkpoint.all_of(tmp_path)
    newer.write_text("{")
    resumed = ff.Simulation.resume(older, fed=sim.fed)
    resumed.run(rounds=1, checkpoint=tmp_path, keep=1, evaluate_every=0, progress=False)
    assert checkpoint.rounds_of(tmp_path) == {3}
    again = ff.Simulation.resume(tmp_path, fed=sim.fed)
    again.run(rounds=1, evaluate_every=0, progress=False)
    assert torch.equal(again.params, sim.params)


def test_the_best_is_kept_after_a_resume_too(tmp_path: Path) -> None:
    schedule = lambda r: 1.0 if r < 4 else 300.0  # noqa: E731
    sim = simulation(server=ff.servers.FedAvg(), client_schedule=schedule)
    run = {"checkpoint": tmp_path, "checkpoint_every": 100, "keep": 1, "evaluate_every": 1, "progress": False}
    sim.run(rounds=5, **run)
    accuracies = sim.history.column("test_accuracy")
    best = accuracies.index(max(accuracies)) + 1
    assert best < 5
    resumed = ff.Simulation.resume(tmp_path, fed=sim.fed, client_schedule=schedule)
    resumed.run(rounds=1, **(run | {"evaluate_every": 0}))
    assert checkpoint.rounds_of(tmp_path) == {best, 6}


def test_a_model_of_other_precision_is_refused(tmp_path: Path) -> None:
    model = ff.models.mlp(6, 5, 4).double()
    sim = ff.Simulation(model, small_federation(), client=ff.clients.SGD(lr=0.1), cohort=3, executor="eager")
    sim.run(rounds=1, progress=False)
    path = sim.save(tmp_path)
    with pytest.raises(ValueError, match=r"model: is not the one of this checkpoint \(give it as model=\)"):
        ff.Simulation.resume(path, fed=sim.fed)
    resumed = ff.Simulation.resume(path, fed=sim.fed, model=model)
    for one in (sim, resumed):
        one.run(rounds=1, progress=False)
    assert_same(resumed, sim)


def test_an_error_in_a_round_loses_no_round(tmp_path: Path) -> None:
    def cohort(round: int) -> list[int]:
        if round == 3:
            raise RuntimeError("nobody is there")
        return [round, round + 1]

    sim = simulation(cohort=cohort)
    with pytest.raises(RuntimeError, match="nobody is there"):
        sim.run(rounds=9, checkpoint=tmp_path, checkpoint_every=100, evaluate_every=0, progress=False)
    assert checkpoint.rounds_of(tmp_path) == {3}


def test_an_evaluation_that_was_interrupted_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, part = simulation(), simulation()
    whole.run(until=3, evaluate_every=2, progress=False)

    def interrupted(self: object, **asked: bool) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ff.Simulation, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        part.run(until=3, evaluate_every=2, checkpoint=tmp_path, progress=False)
    monkeypatch.undo()
    resumed = ff.Simulation.resume(tmp_path, fed=part.fed)
    resumed.run(until=3, evaluate_every=2, log=tmp_path / "log.jsonl", progress=False)
    assert_same(resumed, whole)
    assert read_json_lines(tmp_path / "log.jsonl").without_seconds() == whole.history.without_seconds()


def test_no_checkpoint_at_all(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        ff.Simulation.resume(tmp_path)


def test_recipes_call_nothing_but_what_writes_them() -> None:
    from fastfed.saved.recipe import Recipe

    for function in (
        "app.cli.main",
        "saved.checkpoint.prune",
        "simulation.Simulation",
        "saved.recipe.importlib",
        "no.such",
    ):
        with pytest.raises(ValueError, match="recipe: fastfed has no function or settings"):
            Recipe(function, {}).make()


RUN = """
import sys
import fastfed as ff
where = sys.argv[1]
fed = ff.data.dirichlet(ff.data.digits(), clients=30, alpha=0.3, seed=1)
try:
    sim = ff.Simulation.resume(where)
    print("resumed", sim.round, flush=True)
except FileNotFoundError:
    import torch
    torch.manual_seed(0)
    sim = ff.Simulation(ff.models.mlp(64, 32, 10), fed, cohort=6, seed=5, **ff.methods.scaffold(0.05))
    print("begun", flush=True)
try:
    sim.run(until=int(sys.argv[2]), evaluate_every=10, checkpoint=where, checkpoint_every=5, progress=False)
except KeyboardInterrupt:
    print("interrupted", sim.round, flush=True)
    sys.exit(130)
"""


def start(where: Path, rounds: int) -> subprocess.Popen[str]:
    """A run of its own process."""
    return subprocess.Popen([sys.executable, "-c", RUN, str(where), str(rounds)], stdout=subprocess.PIPE, text=True)


def finish(run: subprocess.Popen[str]) -> tuple[int, str]:
    """How it ended, and what it printed."""
    output, _ = run.communicate()
    return run.returncode, output


def wait_for_checkpoints(where: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while len(checkpoint.all_of(where)) < count:
        assert time.monotonic() < deadline, "the run wrote no checkpoint"
        time.sleep(0.01)


@pytest.mark.timeout(300)
def test_kill_9_loses_no_bit(tmp_path: Path) -> None:
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    rounds = 150
    assert finish(start(undisturbed, rounds))[0] == 0
    kills = 0
    for seen in (1, 3):
        run = start(killed, rounds)
        wait_for_checkpoints(killed, seen)
        run.send_signal(signal.SIGKILL)
        kills += finish(run)[0] == -signal.SIGKILL
    assert kills > 0
    code, output = finish(start(killed, rounds))
    assert code == 0
    assert output.startswith("resumed")
    ended = [ff.Simulation.resume(where) for where in (undisturbed, killed)]
    assert [sim.round for sim in ended] == [rounds, rounds]
    assert_same(*ended)


@pytest.mark.timeout(300)
def test_ctrl_c_leaves_a_checkpoint(tmp_path: Path) -> None:
    run = start(tmp_path, 1_000_000)
    wait_for_checkpoints(tmp_path, 1)
    os.kill(run.pid, signal.SIGINT)
    code, output = finish(run)
    assert code == 130
    rounds = int(output.split()[-1])
    stopped = ff.Simulation.resume(tmp_path)
    assert stopped.round == rounds
    undisturbed = tmp_path / "undisturbed"
    assert finish(start(undisturbed, rounds))[0] == 0
    assert torch.equal(stopped.params, ff.Simulation.resume(undisturbed).params)
