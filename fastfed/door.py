"""At the door: what a model makes of the first examples, before anything is trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from .data import Examples
from .losses import Loss, are_labels

_TRIED = 2  # examples: enough to see a dimension that should be there for each


def gives_classes(model: nn.Module, examples: Examples, loss: Loss) -> bool:
    """Whether the accuracy of a model can be told although its loss is the user's own: every example has a label, and
    the model an output for each of several classes."""
    if isinstance(loss, str) or not are_labels(examples.targets) or not len(examples):
        return False
    outputs, _ = first_outputs(model, examples)
    return isinstance(outputs, Tensor) and outputs.dim() == 2 and outputs.shape[1] > 1


@torch.no_grad()
def first_outputs(model: nn.Module, examples: Examples) -> tuple[Tensor, Tensor]:
    """What the model gives for the first examples, in evaluation mode where it is, and their targets."""
    first = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    inputs, targets = examples.batch(torch.arange(min(_TRIED, len(examples))), first.dtype)
    with _evaluating(model):
        return model(inputs.to(first.device)), targets.to(first.device)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """The module in evaluation mode; then every part of it as it was."""
    training = [part for part in model.modules() if part.training]
    model.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True
