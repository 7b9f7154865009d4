"""Clients that are made when visited: the same on every executor, through a checkpoint, and by the million."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
import torch

import fastfed as ff
from fastfed import training
from fastfed.train import portions


def generated(clients: int = 200, **changes: Any) -> ff.data.Generated:
    return ff.data.synthetic_images(clients, shape=(1, 8, 8), examples=12, seed=2, **changes)


def run(executor: str, fed: ff.data.Generated, rounds: int = 4) -> ff.Simulation:
    torch.manual_seed(0)
    model = ff.models.mlp(64, 16, 10)
    sim = ff.Simulation(model, fed, cohort=20, batch_size=5, executor=executor, seed=1, **ff.methods.fedavg(0.1))
    sim.run(rounds=rounds, evaluate_every=2, progress=False)
    return sim


def test_executors_agree() -> None:
    native, eager = run("native", generated()), run("eager", generated())
    torch.testing.assert_close(native.params, eager.params, rtol=1e-3, atol=1e-5)


def test_it_learns() -> None:
    history = run("native", generated(), 150).history
    assert history.column("test_accuracy")[0] < 0.3
    assert history.last("test_accuracy") > 0.6


def test_what_was_made_once_is_the_same_when_held() -> None:
    fed = generated(30)
    visit = fed.visit(torch.arange(30))
    held = ff.data.Federated("held", visit.examples, visit.rows, visit.offsets, test=fed.test)
    made, kept = run("native", fed), run("native", held)  # type: ignore[arg-type]
    assert torch.equal(made.params, kept.params)


def test_it_resumes_from_its_recipe(tmp_path: Path) -> None:
    sim = run("native", generated())
    resumed = ff.Simulation.resume(sim.save(tmp_path))
    for one in (sim, resumed):
        one.run(rounds=2, evaluate_every=0, progress=False)
    assert torch.equal(sim.params, resumed.params)


PORTIONED: dict[str, dict[str, Any]] = {
    "adam servers": dict(ff.methods.fedadam(0.1, 0.02)),
    "uniform weights, divided by steps": {**ff.methods.fedavg(0.1), "weights": "uniform", "divide_by_steps": True},
    "Delta-SGD": dict(ff.methods.delta_sgd()),
    "FATHOM": dict(ff.methods.fathom(0.1)),
    "clipped and private": {
        **ff.methods.fedavg(0.1),
        "weights": "uniform",
        "privacy": ff.privacy.Privacy(clip=0.1, noise=1.0, delta=1e-3),
        "cohort": ff.plan.Poisson(0.2),
    },
    "client-centric": dict(ff.methods.client_centric(server=ff.servers.FedAMS(lr=0.1), client_lr=0.1)),
    "some that diverge": dict(ff.methods.fedavg(1e18)),
    "kept per client": dict(ff.methods.scaffold(0.1)),
}


@pytest.mark.parametrize("method", PORTIONED)
def test_portions_change_no_bit(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do threads, of which each portion has a lane at least."""
    made: list[int] = []
    parts_of = portions.Portions.run

    def noted(self: portions.Portions, visit: Any) -> Any:
        made.append(len(self.parts))
        return parts_of(self, visit)

    def trained(portion_bytes: int, threads: int) -> ff.Simulation:
        for module in (portions, training):
            monkeypatch.setattr(module, "PORTION_BYTES", portion_bytes)
        torch.manual_seed(0)
        settings = {"cohort": 40, "batch_size": 5, "seed": 1, **PORTIONED[method]}
        settings |= {"cohort": None} if "timing" in settings else {}
        fed = generated()
        sim = ff.Simulation(ff.models.mlp(64, 16, 10), fed, executor="native", threads=threads, **settings)
        sim.run(rounds=3, evaluate_every=0, progress=False)
        return sim

    monkeypatch.setattr(portions.Portions, "run", noted)
    whole = trained(1 << 40, 2)
    assert made == []
    for portion_bytes, threads in ((8_000, 1), (8_000, 2), (2_000, 3)):
        some = trained(portion_bytes, threads)
        assert torch.equal(some.params, whole.params)
        rows = [
            [{name: value for name, value in row.items() if "seconds" not in name} for row in sim.history.rounds]
            for sim in (some, whole)
        ]
        assert rows[0] == rows[1]
    assert (max(made, default=0) > 2) == (method not in ("kept per client", "client-centric"))


def test_a_million_clients_take_no_more_than_their_sizes() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sim = run("native", generated(1_000_000), 3)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert len(sim.fed) == 1_000_000
    assert sim.history.rounds[-1]["clients"] == 20
    assert grown < 200_000  # kB; all examples would be 768 MB of bytes


@pytest.mark.parametrize("executor", ["native", "eager", "batched"])
def test_examples_of_another_form_are_refused(executor: str) -> None:
    fed = generated(30)
    engine = ff.train.executors.make(executor, ff.models.mlp(64, 16, 10), "cross_entropy", fed.examples)
    other = ff.data.synthetic_images(30, shape=(1, 7, 7), examples=12, seed=2).visit(torch.arange(2))
    work = ff.train.RoundWork(
        start=ff.Packing.of(ff.models.mlp(64, 16, 10)).zeros(), rows=other.rows, offsets=other.offsets,
        ids=torch.arange(2), steps=torch.tensor([1, 1]), batch_size=4, optimizers=(ff.clients.SGD(lr=0.1),),
        examples=other.examples,
    )  # fmt: skip
    with pytest.raises(ValueError, match="examples: must have the form of the executor's, bytes"):
        engine.run(work)
