"""At the door: what is given for the model and the data, and whether they go together, before anything is trained.

What cannot be trained is refused. What can, but is hardly meant, is said: a run goes on without the clients whose
numbers are not finite, and without a test set.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .data import Dataset, Examples, Federation, Inputs, Pixels, Sparse
from .losses import IGNORED, Loss, LossName, are_labels
from .notes import Notes
from .record.evaluate import validation_rows
from .train.executors import Executor
from .train.fits import check_outputs

_TRIED = 2  # examples: enough to see a dimension that should be there for each
_LOOKED_AT = 100_000_000  # numbers of a store whose finiteness is looked at: a fraction of a second
_PIECE = 1 << 20


# ---- what is given --------------------------------------------------------------------------------------------------


def check_given(model: Any, fed: Any) -> None:
    """Refuses what is no model and what is no data of clients, and says what to give instead."""
    if isinstance(fed, nn.Module) and not isinstance(model, nn.Module):
        raise TypeError("model: comes first and the data second; they are given the other way round")
    if isinstance(model, type):
        raise TypeError(f"model: must be a module, got the class {model.__name__}; give {model.__name__}(...)")
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: must be a torch.nn.Module, got {_kind(model)}")
    if isinstance(fed, Dataset):
        raise TypeError(
            f"fed: {fed.name} is not dealt to clients yet; deal it, as in ff.data.iid(data, clients=100) or "
            "ff.data.dirichlet(data, clients=100, alpha=0.3)"
        )
    if not all(hasattr(fed, name) for name in ("examples", "visit", "sizes")):
        raise TypeError(
            f"fed: must be data of clients, got {_kind(fed)}; ff.data.from_arrays takes rows with a client each, and "
            "ff.data.as_dataset and ff.data.from_torch make a data set that ff.data.iid or ff.data.dirichlet deals"
        )


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


# ---- whether they go together ---------------------------------------------------------------------------------------


def gives_classes(model: nn.Module, examples: Examples, loss: Loss) -> bool:
    """Whether the accuracy of a model can be told although its loss is the user's own: every example has a label, and
    the model an output for each of several classes."""
    if isinstance(loss, str) or not are_labels(examples.targets) or not len(examples):
        return False
    try:
        outputs, _ = first_outputs(model, examples)
    except Exception:  # what is wrong is told where the executor is made
        return False
    return isinstance(outputs, Tensor) and outputs.dim() == 2 and outputs.shape[1] > 1


def check_together(
    model: nn.Module, fed: Federation, loss: Loss, batch_size: int, executor: Executor, notes: Notes
) -> None:
    """Refuses a model whose outputs the data has no use for; notes what is hardly meant."""
    numbers = fed.examples.targets
    takes_numbers = loss in ("mse", "binary_cross_entropy") and executor.name in ("native", "device")
    if takes_numbers and isinstance(numbers, Tensor) and not numbers.is_floating_point():
        raise ValueError(f"fed: its targets are whole numbers, and {loss!r} takes float32; convert them")
    outputs = check_model(model, fed, loss, batch_size)
    _note_numbers(fed, notes)
    if fed.test is None and validation_rows(fed) is None:
        notes.add(
            f"fed: {fed.name} has no test set, so rows have no test metric; give one (test=...), hold examples out "
            "(ff.data.hold_out), or evaluate with per_client=True"
        )
    if outputs is not None and loss == "cross_entropy" and _are_shares(outputs):
        notes.add("model: its outputs sum to 1, as shares do, and 'cross_entropy' takes logits; leave the softmax out")


def check_model(model: nn.Module, fed: Federation, loss: Loss, batch_size: int = _TRIED) -> Tensor | None:
    """Refuses a model that cannot take the data, or whose outputs the loss cannot compare with the targets, of the test
    set either; the outputs for a few examples, if there are any."""
    test: Examples | None = fed.test
    if not len(fed.examples):
        return None
    if test is not None and len(test):
        _check_alike(fed.examples, test)
    outputs = _tried(model, fed.examples, batch_size)
    if isinstance(loss, str):
        _check_targets(fed, outputs, loss)
    return outputs


def _tried(model: nn.Module, examples: Examples, batch_size: int) -> Tensor:
    """The outputs for a few examples, or for a whole batch, where the model takes no other."""
    failure: Exception | None = None
    for count in (_TRIED, batch_size):
        try:
            outputs, _ = first_outputs(model, examples, count)
            break
        except Exception as error:
            failure = failure or error
    else:
        inputs = examples.batch(torch.arange(1))[0]
        problem = f"{type(failure).__name__}: {failure}"
        raise ValueError(f"model: cannot take the data's inputs {_shape(inputs)}: {problem}") from failure
    if not isinstance(outputs, Tensor):
        raise TypeError(f"model: must give a tensor of outputs, got {_kind(outputs)}")
    return outputs.cpu()


@torch.no_grad()
def first_outputs(model: nn.Module, examples: Examples, count: int = _TRIED) -> tuple[Any, Tensor]:
    """What the model gives for the first examples, in evaluation mode where it is, and their targets."""
    first = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    inputs, targets = examples.batch(torch.arange(min(count, len(examples))), first.dtype)
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


def _check_alike(examples: Examples, test: Examples) -> None:
    """The test set looks as the clients' examples do."""
    for place, name in enumerate(("inputs", "targets")):
        mine, theirs = (store.batch(torch.arange(1))[place] for store in (examples, test))
        if mine.shape != theirs.shape and not _is_sequence(mine, theirs):
            raise ValueError(f"fed: the test set's {name} are {_shape(theirs)}, those of the clients {_shape(mine)}")
        if mine.dtype != theirs.dtype:
            raise ValueError(f"fed: the test set's {name} are {theirs.dtype}, those of the clients {mine.dtype}")


def _is_sequence(mine: Tensor, theirs: Tensor) -> bool:
    """Tokens may be longer there."""
    return mine.dtype is theirs.dtype is torch.int64 and mine.dim() == theirs.dim() == 2


def _check_targets(fed: Federation, outputs: Tensor, loss: LossName) -> None:
    for whose, examples in (("", fed.examples), ("test ", fed.test)):
        if examples is None or not len(examples):
            continue
        if loss == "cross_entropy":
            _check_labels(examples.targets, outputs, whose)
        first = torch.arange(len(outputs)).clamp(max=len(examples) - 1)
        check_outputs(outputs, examples.targets_of(first), loss)


def _check_labels(targets: Tensor | Sparse, outputs: Tensor, whose: str) -> None:
    if not isinstance(targets, Tensor) or targets.is_floating_point():
        kind = "tags" if isinstance(targets, Sparse) else str(targets.dtype).removeprefix("torch.")
        raise ValueError(
            f"fed: its {whose}targets are {kind}, and 'cross_entropy' takes labels, int64; convert them, or give "
            f"loss={'binary_cross_entropy' if kind == 'tags' else 'mse'!r}"
        )
    classes = outputs.shape[-1]
    least, largest = (int(bound) for bound in torch.aminmax(targets))
    if largest >= classes:
        held = f"the data has {whose}labels up to {largest}"
        raise ValueError(f"model: has {classes} outputs, and {held}: {largest + 1} classes, counted from 0")
    if least < 0 and bool(((targets < 0) & (targets != IGNORED)).any()):
        raise ValueError(f"fed: has the {whose}label {least}; classes are counted from 0, and {IGNORED} is ignored")


def _are_shares(outputs: Tensor) -> bool:
    return outputs.dim() == 2 and outputs.shape[1] > 1 and bool((outputs >= 0).all()) and _sums_to_one(outputs)


def _sums_to_one(outputs: Tensor) -> bool:
    return bool(((outputs.double().sum(1) - 1).abs() < 1e-3).all())


def _shape(batch: Tensor) -> str:
    return f"({', '.join(['n', *map(str, batch.shape[1:])])})"


# ---- numbers --------------------------------------------------------------------------------------------------------


def _note_numbers(fed: Federation, notes: Notes) -> None:
    """Says where data is not finite, or not there."""
    if int(fed.sizes.sum()) == 0:
        notes.add(f"fed: no client of {fed.name} has an example; nothing can be trained")
    for whose, examples in (("", fed.examples), ("test ", fed.test)):
        for name in ("inputs", "targets") if examples is not None else ():
            rows = _not_finite(getattr(examples, name))
            if rows:
                notes.add(
                    f"fed: {whose}{name} of {fed.name} are not finite in {len(rows):,} of {len(examples or ()):,} "
                    f"examples, the first of which is row {rows[0]}; "
                    + ("the test loss is not finite" if whose else "clients that train on one are refused")
                )


def _not_finite(store: Inputs) -> list[int]:
    """The rows that hold what is not finite, of the first that are looked at."""
    if isinstance(store, Pixels):
        return []
    numbers = store.values if isinstance(store, Sparse) else store
    if not numbers.is_floating_point() or not numbers.numel():
        return []
    width = max(1, numbers[0].numel())
    pieces = enumerate(numbers[: max(1, _LOOKED_AT // width)].split(max(1, _PIECE // width)))
    step = max(1, _PIECE // width)
    found = [place * step + row for place, piece in pieces if not _is_finite(piece) for row in _rows_of(piece)]
    if isinstance(store, Sparse) and found:
        found = (torch.searchsorted(store.starts, torch.tensor(found), right=True) - 1).unique().tolist()
    return found


def _is_finite(piece: Tensor) -> bool:
    return all(bool(bound.isfinite()) for bound in torch.aminmax(piece))


def _rows_of(piece: Tensor) -> list[int]:
    found: list[int] = (~piece.reshape(len(piece), -1).isfinite().all(1)).nonzero()[:, 0].tolist()
    return found
