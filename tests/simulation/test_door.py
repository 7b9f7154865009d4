"""What is wrong or hardly meant is told when a simulation is made, in one sentence."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastfed as ff
from fastfed import door
from fastfed.data import Dataset, Examples, Sparse

from .support import simulation, small_federation, small_model

SGD = ff.clients.SGD(lr=0.1)


def federation(inputs: Tensor, targets: Any, test: Examples | None = None) -> ff.data.Federated:
    data = Dataset("ours", Examples(inputs, targets), test)
    return ff.data.iid(data, 4)


def rows(width: int = 6) -> Tensor:
    return torch.randn(40, width, generator=torch.Generator().manual_seed(0))


LABELS = torch.arange(40) % 4


@pytest.mark.parametrize(
    ("model", "fed", "sentence"),
    [
        (small_federation(), small_model(), "model: comes first and the data second; they are given the other way rou"),
        (nn.Linear, small_federation(), "model: must be a module, got the class Linear; give Linear(...)"),
        ("mlp", small_federation(), "model: must be a torch.nn.Module, got str"),
        (
            small_model(),
            Dataset("ours", Examples(rows(), LABELS)),
            "fed: ours is not dealt to clients yet; deal it, as in ff.data.iid(data, clients=100) or ff.data.dirichlet",
        ),
        (small_model(), (rows(), LABELS), "fed: must be data of clients, got tuple; ff.data.from_arrays takes rows w"),
        (
            small_model(),
            torch.utils.data.TensorDataset(rows(), LABELS),
            "fed: must be data of clients, got torch.utils.data.dataset.TensorDataset; ff.data.from_arrays",
        ),
    ],
)
def test_what_is_no_model_and_no_data_of_clients(model: Any, fed: Any, sentence: str) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(sentence)}"):
        ff.Simulation(model, fed, client=SGD, cohort=2)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(x), x


class Odd(Pair):
    def forward(self, x: Tensor) -> Any:
        return self.layer(x.view(7, -1))


def with_test(inputs: Tensor, targets: Tensor) -> ff.data.Federated:
    return federation(rows(), LABELS, Examples(inputs, targets))


LINEAR = nn.Linear(6, 4)
REFUSED: list[tuple[nn.Module, ff.data.Federated, dict[str, Any], str]] = [
    (
        LINEAR,
        federation(rows(), LABELS + 1),
        {},
        "model: has 4 outputs, and the data has labels up to 4: 5 classes, counted from 0",
    ),
    (LINEAR, federation(rows(), LABELS - 1), {}, "fed: has the label -1; classes are counted from 0, and -100 is igno"),
    (LINEAR, with_test(rows(), LABELS + 3), {}, "model: has 4 outputs, and the data has test labels up to 6"),
    (LINEAR, with_test(rows(5), LABELS), {}, "fed: the test set's inputs are (n, 5), those of the clients (n, 6)"),
    (LINEAR, with_test(rows(), LABELS.float()), {}, "fed: the test set's targets are torch.float32, those of the cl"),
    (
        LINEAR,
        federation(rows(), LABELS.float()),
        {},
        "fed: its targets are float32, and 'cross_entropy' takes labels, int64; convert them, or give loss='mse'",
    ),
    (
        LINEAR,
        federation(rows(), Sparse.of(torch.eye(4)[LABELS])),
        {},
        "fed: its targets are tags, and 'cross_entropy' takes labels, int64; convert them, or give loss='binary_cross",
    ),
    (LINEAR, federation(rows(), LABELS), {"loss": "mse"}, "fed: its targets are whole numbers, and 'mse' takes floa"),
    (LINEAR, federation(rows(), rows(3)), {"loss": "mse"}, "model: its outputs (n, 4) cannot be compared with the ta"),
    (Pair(), federation(rows(), LABELS), {"executor": "eager"}, "model: must give a tensor of outputs, got tuple"),
    (Odd(), federation(rows(), LABELS), {}, "model: cannot take the data's inputs (n, 6): RuntimeError: shape '[7"),
]


@pytest.mark.parametrize(("model", "fed", "settings", "sentence"), REFUSED, ids=[one[3][:30] for one in REFUSED])
def test_a_model_and_data_that_do_not_go_together(model: Any, fed: Any, settings: Any, sentence: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^{re.escape(sentence)}"):
        ff.Simulation(model, fed, client=SGD, cohort=2, **settings)


def test_what_is_allowed_stays_allowed() -> None:
    ignored = LABELS.clone()
    ignored[:3] = -100
    assert list(simulation().notes) == []
    ff.Simulation(LINEAR, federation(rows(), ignored), client=SGD, cohort=2)
    tags = Sparse.of(torch.eye(4)[LABELS])
    ff.Simulation(LINEAR, federation(rows(), tags), client=SGD, cohort=2, loss="binary_cross_entropy")
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)).train()
    before = model[1].running_mean.clone()
    ff.Simulation(model, federation(rows(), LABELS), client=SGD, cohort=2)
    assert model[1].training
    assert torch.equal(model[1].running_mean, before)


def notes(fed: ff.data.Federated, model: nn.Module = LINEAR) -> list[str]:
    return list(ff.Simulation(model, fed, client=SGD, cohort=2, executor="eager").notes)


def test_numbers_that_are_not_finite_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "_PIECE", 6 * 7)
    spoilt = rows()
    spoilt[[11, 38], 2] = torch.tensor([math.nan, math.inf])
    (said,) = notes(federation(spoilt, LABELS, Examples(rows(), LABELS)))
    assert said == (
        "fed: inputs of ours are not finite in 2 of 40 examples, the first of which is row 11; clients that train on "
        "one are refused"
    )
    (said,) = notes(with_test(spoilt, LABELS))
    assert said.endswith("row 11; the test loss is not finite")
    fed = federation(rows(), spoilt[:, 2].clone(), Examples(rows(), spoilt[:, 0].clone()))
    (said,) = list(ff.Simulation(nn.Linear(6, 1), fed, client=SGD, cohort=2, loss="mse").notes)
    assert said.startswith("fed: targets of ours are not finite in 2 of 40 examples, the first of which is row 11")
    bag = Sparse(torch.arange(0, 82, 2), (torch.arange(80) % 6).int(), torch.ones(80), 6)
    bag.values[31] = math.nan
    (said,) = notes(federation(bag, LABELS, Examples(rows(), LABELS)))  # type: ignore[arg-type]
    assert "in 1 of 40 examples, the first of which is row 15" in said


def test_no_test_set_no_examples_and_shares_instead_of_logits_are_said() -> None:
    (said,) = notes(federation(rows(), LABELS))
    assert said.startswith("fed: ours has no test set, so rows have no test metric; give one (test=...), hold examples")
    assert notes(ff.data.hold_out(federation(rows(), LABELS), 0.2)) == []
    nobody = ff.data.Federated(
        "empty", Examples(rows(), LABELS), torch.arange(0), torch.zeros(5, dtype=torch.int64), Examples(rows(), LABELS)
    )
    assert notes(nobody) == ["fed: no client of empty has an example; nothing can be trained"]
    (said,) = notes(with_test(rows(), LABELS), nn.Sequential(nn.Linear(6, 4), nn.Softmax(1)))
    assert said.startswith("model: its outputs sum to 1, as shares do, and 'cross_entropy' takes logits")


@pytest.mark.parametrize(("rounds", "many"), [(1, "the first round"), (2, "the first 2 rounds"), (9, "the first 3 ro")])
def test_clients_that_are_refused_in_every_round_are_said(rounds: int, many: str) -> None:
    sim = simulation(client=ff.clients.SGD(lr=1e38), steps=3, epochs=None)
    history = sim.run(rounds=rounds, evaluate_every=0, progress=False)
    assert history.column("counted") == [0] * rounds
    (said,) = sim.notes
    assert said.startswith(f"clients: all of {many}")
    assert "were refused: their deltas or losses were not finite, so the model has not moved" in said
    fine = simulation()
    fine.run(rounds=3, evaluate_every=0, progress=False)
    assert list(fine.notes) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
@pytest.mark.parametrize("device", ["cuda", "cuda:0,cuda:1", "cuda:*"])
def test_a_device_that_is_not_there(device: str) -> None:
    with pytest.raises(ValueError, match=r"^device: [^\n]*cuda[^\n]*$"):
        simulation(device=device)
