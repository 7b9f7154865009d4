"""Metrics of the user's own: functions of a model's outputs and the targets, evaluated beside the loss."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

Metric = Callable[[Tensor, Tensor], Any]
Metrics = Mapping[str, Metric]


def check_metrics(metrics: Metrics | None, built_in: str) -> None:
    """Refuses what is no metric, and names that could not be a column's, or are taken: by the loss, and by the metric
    `built_in` that goes with it."""
    if metrics is None:
        return
    if not isinstance(metrics, Mapping):
        raise TypeError(f'metrics: must be functions by name, as in {{"f1": f1}}, got {metrics!r}')
    for name, function in metrics.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"metrics: a name must be a word, as a column of the history has it, got {name!r}")
        if name in ("loss", built_in):
            raise ValueError(f"metrics: {name!r} is measured already; give yours another name")
        if not callable(function):
            raise TypeError(f"metrics: {name!r} must be a function of outputs and targets, got {function!r}")


def measured(metrics: Metrics, outputs: Tensor, targets: Tensor) -> dict[str, float]:
    """What the metrics say of the outputs (n, ...) of all examples of a set, and of their targets, on the host."""
    return {name: _number(name, function, outputs, targets) for name, function in metrics.items()}


def _number(name: str, function: Metric, outputs: Tensor, targets: Tensor) -> float:
    try:
        found = function(outputs, targets)
    except Exception as error:
        shapes = f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)}"
        raise ValueError(f"metrics: {name!r} raised {type(error).__name__}: {error} (for {shapes})") from error
    if isinstance(found, Tensor) and found.numel() == 1:
        return float(found)
    if isinstance(found, numbers.Real):
        return float(found)
    raise TypeError(f"metrics: {name!r} must give a number, got {found!r}")
