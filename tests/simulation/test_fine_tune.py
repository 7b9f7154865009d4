"""Clients that fine-tune the global model before they are evaluated: by hand, one client after the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fastfed as ff
from fastfed import fine_tune as module
from fastfed.app.config import parse
from fastfed.data import Examples

from ..app.config.support import tables

CLIENTS = 7


def federation(tests: bool = True) -> Any:
    """Clients of unequal sizes who label alike inputs differently, so that one model does not fit all."""
    draw = torch.Generator().manual_seed(3)
    x, of = torch.randn(150, 6, generator=draw), torch.randint(0, CLIENTS, (150,), generator=draw)
    test, test_of = torch.randn(70, 6, generator=draw), torch.arange(70) % CLIENTS
    dataset = ff.data.Dataset(
        "unlike",
        Examples(x, (x[:, :3].argmax(1) + of) % 3),
        Examples(test, (test[:, :3].argmax(1) + test_of) % 3),
        client=of,
        client_names=tuple("abcdefg"),
        test_client=test_of if tests else None,
    )
    return ff.data.natural(dataset)


def network(batch_norm: bool = False) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), *([nn.BatchNorm1d(8)] if batch_norm else []), nn.ReLU(), nn.Linear(8, 3))


def simulation(fed: Any = None, model: nn.Module | None = None, **settings: Any) -> ff.Simulation:
    given = {"cohort": 4, "batch_size": 5, "client": ff.clients.SGD(lr=0.1), "seed": 3, **settings}
    sim = ff.Simulation(network() if model is None else model, federation() if fed is None else fed, **given)
    sim.run(2, evaluate_every=0, progress=False)
    return sim


def by_hand(sim: ff.Simulation, how: ff.FineTune, batch_size: int) -> list[float]:
    """Each client's accuracy: a run of that client alone goes on from the same model, and takes its whole step."""
    found = []
    for client in range(CLIENTS):
        local: dict[str, Any] = {"epochs": how.epochs} if how.steps is None else {"steps": how.steps}
        alone = ff.Simulation(
            sim.trained_model(), sim.fed, cohort=[[], [], [client]], batch_size=batch_size, seed=3, weights="uniform",
            client=ff.clients.SGD(lr=how.lr), server=ff.servers.FedAvg(lr=1.0), executor="eager", **local,
        )  # fmt: skip
        alone.run(3, evaluate_every=0, progress=False)
        visit = sim.fed.visit_tests(torch.tensor([client]))
        inputs, labels = visit.examples.batch(visit.rows, torch.float32)
        outputs = alone.trained_model().eval()(inputs)
        found.append(float((outputs.argmax(1) == labels).double().mean()))
    return found


@pytest.mark.parametrize("executor", ["native", "batched", "eager"])
@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize(
    ("how", "batch_size"), [(ff.FineTune(0.3, epochs=2.5), 5), (ff.FineTune(0.2, steps=4, batch_size=3), 3)]
)
def test_it_is_what_each_client_would_get_alone(
    how: ff.FineTune, batch_size: int, batch_norm: bool, executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = simulation(model=network(batch_norm), executor=executor)
    monkeypatch.setattr(module, "PORTION_BYTES", 3 * 4 * sim.params.numel())
    wanted = torch.tensor(by_hand(sim, how, batch_size), dtype=torch.float64)
    found = sim.evaluate(per_client=True, fine_tune=how)
    assert found["tuned_accuracy_mean"] == pytest.approx(float(wanted.mean()), abs=1e-12)
    assert found["tuned_accuracy_p10"] == pytest.approx(float(wanted.quantile(0.1)), abs=1e-12)
    assert found["tuned_accuracy_mean"] != found["client_accuracy_mean"]


def test_nothing_of_it_stays() -> None:
    plain, tuned = simulation(), simulation()
    before = tuned.evaluate()
    tuned.evaluate(fine_tune=ff.FineTune(0.3))
    assert tuned.evaluate() == before
    for sim in (plain, tuned):
        sim.run(2, evaluate_every=0, progress=False)
    assert torch.equal(plain.params, tuned.params)
    assert plain.history.without_seconds() == tuned.history.without_seconds()


def test_who_overflows_keeps_the_global_model() -> None:
    found = simulation().evaluate(per_client=True, fine_tune=ff.FineTune(1e38))
    assert found["tuned_accuracy_mean"] == found["client_accuracy_mean"]
    assert found["tuned_accuracy_p90"] == found["client_accuracy_p90"]


def test_a_run_has_columns_of_it_and_may_end_by_them() -> None:
    sim = simulation()
    sim.run(
        20, evaluate_every=3, fine_tune=ff.FineTune(0.3, epochs=3), target={"tuned_accuracy_mean": 0.3}, progress=False
    )
    assert sim.round == 3
    assert sim.history.last("tuned_accuracy_mean") >= 0.3
    with pytest.raises(ValueError, match=r"^target: this run does not measure 'tuned_accuracy_mean'"):
        sim.run(1, target={"tuned_accuracy_mean": 0.3}, progress=False)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: ff.FineTune(-0.1), "^lr: must be a finite number >= 0"),
        (lambda: ff.FineTune(0.1, epochs=0), "^epochs: must be a finite number > 0, got 0"),
        (lambda: ff.FineTune(0.1, steps=0), "^steps: must be a whole number >= 1, or None, got 0"),
        (lambda: ff.FineTune(0.1, batch_size=True), "^batch_size: must be a whole number >= 1, or None, got True"),
        (lambda: simulation(federation(tests=False)).evaluate(per_client=True, fine_tune=ff.FineTune(0.1)),
         "^fine_tune: clients of .* have no test examples of their own, and would be evaluated on what they"),
        (lambda: simulation(model=network(True), batch_norm="local").run(1, fine_tune=ff.FineTune(0.1)),
         '^fine_tune: with batch_norm="local" clients have models of their own already'),
        (lambda: simulation().evaluate(fine_tune=0.1), r"^fine_tune: must be fastfed.fine_tune.FineTune, or None, got"),
    ],
)  # fmt: skip
def test_what_could_not_be_measured_is_refused(make: Any, sentence: str) -> None:
    with pytest.raises((TypeError, ValueError), match=sentence):
        make()


def test_a_file_asks_for_it() -> None:
    run = {"rounds": 1, "cohort": 3, "fine_tune": {"lr": 0.1, "epochs": 2.0}}
    config = parse(tables(run=run))
    assert config.run_settings["fine_tune"] == ff.FineTune(0.1, epochs=2.0)
    assert parse(config.resolved()).run_settings["fine_tune"] == ff.FineTune(0.1, epochs=2.0)
