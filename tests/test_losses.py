"""The built-in losses against torch's own, and their twins for padded batches."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fastfed import losses
from fastfed.losses import IGNORED

CLASSES = 5


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labels(seed: int, classes: int, *shape: int) -> Tensor:
    return torch.randint(classes, shape, generator=torch.Generator().manual_seed(seed))


SEQUENCES = torch.where(labels(1, 3, 6, 3) > 0, labels(0, CLASSES, 6, 3), IGNORED)
CASES: list[Any] = [  # (loss, outputs, targets) of six examples
    pytest.param("cross_entropy", normal(3, 6, CLASSES), labels(0, CLASSES, 6), id="labels"),
    pytest.param("cross_entropy", normal(3, 6, 3, CLASSES), SEQUENCES, id="sequences"),
    pytest.param("binary_cross_entropy", normal(3, 6, CLASSES), labels(0, 2, 6, CLASSES).float(), id="tags"),
    pytest.param("mse", normal(3, 6, CLASSES), normal(1, 6, CLASSES), id="numbers"),
    pytest.param("mse", normal(3, 6, 1), normal(1, 6), id="column"),
    pytest.param("mse", normal(3, 6, 2, 4), normal(1, 6, 8), id="images"),
]


def literal(name: str, outputs: Tensor, targets: Tensor) -> Tensor:
    """Example by example, number by number."""
    if name == "cross_entropy":
        rows, wanted = outputs.reshape(-1, CLASSES), targets.reshape(-1)
        terms = [-row.log_softmax(0)[label] for row, label in zip(rows, wanted, strict=True) if label != IGNORED]
        return torch.stack(terms).mean()
    y = targets.reshape(outputs.shape).double()
    if name == "mse":
        return ((outputs - y) ** 2).mean()
    return -(y * F.logsigmoid(outputs) + (1 - y) * F.logsigmoid(-outputs)).mean()


@pytest.mark.parametrize(("name", "outputs", "targets"), CASES)
def test_plain_losses(name: Any, outputs: Tensor, targets: Tensor) -> None:
    torch.testing.assert_close(losses.find_loss(name)(outputs, targets), literal(name, outputs, targets))


@pytest.mark.parametrize(("name", "outputs", "targets"), CASES)
@pytest.mark.parametrize("real", [1, 4, 6])
def test_padded_losses_are_the_plain_ones_of_the_real_examples(
    name: Any, outputs: Tensor, targets: Tensor, real: int
) -> None:
    outputs = outputs.clone().requires_grad_()
    padded = losses.find_padded_loss(name)(outputs, targets, torch.arange(6) < real)
    plain = losses.find_loss(name)(outputs[:real], targets[:real])
    torch.testing.assert_close(padded, plain, rtol=1e-13, atol=0)
    (wanted,) = torch.autograd.grad(plain, outputs)
    (gradient,) = torch.autograd.grad(padded, outputs)
    torch.testing.assert_close(gradient, wanted, rtol=1e-13, atol=1e-16)
    assert not bool(gradient[real:].any())


def literal_by_example(name: str, output: Tensor, target: Tensor) -> list[float]:
    """The losses of one example's labels, tags or numbers."""
    if name == "cross_entropy":
        rows, wanted = output.reshape(-1, CLASSES), target.reshape(-1)
        return [float(-row.log_softmax(0)[at]) for row, at in zip(rows, wanted, strict=True) if at != IGNORED]
    pairs = zip(output.reshape(-1).tolist(), target.reshape(-1).tolist(), strict=True)
    if name == "mse":
        return [(z - y) ** 2 for z, y in pairs]
    return [math.log1p(math.exp(-z)) if y else math.log1p(math.exp(z)) for z, y in pairs]


def literal_reduced(name: str, reduction: str, outputs: Tensor, targets: Tensor) -> float:
    """As the words say it, example by example."""
    each = [literal_by_example(name, output, target) for output, target in zip(outputs, targets, strict=True)]
    if reduction == "outputs":
        return sum(sum(own) for own in each) / len(each)
    return sum(sum(own) / len(own) for own in each)


REDUCED = [
    pytest.param(*case.values, reduction, id=f"{case.id} by {reduction}")
    for case in CASES
    for reduction in ("outputs", "batch")
    if (case.id, reduction) != ("sequences", "batch")
]


@pytest.mark.parametrize(("name", "outputs", "targets", "reduction"), REDUCED)
@pytest.mark.parametrize("real", [1, 4, 6])
def test_other_reductions(name: Any, outputs: Tensor, targets: Tensor, reduction: Any, real: int) -> None:
    outputs = outputs.clone().requires_grad_()
    plain = losses.find_loss(name, reduction)(outputs[:real], targets[:real])
    assert float(plain.detach()) == pytest.approx(
        literal_reduced(name, reduction, outputs.detach()[:real], targets[:real]), rel=1e-12
    )
    padded = losses.find_padded_loss(name, reduction)(outputs, targets, torch.arange(6) < real)
    torch.testing.assert_close(padded, plain, rtol=1e-13, atol=0)
    wanted, gradient = (torch.autograd.grad(loss, outputs)[0] for loss in (plain, padded))
    torch.testing.assert_close(gradient, wanted, rtol=1e-13, atol=1e-16)
    assert not bool(gradient[real:].any())


def test_reductions_that_make_no_sense_are_refused() -> None:
    tags = torch.zeros(2, 3)
    losses.check_reduction("cross_entropy", "batch", torch.zeros(2, dtype=torch.int64))
    losses.check_reduction(losses.mse, "outputs", tags)
    with pytest.raises(ValueError, match=r"^loss_reduction: must be one of mean, outputs, batch, got 'sum'"):
        losses.check_reduction("mse", "sum", tags)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^loss_reduction: a loss of your own reduces by itself; leave it out"):
        losses.check_reduction(lambda outputs, targets: outputs.sum(), "batch", tags)
    with pytest.raises(ValueError, match=r'^loss_reduction: "batch" takes the mean over an example'):
        losses.check_reduction("cross_entropy", "batch", torch.zeros(2, 3, dtype=torch.int64))


@pytest.mark.parametrize(("name", "outputs", "targets"), CASES)
def test_padding_alone_costs_nothing(name: Any, outputs: Tensor, targets: Tensor) -> None:
    outputs = outputs.clone().requires_grad_()
    value = losses.find_padded_loss(name)(outputs, targets, torch.zeros(6, dtype=torch.bool))
    assert float(value.detach()) == 0
    assert not bool(torch.autograd.grad(value, outputs)[0].any())


def test_labels_that_are_all_ignored_cost_nothing() -> None:
    outputs = normal(3, 6, CLASSES).requires_grad_()
    value = losses.cross_entropy(outputs, torch.full((6,), IGNORED))
    assert float(value.detach()) == 0
    assert not bool(torch.autograd.grad(value, outputs)[0].any())


def test_losses_are_found_by_name_or_function() -> None:
    def own(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.sum()

    assert losses.find_loss("mse") is losses.mse
    assert losses.find_loss(own) is own
    assert losses.find_padded_loss("mse") is losses.find_padded_loss(losses.mse) is losses.padded_mse
    with pytest.raises(ValueError, match=r"^loss: must be one of .*got 'hinge'"):
        losses.find_loss("hinge")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^loss: must be one of .* for padded batches"):
        losses.find_padded_loss(own)
