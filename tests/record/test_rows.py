"""What a row counts and measures of a round, against counting by hand."""

from __future__ import annotations

import pytest
import torch

import fastfed as ff
from fastfed.record.history import History
from fastfed.train import RoundWork
from fastfed.train.batches import Batches, examples_seen, steps_taken
from fastfed.training import work_of


@pytest.mark.parametrize("across", [False, True])
def test_examples_seen_are_those_of_all_batches(across: bool) -> None:
    counts = torch.tensor([1, 7, 20, 0, 33])
    steps = torch.tensor([5, 3, 2, 4, 11])
    seen = torch.tensor([4, 16, 9, 0, 70]) if across else None
    work = RoundWork(
        start=torch.zeros(4),
        rows=torch.arange(int(counts.sum())),
        offsets=torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]),
        ids=torch.arange(5),
        steps=steps,
        seen=seen,
        batch_size=6,
        optimizers=(ff.clients.SGD(lr=0.1),),
    )
    taken = steps_taken(work)
    wanted = [sum(len(Batches(work, i).at(step)) for step in range(int(taken[i]))) for i in range(5)]
    assert examples_seen(taken, counts, 6, seen).tolist() == wanted


def simulation(**settings: object) -> ff.Simulation:
    torch.manual_seed(1)
    fed = ff.data.dirichlet(ff.data.digits(), clients=9, alpha=0.5, seed=1, examples=(11, 40))
    settings = {"client": ff.clients.SGD(lr=0.1), "cohort": 5, "batch_size": 8, "epochs": 2.0, **settings}
    return ff.Simulation(ff.models.mlp(64, 10), fed, **settings)  # type: ignore[arg-type]


def test_rows_tell_gradients_and_the_spread_of_norms() -> None:
    sim = simulation()
    plan = sim.planner.plan(0, sim.tuner.tuning, float("inf"))
    assert plan is not None
    norms = sim.executor.run(work_of(sim, plan)).scalars["delta_norm"]
    row = sim.step()
    assert row["gradients"] == 2 * row["examples"]
    assert row["delta_norm"] == pytest.approx(float(norms.mean()))
    assert row["delta_norm_std"] == pytest.approx(float(torch.sqrt(((norms - norms.mean()) ** 2).mean())))


def test_gradients_to_a_target_are_those_of_all_rounds_so_far() -> None:
    rows = [{"round": i + 1, "gradients": 100 * (i + 1), "test_accuracy": 0.1 * i} for i in range(5)]
    assert History(rows).gradients_to("test_accuracy", 0.2) == 600
    assert History(rows).gradients_to("test_accuracy", 0.9) is None
    del rows[0]["gradients"]
    assert History(rows).gradients_to("test_accuracy", 0.2) is None


def test_the_training_set_is_evaluated_where_it_is_asked_for() -> None:
    sim = simulation()
    history = sim.run(4, evaluate_every=2, evaluate_training=True, progress=False)
    inputs, targets = sim.fed.examples.batch(sim.fed.rows)  # type: ignore[attr-defined]
    outputs = sim.trained_model()(inputs).detach()
    loss = float(torch.nn.functional.cross_entropy(outputs, targets))
    assert history.last("trainset_loss") == pytest.approx(loss, rel=1e-5)
    assert history.last("trainset_accuracy") == pytest.approx(float((outputs.argmax(1) == targets).double().mean()))
    assert [row["round"] for row in history if "trainset_loss" in row] == [2, 4]
    assert "trainset_loss" not in simulation().run(2, progress=False).rounds[-1]


def test_a_training_set_that_is_nowhere_whole_is_refused() -> None:
    fed = ff.data.synthetic_images(clients=5)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(10))
    model(fed.examples.batch(torch.arange(1))[0])
    sim = ff.Simulation(model, fed, client=ff.clients.SGD(lr=0.1), cohort=2)
    with pytest.raises(ValueError, match=r"evaluate_training: .* makes its examples when they are asked for"):
        sim.run(1, evaluate_training=True, progress=False)


def test_the_training_set_may_be_a_target_and_is_not_asked_for_in_vain() -> None:
    history = simulation().run(
        60, evaluate_every=1, evaluate_training=True, target={"trainset_accuracy": 0.5}, progress=False
    )
    assert history.last("trainset_accuracy") >= 0.5
    with pytest.raises(ValueError, match="evaluate_training: would be ignored with evaluate_every=0"):
        simulation().run(1, evaluate_every=0, evaluate_training=True, progress=False)
