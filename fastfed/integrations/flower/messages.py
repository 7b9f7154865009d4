"""What Flower's messages say to a `LocalTraining`, and what is replied: the same for a grid and for a client app."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...packing import Packing
from ...train import Outcome
from ..local import RoundSettings
from . import arrays as flower_arrays
from .host import ArrayRecord, Error, Message, MetricRecord, RecordDict

COUNT = "num-examples"  # the metric by which Flower's strategies weigh replies, unless they are told otherwise
KEYS = ("server-round", "lr", "proximal-mu", "epochs", "batch-size")
_REFUSED = 202  # the code of a reply that tells of an error in a client app


def settings_of(message: Any) -> RoundSettings:
    """What the configuration of a message asks for; an error if it asks for something else besides."""
    found: dict[str, Any] = {}
    for config in message.content.config_records.values():
        found |= dict(config)
    unknown = [key for key in found if key not in KEYS]
    if unknown:
        known = ", ".join(KEYS)
        raise ValueError(f"config: {unknown[0]!r} is nothing that FastFed's local training knows; it knows {known}")
    batch_size = found.get("batch-size")
    return RoundSettings(
        round=max(int(found.get("server-round", 1)) - 1, 0),
        lr=_number(found, "lr"),
        prox=_number(found, "proximal-mu"),
        epochs=_number(found, "epochs"),
        batch_size=None if batch_size is None else int(batch_size),
    )


def _number(found: Mapping[str, Any], key: str) -> float | None:
    return float(found[key]) if key in found else None


def arrays_of(message: Any) -> tuple[str, Any]:
    """The record of arrays that a message carries, with its key."""
    records = message.content.array_records
    if len(records) != 1:
        raise ValueError(f"message: must carry one record of arrays, the model, got {len(records)}")
    ((key, record),) = records.items()
    return key, record


def pack(record: Any, packing: Packing, out: Tensor) -> None:
    """Writes the arrays of a record into the packed vector `out` (d,). What is no trainable parameter is left out."""
    for slot in packing.slots:
        if slot.name not in record:
            raise ValueError(f"arrays: lack the parameter {slot.name!r} of the module")
        found = flower_arrays.read(record[slot.name])
        if found.shape != slot.shape:
            raise ValueError(f"arrays: {slot.name!r} must have shape {slot.shape}, got {found.shape}")
        np.copyto(out[slot.span].numpy(), found.reshape(-1), casting="same_kind")


def unpack(x: Tensor, packing: Packing, record: Any) -> Any:
    """A record like the one that came, with the packed model `x` (d,) in it; what is not packed stays as it came."""
    views = packing.views(x)
    return ArrayRecord(
        {
            name: flower_arrays.write(_like(views[name].numpy(), array)) if name in views else array
            for name, array in record.items()
        }
    )


def _like(numbers: np.ndarray, array: Any) -> np.ndarray:
    """In the type that the array came in."""
    return numbers.astype(array.dtype, copy=False)


def trained_reply(message: Any, arrays: Any, examples: float, loss: float) -> Any:
    """The reply to an order to train: the model, how many examples it counts for, and the loss on the way."""
    key, _ = arrays_of(message)
    metrics = MetricRecord({COUNT: int(examples), "train_loss": 0.0 if math.isnan(loss) else loss})
    return Message(RecordDict({key: arrays, "metrics": metrics}), reply_to=message)


def mean_reply(message: Any, record: Any, start: Tensor, outcome: Outcome, packing: Packing) -> Any:
    """The reply to an order to train that many clients have carried out: their mean over examples."""
    counts, refused = outcome.scalars["examples"], outcome.refused
    if bool(refused.all()):
        return refused_reply(message, "no client's trained model is finite")
    counted = torch.where(refused | outcome.scalars["mean_loss"].isnan(), 0.0, counts)
    losses = outcome.scalars["mean_loss"].nan_to_num() * counted
    arrays = unpack(start + outcome.delta, packing, record)
    return trained_reply(message, arrays, float(counted.sum()), float(losses.sum() / counted.sum().clamp(min=1)))


def evaluated_reply(message: Any, found: list[dict[str, float]]) -> Any:
    """The reply to an order to evaluate: the means over examples of what was measured (``eval_loss`` and so on)."""
    counts = torch.tensor([each["examples"] for each in found], dtype=torch.float64)
    metrics: dict[str, Any] = {COUNT: int(counts.sum())}
    for name in sorted({name for each in found for name in each if name != "examples"}):
        values = torch.tensor([each.get(name, 0.0) for each in found], dtype=torch.float64)
        metrics[f"eval_{name}"] = float((values * counts).sum() / counts.sum().clamp(min=1))
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


def refused_reply(message: Any, reason: str) -> Any:
    """The reply of a client whose training came to nothing."""
    return Message(Error(_REFUSED, reason), reply_to=message)
