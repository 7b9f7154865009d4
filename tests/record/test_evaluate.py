"""Metrics against plain torch and by hand: recall@5, squared errors, ignored labels, a loss of one's own."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

import fastfed as ff
from fastfed.losses import LossReduction
from fastfed.norms import PackedModel
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


def _reduced(reduction: LossReduction, loss: Any, model: nn.Module, examples: ff.data.Examples) -> dict[str, float]:
    evaluator = Evaluator(model, loss, threads=2, reduction=reduction, batch_size=20)
    return evaluator.evaluate(Packing.of(model).pack(model), examples)


def test_the_loss_is_reduced_as_in_training_and_squared_errors_stay_means() -> None:
    torch.manual_seed(0)
    model, inputs, wanted = nn.Linear(3, 5), torch.randn(301, 3), torch.randn(301, 5)
    examples = ff.data.Examples(inputs, wanted)
    with torch.no_grad():
        squares = ((model(inputs) - wanted) ** 2).double()
    by = {reduction: _reduced(reduction, "mse", model, examples) for reduction in get_args(LossReduction)}
    assert by["mean"]["loss"] == pytest.approx(float(squares.mean()), rel=1e-6)
    assert by["outputs"]["loss"] == pytest.approx(float(squares.sum(1).mean()), rel=1e-6)
    assert by["batch"]["loss"] == pytest.approx(20 * float(squares.mean(1).mean()), rel=1e-6)
    for found in by.values():
        assert found["mse"] == by["mean"]["loss"]


def test_labels_of_a_sequence_are_summed_where_they_are_learnt() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 6), nn.Linear(6, 5))
    tokens, labels = torch.randint(0, 5, (301, 4)), torch.randint(0, 5, (301, 4))
    labels[200:, 1:] = -100
    with torch.no_grad():
        total = nn.functional.cross_entropy(model(tokens).reshape(-1, 5), labels.reshape(-1), reduction="sum")
    found = _reduced("outputs", "cross_entropy", model, ff.data.Examples(tokens, labels))
    assert found["loss"] == pytest.approx(float(total) / 301, rel=1e-5)


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


@pytest.mark.parametrize("executor", ["native", "eager", "batched"])
def test_next_word_accuracy_is_that_of_words(executor: str) -> None:
    """Unknown, begin and end (here 4, 5, 6) are learnt, but earn a model nothing; padding is not even learnt."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 4), ff.models.LSTM(4, 5), nn.Linear(5, 7))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 5  # or it would guess the same token everywhere
    tokens, labels = torch.randint(0, 7, (90, 4)), torch.randint(0, 7, (90, 4))
    labels[::3, 2:] = -100
    data = ff.data.Dataset(
        "words", ff.data.Examples(tokens, labels), ff.data.Examples(tokens, labels), uncounted=(4, 5, 6)
    )
    fed = ff.data.iid(data, clients=3)
    found = ff.Simulation(model, fed, client=ff.clients.SGD(lr=0.1), cohort=2, executor=executor).evaluate()
    with torch.no_grad():
        outputs = model(tokens)
    right = possible = 0
    total, learnt = 0.0, 0
    for likely, label, row in zip(outputs.argmax(-1).flatten(), labels.flatten(), outputs.reshape(-1, 7), strict=True):
        if int(label) == -100:
            continue
        total, learnt = total - float(row.log_softmax(0)[label]), learnt + 1
        if int(label) not in (4, 5, 6):
            right, possible = right + int(likely == label), possible + 1
    assert 0 < right < possible < learnt
    assert found["test_accuracy"] == right / possible
    assert found["test_loss"] == pytest.approx(total / learnt, rel=1e-5)


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


@pytest.mark.parametrize("load", [1, 4096])
def test_every_client_is_evaluated_with_its_own_model(load: int) -> None:
    """Also where examples of many clients go to a device together; a client without examples has no part in it."""
    torch.manual_seed(1)
    model, inputs = nn.Linear(3, 2), torch.randn(200, 3)
    examples = ff.data.Examples(inputs, torch.randn(200, 2))
    owners = torch.tensor([0, 150, 150, 160, 200])
    packing = Packing.of(model)
    models = torch.randn(4, packing.size)
    evaluator = Evaluator(model, "mse", threads=2)
    evaluator._load = load
    visit = ff.data.Visit(examples, torch.arange(200), owners)
    found = evaluator.per_client(models[0], visit, lambda position: PackedModel(models[position]))
    wanted = []
    for position in (0, 2, 3):
        rows = slice(int(owners[position]), int(owners[position + 1]))
        own = packing.views(models[position])
        outputs = inputs[rows] @ own["weight"].T + own["bias"]
        wanted.append(float(((outputs - examples.targets_of(torch.arange(200))[rows]) ** 2).mean()))
    assert found["mse_mean"] == pytest.approx(sum(wanted) / 3, rel=1e-5)
    assert found["mse_p10"] == pytest.approx(float(torch.quantile(torch.tensor(wanted), 0.1)), rel=1e-5)
