"""The losses that every executor knows, by name; any other callable (outputs, targets) -> scalar runs on `eager`.

Each has a twin for batches padded to a common length, whose third argument `real` (n,) bool tells the examples from
the padding: the mean is over the real ones, and padding has no gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

LossName = Literal["cross_entropy", "binary_cross_entropy", "mse"]
LossFunction = Callable[[Tensor, Tensor], Tensor]
PaddedLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
Loss = LossName | LossFunction

IGNORED = -100  # a label that counts for nothing, in sequences of unequal length


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean over the labels that are not `IGNORED`: outputs (n, classes) or (n, length, classes); 0 if there is none."""
    classes = outputs.shape[-1]
    total = F.cross_entropy(outputs.reshape(-1, classes), targets.reshape(-1), ignore_index=IGNORED, reduction="sum")
    return total / (targets != IGNORED).sum().clamp(min=1)


def binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of logits, mean over examples and tags: outputs and targets (n, tags)."""
    return F.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype))


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean over all numbers; targets are brought to the outputs' shape."""
    return F.mse_loss(outputs, targets.reshape(outputs.shape).to(outputs.dtype))


def padded_cross_entropy(outputs: Tensor, targets: Tensor, real: Tensor) -> Tensor:
    """`cross_entropy` of the real examples: the labels of the others are ignored."""
    aligned = real.reshape(-1, *[1] * (targets.dim() - 1))
    return cross_entropy(outputs, torch.where(aligned, targets, IGNORED))


def padded_binary_cross_entropy(outputs: Tensor, targets: Tensor, real: Tensor) -> Tensor:
    """`binary_cross_entropy` of the real examples."""
    return mean_of_real(F.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype), reduction="none"), real)


def padded_mse(outputs: Tensor, targets: Tensor, real: Tensor) -> Tensor:
    """`mse` of the real examples."""
    return mean_of_real(F.mse_loss(outputs, targets.reshape(outputs.shape).to(outputs.dtype), reduction="none"), real)


def mean_of_real(losses: Tensor, real: Tensor) -> Tensor:
    """The mean of losses (n, ...) over the entries of the real examples; 0 if there is none."""
    per_example = losses.reshape(len(losses), -1)
    total = torch.where(real[:, None], per_example, 0).sum()
    return total / (real.sum() * per_example.shape[1]).clamp(min=1)


LOSSES: dict[str, LossFunction] = {
    "cross_entropy": cross_entropy,
    "binary_cross_entropy": binary_cross_entropy,
    "mse": mse,
}
PADDED_LOSSES: dict[str, PaddedLoss] = {
    "cross_entropy": padded_cross_entropy,
    "binary_cross_entropy": padded_binary_cross_entropy,
    "mse": padded_mse,
}


def find_loss(loss: Loss) -> LossFunction:
    """The function behind a name; a callable is its own."""
    if callable(loss):
        return loss
    if loss not in LOSSES:
        raise ValueError(f"loss: must be one of {', '.join(LOSSES)}, or a callable, got {loss!r}")
    return LOSSES[loss]


def find_padded_loss(loss: Loss) -> PaddedLoss:
    """The twin of a built-in loss for padded batches; a loss of one's own has none."""
    for name, function in LOSSES.items():
        if loss == name or loss is function:
            return PADDED_LOSSES[name]
    raise ValueError(f"loss: must be one of {', '.join(LOSSES)} for padded batches, got {loss!r}")
