"""A model that does not fit the data is refused when the simulation is made, in one sentence, whatever would run it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fastfed as ff
from fastfed.data import Dataset, Examples, Federated
from fastfed.data.partition import iid


def federation(inputs: torch.Tensor, targets: torch.Tensor) -> Federated:
    return iid(Dataset("small", Examples(inputs, targets)), 2)


def images() -> Federated:
    return federation(torch.rand(12, 1, 8, 8), torch.arange(12) % 10)


def vectors() -> Federated:
    return federation(torch.rand(12, 7), torch.arange(12) % 10)


def tokens() -> Federated:
    return federation(torch.arange(60).view(12, 5), torch.arange(12) % 10)


UNFIT: list[tuple[Any, Any, str]] = [
    (images, lambda: ff.models.mlp(65, 10), r"layer '1' \(Linear\) is given \(n, 64\) and expects \(n, ..., 65\)"),
    (
        images,
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 10)),
        r"layer '0' \(Conv2d\) is given \(n, 1, 8, 8\) and expects \(n, 3, height, width\)",
    ),
    (
        images,
        lambda: nn.Sequential(nn.Embedding(5, 10)),
        r"layer '0' \(Embedding\) is given torch.float32 \(n, 1, 8, 8\)",
    ),
    (tokens, lambda: nn.Linear(5, 10), r"layer '' \(Linear\) is given torch.int64 \(n, 5\) and expects"),
    (
        vectors,
        lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(7, 10)),
        r"layer '0' \(BatchNorm1d\) is given \(n, 7\)",
    ),
    (
        vectors,
        lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(7, 10)),
        r"layer '0' \(LayerNorm\) is given \(n, 7\) and",
    ),
    (
        images,
        lambda: nn.Sequential(nn.GroupNorm(1, 3), nn.Flatten()),
        r"layer '0' \(GroupNorm\) is given \(n, 1, 8, 8\)",
    ),
]


@pytest.mark.parametrize("executor", ["auto", "eager", "batched"])
@pytest.mark.parametrize(("data", "model", "says"), UNFIT, ids=[says[7:20] for *_, says in UNFIT])
def test_the_layer_is_named(data: Any, model: Any, says: str, executor: str) -> None:
    with pytest.raises(ValueError, match=f"^model: does not fit the data: {says}"):
        ff.Simulation(model(), data(), cohort=2, client=ff.clients.SGD(lr=0.1), executor=executor)


@pytest.mark.parametrize("executor", ["eager", "batched"])
def test_outputs_that_the_targets_cannot_be_compared_with_are_named(executor: str) -> None:
    few, odd = nn.Linear(7, 5), nn.Sequential(nn.Linear(7, 10), nn.Unflatten(1, (2, 5)))
    with pytest.raises(ValueError, match=r"^model: has 5 outputs, and the data has labels up to 9"):
        ff.Simulation(few, vectors(), cohort=2, client=ff.clients.SGD(lr=0.1), executor=executor)
    numbers = federation(torch.rand(12, 7), torch.rand(12, 3))
    with pytest.raises(
        ValueError, match=r"^model: its outputs \(n, 5\) cannot be compared with the targets \(n, 3\) by 'm"
    ):
        ff.Simulation(few, numbers, cohort=2, client=ff.clients.SGD(lr=0.1), executor=executor, loss="mse")
    labels = federation(torch.rand(12, 7), torch.arange(12) % 5)
    with pytest.raises(
        ValueError, match=r"^model: its outputs \(n, 2, 5\) cannot be compared with the targets \(n\) by"
    ):
        ff.Simulation(odd, labels, cohort=2, client=ff.clients.SGD(lr=0.1), executor=executor)


def test_tokens_beyond_the_vocabulary_are_named() -> None:
    with pytest.raises(
        ValueError, match=r"layer '0' \(Embedding\) is given \(n, 5\) and expects whole numbers below 5"
    ):
        ff.Simulation(
            nn.Sequential(nn.Embedding(5, 10)), tokens(), cohort=2, client=ff.clients.SGD(lr=0.1), executor="eager"
        )


def test_looking_changes_nothing() -> None:
    model = nn.Sequential(nn.BatchNorm1d(7), nn.Dropout(0.5), nn.Linear(7, 10), nn.Softplus())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    data = vectors()
    state = torch.get_rng_state()
    ff.Simulation(model, data, cohort=2, client=ff.clients.SGD(lr=0.1), executor="eager")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in model.modules())


def test_a_module_that_takes_other_batches_is_left_to_itself() -> None:
    class Ten(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(7, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x.view(10, 7))

    model = Ten()
    ff.Simulation(model, vectors(), cohort=2, client=ff.clients.SGD(lr=0.1), batch_size=10, executor="eager")
