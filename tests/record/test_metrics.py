"""Metrics of the user's own, losses in torch's words, and the accuracy of a loss of the user's own."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastfed as ff
from fastfed.losses import with_name
from fastfed.record.evaluate import higher_is_better
from fastfed.saved import checkpoint

from ..simulation.support import CLIENTS, simulation, small_federation


def first_recall(outputs: Tensor, targets: Tensor) -> float:
    """No mean over chunks of examples gives it: of those of class 0, how many are taken for it."""
    return float(((outputs.argmax(1) == 0) & (targets == 0)).sum() / (targets == 0).sum())


def confidence_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return 1 - outputs.softmax(1).max(dim=1).values.mean()


METRICS = {"first_recall": first_recall, "confidence_error": confidence_error}


def outputs_of(sim: ff.Simulation, examples: ff.data.Examples) -> tuple[Tensor, Tensor]:
    inputs, targets = examples.batch(torch.arange(len(examples)))
    with torch.no_grad():
        return sim.trained_model()(inputs), targets


@pytest.mark.parametrize("executor", ["native", "eager"])
def test_metrics_are_of_all_examples_of_a_set_as_one(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for chunk in ("_CHUNK", "_NATIVE_CHUNK"):
        monkeypatch.setattr(f"fastfed.record.evaluate.{chunk}", 7)
    fed = ff.data.hold_out(small_federation(), 0.3)
    sim = simulation(fed, metrics=METRICS, executor=executor, threads=2)
    row = sim.run(rounds=2, evaluate_training=True, progress=False).rounds[-1]
    held = fed.examples.inputs[fed.validation_rows], fed.examples.targets[fed.validation_rows]  # type: ignore[index]
    for part, examples in {"test": fed.test, "validation": ff.data.Examples(*held)}.items():  # type: ignore[arg-type]
        assert examples is not None
        for name, function in METRICS.items():
            assert row[f"{part}_{name}"] == pytest.approx(float(function(*outputs_of(sim, examples))), rel=1e-5)
    assert "trainset_first_recall" in row
    assert row["test_accuracy"] > 0
    assert simulation(fed).run(rounds=2, progress=False).rounds[-1]["test_loss"] == pytest.approx(row["test_loss"])


def test_metrics_have_a_spread_over_clients_and_may_be_a_target() -> None:
    row = simulation(metrics=METRICS).run(rounds=1, per_client=True, progress=False).rounds[-1]
    assert row["client_confidence_error_p10"] <= row["client_confidence_error_mean"]
    history = simulation(metrics=METRICS).run(
        rounds=50, evaluate_every=1, target={"test_confidence_error": 0.5}, progress=False
    )
    assert len(history) < 50
    assert history.last("test_confidence_error") <= 0.5  # an error: less is better
    assert not higher_is_better("test_confidence_error")
    assert higher_is_better("test_first_recall")


def fails(outputs: Tensor, targets: Tensor) -> float:
    raise KeyError("class 9")


@pytest.mark.parametrize(
    ("metrics", "sentence"),
    [
        ([first_recall], 'metrics: must be functions by name, as in {"f1": f1}, got '),
        ({"accuracy": first_recall}, "metrics: 'accuracy' is measured already; give yours another name"),
        ({"loss": first_recall}, "metrics: 'loss' is measured already"),
        ({"f 1": first_recall}, "metrics: a name must be a word, as a column of the history has it, got 'f 1'"),
        ({"f1": 3}, "metrics: 'f1' must be a function of outputs and targets, got 3"),
        ({"f1": fails}, "metrics: 'f1' raised KeyError: 'class 9' (for outputs (100, 4) and targets (100,))"),
        ({"f1": lambda outputs, targets: outputs}, "metrics: 'f1' must give a number, got tensor("),
    ],
)
def test_what_is_no_metric_is_refused(metrics: Any, sentence: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^{re.escape(sentence)}"):
        simulation(metrics=metrics).run(rounds=1, progress=False)


def test_metrics_are_given_again_and_are_no_part_of_what_makes_a_run(tmp_path: Any) -> None:
    plain, measured = simulation(), simulation(metrics=METRICS)
    assert plain.saved.run == measured.saved.run
    measured.run(rounds=2, checkpoint=tmp_path, progress=False)
    assert checkpoint.rounds_of(tmp_path) == {2}
    given = {"model": measured.model, "fed": measured.fed}
    again = ff.Simulation.resume(tmp_path, **given, metrics=METRICS)
    assert "test_first_recall" in again.run(rounds=1, progress=False).rounds[-1]
    with pytest.raises(ValueError, match=r"^metrics: must be given again, as JSON could not hold it"):
        ff.Simulation.resume(tmp_path, **given)


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (nn.CrossEntropyLoss(), "cross_entropy"),
        (nn.functional.cross_entropy, "cross_entropy"),
        (nn.MSELoss(), "mse"),
        (nn.functional.mse_loss, "mse"),
        (nn.BCEWithLogitsLoss(), "binary_cross_entropy"),
    ],
)
def test_a_loss_in_torchs_words_has_its_name(loss: Any, name: str) -> None:
    assert with_name(loss, torch.zeros(3, dtype=torch.int64)) == name


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.CrossEntropyLoss(weight=torch.ones(4)),
        nn.CrossEntropyLoss(reduction="sum"),
        nn.BCEWithLogitsLoss(pos_weight=torch.ones(4)),
        type("Mine", (nn.CrossEntropyLoss,), {})(),
    ],
)
def test_a_loss_with_options_stays_what_it_is(loss: Any) -> None:
    assert with_name(loss, torch.zeros(3, dtype=torch.int64)) is loss


def test_torch_has_the_classes_of_sequences_elsewhere_and_takes_probabilities() -> None:
    loss = nn.CrossEntropyLoss()
    assert with_name(loss, torch.zeros(3, 5, dtype=torch.int64)) is loss
    assert with_name(loss, torch.zeros(3, 5)) is loss


def test_torchs_cross_entropy_runs_on_the_engine_to_the_same_bits() -> None:
    named, torchs = simulation(), simulation(loss=nn.CrossEntropyLoss())
    for sim in (named, torchs):
        sim.run(rounds=2, progress=False)
    assert torchs.executor.name == "native"
    assert torchs.saved.run == named.saved.run
    assert torch.equal(named.params, torchs.params)


def smoothed(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)


def test_a_loss_of_ones_own_keeps_the_accuracy_of_labels() -> None:
    sim = simulation(loss=smoothed)
    assert sim.metric == "test_accuracy"
    row = sim.run(rounds=2, progress=False).rounds[-1]
    assert sim.fed.test is not None
    outputs, targets = outputs_of(sim, sim.fed.test)
    assert row["test_accuracy"] == pytest.approx(float((outputs.argmax(1) == targets).double().mean()))
    assert row["test_loss"] == pytest.approx(float(smoothed(outputs, targets)), rel=1e-5)
    assert sim.model.training


def test_whole_numbers_that_are_no_classes_have_no_accuracy() -> None:
    inputs, ages = torch.randn(CLIENTS * 2, 6), torch.arange(CLIENTS * 2)
    fed = ff.data.from_arrays(inputs, ages, ages % CLIENTS, test=(inputs, ages))
    sim = ff.Simulation(
        nn.Linear(6, 1),
        fed,
        client=ff.clients.SGD(lr=1e-4),
        cohort=2,
        loss=lambda outputs, targets: (outputs.squeeze(1) - targets).abs().mean(),
    )
    assert sim.metric == "test_loss"
    assert "test_accuracy" not in sim.run(rounds=1, progress=False).rounds[-1]
