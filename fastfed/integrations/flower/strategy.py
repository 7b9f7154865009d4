"""Any server of ``ff.servers`` as a Flower strategy: the average of the replies and the step in one pass over them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from logging import INFO
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...kernels import aggregate_step, server_state
from ...servers import Server
from . import arrays as flower_arrays
from .host import AggregationError, ArrayRecord, ConfigRecord, FedAvg, Grid, Message, MetricRecord, log

_STEPPED = (np.dtype(np.float32), np.dtype(np.float64))


class ServerStrategy(FedAvg):
    """Flower's `FedAvg` with another step of the server: `server`, of ``ff.servers``; `settings` are FedAvg's.

    Replies are models, as everywhere in Flower, and weigh by `weighted_by_key`. All float32 and float64 arrays of a
    record take the server's step, each in its own precision; other arrays (counters) become their weighted mean,
    rounded to their type. The moments of the server stay with the strategy from round to round; `tensors` and `load`
    save them.
    """

    def __init__(self, server: Server, **settings: Any) -> None:
        if not isinstance(server, Server):
            raise TypeError(f"server: must be one of fastfed.servers, got {server!r}")
        super().__init__(**settings)
        self.server = server
        self._model: _Model | None = None
        self._sent: dict[str, bytes] = {}  # the bytes that hold what the model is

    def step_options(self, server_round: int) -> dict[str, Any]:
        """The options of the server's step in a round, counted from 1."""
        return self.server.step_options()

    def summary(self) -> None:
        """Logs the settings."""
        log(INFO, "\t├──> FastFed's server: %s", self.server)
        super().summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Notes the model that clients start from, and asks FedAvg whom to send it."""
        self._take(arrays)
        messages: Iterable[Message] = super().configure_train(server_round, arrays, config, grid)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The model after the server's step along the weighted mean of what the replies changed, and their metrics."""
        valid, _ = self._check_and_log_replies(replies, is_train=True)
        if not valid:
            return None, None
        if self._model is None:
            raise AggregationError(reason="configure_train has not been called: no model to step from.")
        contents = [message.content for message in valid]
        self._model.step([_only_record(content) for content in contents], self._weights(contents), server_round)
        record = self._model.record()
        self._sent = _bytes_of(record)
        return record, self.train_metrics_aggr_fn(contents, self.weighted_by_key)

    def tensors(self) -> dict[str, Tensor]:
        """The server's moments as ``<moment>.<array>``, and its count of steps where it has one; empty before the
        first round. The model itself is the record that every round returns."""
        return {} if self._model is None else self._model.tensors()

    def load(self, arrays: ArrayRecord, tensors: dict[str, Tensor]) -> None:
        """Takes over what `tensors` gave, for the model of `arrays`."""
        model = _Model(self, {name: flower_arrays.read(array) for name, array in arrays.items()})
        model.load(tensors)
        self._model, self._sent = model, _bytes_of(arrays)

    def _take(self, arrays: ArrayRecord) -> None:
        given = _bytes_of(arrays)
        if list(given) == list(self._sent) and all(given[name] is self._sent[name] for name in given):
            return  # what the last round returned, which the model is
        numbers = {name: flower_arrays.read(array) for name, array in arrays.items()}
        if self._model is None or not self._model.fits(numbers):
            self._model = _Model(self, numbers)
        else:
            self._model.set(numbers)
        self._sent = given

    def _weights(self, contents: list[Any]) -> list[float]:
        """What each reply counts, summing to 1."""
        given = [float(next(iter(content.metric_records.values()))[self.weighted_by_key]) for content in contents]
        total = sum(given)
        if not (math.isfinite(total) and total > 0):
            raise AggregationError(
                reason=f"The replies' {self.weighted_by_key!r} must sum to a finite number > 0, got {total}."
            )
        return [weight / total for weight in given]


class _Model:
    """A strategy's model in parts, with the server's state: arrays of one precision step together."""

    def __init__(self, strategy: ServerStrategy, numbers: dict[str, np.ndarray]) -> None:
        self._strategy = strategy
        self._numbers = {name: array.copy() for name, array in numbers.items()}  # in the order of the record
        for name, array in self._numbers.items():
            if array.dtype not in _STEPPED and array.dtype.kind not in "iub":
                raise AggregationError(
                    reason=f"Array {name!r} is {array.dtype}; FastFed steps float32 and float64 and averages integers."
                )
        self._parts = {
            dtype: [name for name, array in self._numbers.items() if array.dtype == dtype and array.size]
            for dtype in _STEPPED
        }
        self._states = {dtype: self._fresh_state(names) for dtype, names in self._parts.items() if names}

    def _fresh_state(self, names: list[str]) -> dict[str, Any]:
        server = self._strategy.server
        return server_state(server.rule, [self._numbers[name] for name in names], **server.state_options())

    def fits(self, numbers: dict[str, np.ndarray]) -> bool:
        """Whether these are arrays of the same names, shapes and types."""
        held = {name: (array.shape, array.dtype) for name, array in self._numbers.items()}
        return held == {name: (array.shape, array.dtype) for name, array in numbers.items()}

    def set(self, numbers: dict[str, np.ndarray]) -> None:
        """Goes on from these numbers, with the moments that are there."""
        for name, array in numbers.items():
            np.copyto(self._numbers[name], array)

    def record(self) -> ArrayRecord:
        """A copy of the model."""
        return ArrayRecord({name: flower_arrays.write(array) for name, array in self._numbers.items()})

    def step(self, records: list[Any], weights: list[float], server_round: int) -> None:
        """One step along the weighted mean of what `records` are beyond the model."""
        for record in records:
            self._check(record)
        options = self._strategy.step_options(server_round)
        for dtype, state in self._states.items():
            names = self._parts[dtype]
            clients: list[Any] = [[self._read(record, name) for name in names] for record in records]
            x, shares = [self._numbers[name] for name in names], torch.tensor(weights, dtype=torch.float64)
            aggregate_step(self._strategy.server.rule, x, clients, shares, state, subtract=True, **options)
        for name, array in self._numbers.items():
            if array.dtype not in _STEPPED:
                mean = sum(share * self._read(record, name) for share, record in zip(weights, records, strict=True))
                np.copyto(array, np.rint(mean), casting="unsafe")

    def _read(self, record: Any, name: str) -> np.ndarray:
        found = flower_arrays.read(record[name])
        return found.astype(self._numbers[name].dtype, copy=False)

    def _check(self, record: Any) -> None:
        """A reply has the model's arrays, in their shapes."""
        if set(record) != set(self._numbers):
            lacking, foreign = set(self._numbers) - set(record), set(record) - set(self._numbers)
            named = f"lacks {min(lacking)!r}" if lacking else f"has {min(foreign)!r} besides"
            raise AggregationError(reason=f"A reply {named}: its arrays must be those of the model.")
        for name, array in self._numbers.items():
            if tuple(record[name].shape) != array.shape:
                shapes = f"{tuple(record[name].shape)} in a reply and {array.shape} in the model"
                raise AggregationError(reason=f"Array {name!r} has shape {shapes}.")

    def tensors(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for dtype, state in self._states.items():
            for moment, held in state.items():
                if moment == "step":
                    found["step"] = held
                else:
                    found |= {f"{moment}.{name}": one for name, one in zip(self._parts[dtype], held, strict=True)}
        return found

    def load(self, tensors: dict[str, Tensor]) -> None:
        own = self.tensors()
        if set(own) != set(tensors):
            raise ValueError(f"tensors: must be {', '.join(own)}, got {', '.join(tensors)}")
        for name, held in own.items():
            if held.shape != tensors[name].shape:
                raise ValueError(f"tensors[{name!r}]: must have shape {tuple(held.shape)}")
            held.copy_(tensors[name])


def _bytes_of(record: Any) -> dict[str, bytes]:
    return {name: array.data for name, array in record.items()}


def _only_record(content: Any) -> Any:
    """The record of arrays of a reply; FedAvg has checked that there is one."""
    return next(iter(content.array_records.values()))
