"""`LocalTraining` is one round of a simulation, for any cohort, and says what is wrong with its arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fastfed as ff
from fastfed.integrations import LocalTraining, RoundSettings

from .support import federation, local_training, module, simulated


def test_rounds_are_those_of_a_simulation() -> None:
    training = local_training()
    x = training.packing.pack(module())
    for round in range(3):
        x += training.train(x, torch.arange(10), RoundSettings(round)).delta
    assert torch.equal(x, simulated(ff.servers.FedAvg(), 3).params)


def test_what_a_round_changes() -> None:
    """Learning rate, proximal term, epochs and batch size of a round, and the same said once for all."""
    told = RoundSettings(2, lr=0.03, prox=0.2, epochs=2.5, batch_size=7)
    at_once = local_training(client=ff.clients.SGD(lr=0.03, prox=0.2), epochs=2.5, batch_size=7)
    start, cohort = at_once.packing.pack(module()), torch.tensor([7, 2])
    one = local_training().train(start, cohort, told, keep_deltas=True)
    other = at_once.train(start, cohort, RoundSettings(2), keep_deltas=True)
    assert one.deltas is not None
    assert other.deltas is not None
    assert torch.equal(one.deltas, other.deltas)
    assert not torch.equal(one.deltas, local_training().train(start, cohort, keep_deltas=True).deltas)


def test_epochs_replace_steps() -> None:
    training = local_training(steps=3)
    start, cohort = training.packing.pack(module()), torch.tensor([4])
    assert training.train(start, cohort).scalars["steps"].tolist() == [3]
    size = int(federation().sizes[4])
    told = training.train(start, cohort, RoundSettings(epochs=2.0)).scalars["steps"].tolist()
    assert told == [2 * -(-size // 10)]


def test_evaluation_is_per_client() -> None:
    training, fed, model = local_training(), federation(), module()
    found = training.evaluate(training.packing.pack(model), torch.tensor([3, 0]))
    for place, each in zip((3, 0), found, strict=True):
        rows = fed.rows_of(place)
        inputs, targets = fed.examples.batch(rows)
        outputs = model(inputs).detach()
        assert each["examples"] == len(rows)
        assert each["accuracy"] == float((outputs.argmax(1) == targets).double().mean())
        assert each["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(outputs, targets)), rel=1e-5)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"client": "sgd"}, "client: must be an optimizer of fastfed.clients"),
        ({"epochs": 1.0, "steps": 2}, "epochs: give either epochs or steps"),
        ({"batch_size": 0}, "batch_size: must be"),
        ({"steps": [1, 2]}, "steps: must be a whole number, or one for each of the 10"),
        ({"executor": "natve"}, "executor: must be one of"),
    ],
)
def test_bad_settings_are_named(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises((TypeError, ValueError), match=sentence):
        LocalTraining(module(), federation(), **{"client": ff.clients.SGD(lr=0.1), **given})


@pytest.mark.parametrize("cohort", [[0], torch.zeros(0, dtype=torch.int64), torch.tensor([10]), torch.tensor([-1])])
def test_bad_cohorts_are_named(cohort: Any) -> None:
    training = local_training()
    with pytest.raises((TypeError, ValueError), match=r"^cohort: must"):
        training.train(training.packing.pack(module()), cohort)
