"""Metrics against plain torch and by hand: recall@5, squared errors, ignored labels, a loss of one's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fastfed as ff
from fastfed.packing import Packing
from fastfed.record.evaluate import Evaluator, higher_is_better


def evaluated(model: nn.Module, loss: object, examples: ff.data.Examples, threads: int = 2) -> dict[str, float]:
    return Evaluator(model, loss, threads=threads).evaluate(Packing.of(model).pack(model), examples)  # type: ignore[arg-type]


def test_recall_at_5_counts_tags_among_the_five_likeliest() -> None:
    """The logits are the inputs: 7 tags, of which 0 .. 4 are the likeliest of every example."""
    model = nn.Linear(7, 7, bias=False)
    nn.init.eye_(model.weight)
    inputs = torch.arange(7, 0, -1).float().repeat(300, 1)
    tags = torch.zeros(300, 7)
    tags[:, [0, 6]] = 1  # one found, one missed
    tags[:100, 4] = 1  # found
    found = evaluated(model, "binary_cross_entropy", ff.data.Examples(inputs, ff.data.Sparse.of(tags)))
    assert found["recall_at_5"] == pytest.approx(400 / 700)
    expected = nn.functional.binary_cross_entropy_with_logits(inputs, tags)
    assert found["loss"] == pytest.approx(float(expected), rel=1e-5)


def test_ignored_labels_count_for_nothing() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 6), nn.Linear(6, 5))
    tokens, labels = torch.randint(0, 5, (301, 4)), torch.randint(0, 5, (301, 4))
    labels[:, 3] = -100
    labels[200:, 1:] = -100  # so the parts of the work count for different shares
    found = evaluated(model, "cross_entropy", ff.data.Examples(tokens, labels))
    with torch.no_grad():
        outputs = model(tokens).reshape(-1, 5)
    expected = nn.functional.cross_entropy(outputs, labels.reshape(-1))
    real = labels.reshape(-1) != -100
    accuracy = (outputs.argmax(-1) == labels.reshape(-1))[real].double().mean()
    assert found["loss"] == pytest.approx(float(expected), rel=1e-5)
    assert found["accuracy"] == pytest.approx(float(accuracy))


def test_squared_errors_are_their_own_metric() -> None:
    model = nn.Linear(3, 2)
    examples = ff.data.Examples(torch.randn(130, 3), torch.randn(130, 2))
    found = evaluated(model, "mse", examples)
    with torch.no_grad():
        expected = nn.functional.mse_loss(model(examples.inputs), examples.targets)  # type: ignore[arg-type]
    assert found["mse"] == found["loss"] == pytest.approx(float(expected), rel=1e-5)


def test_a_loss_of_ones_own_is_averaged_over_examples() -> None:
    def absolute(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).abs().mean()

    model = nn.Linear(3, 2)
    examples = ff.data.Examples(torch.randn(300, 3), torch.randn(300, 2))
    found = evaluated(model, absolute, examples)
    with torch.no_grad():
        expected = (model(examples.inputs) - examples.targets).abs().mean()
    assert found == {"loss": pytest.approx(float(expected), rel=1e-5)}


def test_the_same_bits_for_any_number_of_threads() -> None:
    model = ff.models.mlp(20, 30, 4)
    examples = ff.data.Examples(torch.randn(1001, 20), torch.randint(0, 4, (1001,)))
    found = [evaluated(model, "cross_entropy", examples, threads) for threads in (1, 2, 7)]
    assert found[0] == found[1] == found[2]


def test_what_is_better() -> None:
    assert [higher_is_better(name) for name in ("test_accuracy", "test_recall_at_5", "test_loss", "test_mse")] == [
        True,
        True,
        False,
        False,
    ]


def test_clients_with_nothing_to_measure_are_left_out() -> None:
    model = nn.Linear(3, 4)
    tags = torch.zeros(4, 4)
    tags[:2, 1] = 1  # the second client's examples have no tag
    examples = ff.data.Examples(torch.randn(4, 3), tags)
    evaluator = Evaluator(model, "binary_cross_entropy")
    visit = ff.data.Visit(examples, torch.arange(4), torch.tensor([0, 2, 4]))
    x = Packing.of(model).pack(model)
    assert evaluator.per_client(x, visit)["recall_at_5_mean"] == 1.0  # four tags: all are among the five likeliest
    nobody = ff.data.Visit(examples, torch.tensor([2, 3]), torch.tensor([0, 2]))
    with pytest.raises(ValueError, match="per_client: no client has examples that recall_at_5 could be measured on"):
        evaluator.per_client(x, nobody)
