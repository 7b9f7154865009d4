"""The metric of who learns nothing but frequencies, against counting by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import fastfed as ff
from fastfed.data import Examples, Federated, Sparse
from fastfed.losses import IGNORED
from fastfed.record.evaluate import prior_metric


def test_of_labels_it_is_the_share_of_the_most_frequent() -> None:
    """Of what the clients hold, not of the store: class 2 is the most frequent of rows that nobody has."""
    labels = torch.tensor([0, 1, 1, 1, 0, 2, 2, 2, 2, 2])
    held = torch.arange(5)
    test = torch.tensor([1, 0, 1, 2, 2, 2, 1])
    fed = Federated(
        "few", Examples(torch.zeros(10, 1), labels), held, torch.tensor([0, 2, 5]), Examples(torch.zeros(7, 1), test)
    )
    assert prior_metric(fed, "cross_entropy") == pytest.approx(3 / 7)  # class 1


def test_of_tags_it_is_the_recall_of_the_five_most_frequent() -> None:
    generator = torch.Generator().manual_seed(0)
    chance = torch.linspace(0.02, 0.7, 9)
    train, test = ((torch.rand(n, 9, generator=generator) < chance).float() for n in (300, 1100))
    fed = Federated(
        "tags",
        Examples(torch.zeros(300, 1), Sparse.of(train)),
        torch.arange(300),
        torch.tensor([0, 100, 300]),
        Examples(torch.zeros(1100, 1), Sparse.of(test)),
    )
    five = sorted(range(9), key=lambda tag: -train[:, tag].sum().item())[:5]
    wanted = sum(test[i, tag].item() for i in range(1100) for tag in five) / test.sum().item()
    assert prior_metric(fed, "binary_cross_entropy") == pytest.approx(wanted)


def test_words_that_do_not_count_are_not_the_most_frequent() -> None:
    targets = torch.tensor([[7, 7, 7, 3, IGNORED], [7, 7, 3, 4, IGNORED]])
    test = torch.tensor([[7, 3, 3, 4, IGNORED]])
    fed = Federated(
        "words",
        Examples(torch.zeros(2, 5, dtype=torch.int64), targets),
        torch.arange(2),
        torch.tensor([0, 2]),
        Examples(torch.zeros(1, 5, dtype=torch.int64), test),
        uncounted=(7,),
    )
    assert prior_metric(fed, "cross_entropy") == pytest.approx(2 / 3)


def test_where_there_are_no_classes_there_is_none() -> None:
    fed = ff.data.iid(ff.data.digits(), 3)
    assert prior_metric(fed, "mse") is None
    assert prior_metric(ff.data.synthetic_images(clients=3), "cross_entropy") is None


def test_tags_may_be_dense_and_numbers_are_no_labels() -> None:
    tags = (torch.rand(50, 7, generator=torch.Generator().manual_seed(1)) < 0.4).float()
    fed = Federated("dense", Examples(torch.zeros(50, 1), tags), torch.arange(50), torch.tensor([0, 50]))
    fed = replace(fed, test=fed.examples)
    five = tags.sum(0).topk(5).indices
    assert prior_metric(fed, "binary_cross_entropy") == pytest.approx(float(tags[:, five].sum() / tags.sum()))
    assert prior_metric(fed, "cross_entropy") is None
