"""The losses that every executor knows, by name; any other callable (outputs, targets) -> scalar runs on `eager`.

Each has a twin for batches padded to a common length, whose third argument `real` (n,) bool tells the examples from
the padding: the mean is over the real ones, and padding has no gradient.

A batch's losses, one for every label, tag or pixel, become one number by a reduction: their mean; "outputs", summed
over an example's and the mean over examples; or "batch", the mean of an example's and summed over examples.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .data.store import Sparse

LossName = Literal["cross_entropy", "binary_cross_entropy", "mse"]
LossFunction = Callable[[Tensor, Tensor], Tensor]
PaddedLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
Loss = LossName | LossFunction
LossReduction = Literal["mean", "outputs", "batch"]

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
_MODULES_OF_TORCH: dict[type[nn.Module], str] = {
    nn.CrossEntropyLoss: "cross_entropy",
    nn.BCEWithLogitsLoss: "binary_cross_entropy",
    nn.MSELoss: "mse",
}
_FUNCTIONS_OF_TORCH: dict[object, str] = {
    F.cross_entropy: "cross_entropy",
    F.binary_cross_entropy_with_logits: "binary_cross_entropy",
    F.mse_loss: "mse",
}
PADDED_LOSSES: dict[str, PaddedLoss] = {
    "cross_entropy": padded_cross_entropy,
    "binary_cross_entropy": padded_binary_cross_entropy,
    "mse": padded_mse,
}


def with_name(loss: Loss, targets: Tensor | Sparse) -> Loss:
    """The name of a built-in loss that is given as a function, or in torch's words (``nn.CrossEntropyLoss()`` with its
    default options); any other loss as it is. Of sequences, torch has the classes in another dimension than FastFed."""
    name = _name_of(loss) or _name_in_torch(loss)
    if name == "cross_entropy" and _name_of(loss) is None and not are_labels(targets):
        return loss
    return loss if name is None else name  # type: ignore[return-value]


def are_labels(targets: Tensor | Sparse) -> bool:
    """Whether every example has one label: int64 (n,)."""
    return isinstance(targets, Tensor) and targets.dtype is torch.int64 and targets.dim() == 1


def _name_in_torch(loss: object) -> str | None:
    if not isinstance(loss, nn.Module):
        return next((name for function, name in _FUNCTIONS_OF_TORCH.items() if function is loss), None)
    name = _MODULES_OF_TORCH.get(type(loss))
    return name if name is not None and _options(loss) == _options(type(loss)()) else None


def _options(loss: nn.Module) -> dict[str, object]:
    """What a loss of torch's was made with: a tensor of weights is in one of its buffers."""
    plain = {name: value for name, value in vars(loss).items() if not name.startswith("_") and name != "training"}
    return {**plain, **{name: id(buffer) for name, buffer in loss.named_buffers()}}


def find_loss(loss: Loss, reduction: LossReduction = "mean") -> LossFunction:
    """The function behind a name; a callable is its own, and reduces by itself."""
    name = _name_of(loss)
    if reduction != "mean" and name is not None:
        return partial(_reduced, name, reduction)
    if callable(loss):
        return loss
    if name is None:
        raise ValueError(f"loss: must be one of {', '.join(LOSSES)}, or a callable, got {loss!r}")
    return LOSSES[name]


def find_padded_loss(loss: Loss, reduction: LossReduction = "mean") -> PaddedLoss:
    """The twin of a built-in loss for padded batches; a loss of one's own has none."""
    name = _name_of(loss)
    if name is None:
        raise ValueError(f"loss: must be one of {', '.join(LOSSES)} for padded batches, got {loss!r}")
    return PADDED_LOSSES[name] if reduction == "mean" else partial(_reduced, name, reduction)


def check_reduction(loss: Loss, reduction: LossReduction, targets: Tensor | Sparse) -> None:
    """Refuses a reduction that is unknown, or that the loss of such targets does not have."""
    if reduction not in get_args(LossReduction):
        raise ValueError(f"loss_reduction: must be one of {', '.join(get_args(LossReduction))}, got {reduction!r}")
    if reduction == "mean":
        return
    if _name_of(loss) is None and callable(loss):
        raise ValueError(f"loss_reduction: a loss of your own reduces by itself; leave it out, got {reduction!r}")
    if reduction == "batch" and _name_of(loss) == "cross_entropy" and isinstance(targets, Tensor) and targets.dim() > 1:
        raise ValueError(
            'loss_reduction: "batch" takes the mean over an example\'s labels, of which sequences have more or fewer; '
            'use "mean" or "outputs"'
        )


def _name_of(loss: Loss) -> str | None:
    """The name of a built-in loss, which may be given as its function; None of any other."""
    return next((name for name, function in LOSSES.items() if loss == name or loss is function), None)


def _reduced(
    name: str, reduction: LossReduction, outputs: Tensor, targets: Tensor, real: Tensor | None = None
) -> Tensor:
    """A built-in loss by "outputs" or "batch", of all examples or of the `real` ones."""
    losses = _EACH[name](outputs, targets)
    if real is not None:
        losses = torch.where(real[:, None], losses, 0)
    if reduction == "batch":
        return losses.sum() / losses.shape[1]
    return losses.sum() / (len(losses) if real is None else real.sum().clamp(min=1))


def _each_label(outputs: Tensor, targets: Tensor) -> Tensor:
    """0 for those that are ignored."""
    classes = outputs.shape[-1]
    losses = F.cross_entropy(outputs.reshape(-1, classes), targets.reshape(-1), ignore_index=IGNORED, reduction="none")
    return losses.reshape(len(targets), -1)


def _each_tag(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = F.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype), reduction="none")
    return losses.reshape(len(outputs), -1)


def _each_number(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = F.mse_loss(outputs, targets.reshape(outputs.shape).to(outputs.dtype), reduction="none")
    return losses.reshape(len(outputs), -1)


# The losses (n, numbers) of every example.
_EACH: dict[str, LossFunction] = {
    "cross_entropy": _each_label,
    "binary_cross_entropy": _each_tag,
    "mse": _each_number,
}
