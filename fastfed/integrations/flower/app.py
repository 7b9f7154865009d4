"""A Flower client app whose node has many clients, which train in one call of FastFed's engine."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor

from ..local import LocalTraining
from . import messages as flower_messages
from .host import ClientApp, Context, Message

_MADE: dict[str, LocalTraining] = {}  # by app: Flower makes an app anew for every message, an engine is made once
_MAKING = Lock()


def client_app(make: Callable[[], LocalTraining]) -> ClientApp:
    """A `ClientApp` of Flower whose nodes train and evaluate the clients of ``make()``.

    Node p of P (Flower's ``partition-id`` and ``num-partitions``) has the clients p, p + P, p + 2 P, ... of the
    federation; with as many nodes as clients, one each. It trains all of them in one call and replies with their mean
    over examples. `make` is called once in every process that runs nodes: what it returns need not be sent to them.
    """
    if not callable(make):
        raise TypeError(f"make: must be a function that returns a LocalTraining, got {make!r}")
    app, name = ClientApp(), uuid4().hex

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return _train(_made(name, make), message, context)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return _evaluate(_made(name, make), message, context)

    return app


def _made(name: str, make: Callable[[], LocalTraining]) -> LocalTraining:
    with _MAKING:
        if name not in _MADE:
            made = make()
            if not isinstance(made, LocalTraining):
                raise TypeError(f"make: must return a fastfed.integrations.LocalTraining, got {made!r}")
            _MADE[name] = made
        return _MADE[name]


def _train(training: LocalTraining, message: Any, context: Any) -> Any:
    _, record = flower_messages.arrays_of(message)
    start = _packed(training, record)
    outcome = training.train(start, _clients_of(context, len(training)), flower_messages.settings_of(message))
    return flower_messages.mean_reply(message, record, start, outcome, training.packing)


def _evaluate(training: LocalTraining, message: Any, context: Any) -> Any:
    _, record = flower_messages.arrays_of(message)
    found = training.evaluate(_packed(training, record), _clients_of(context, len(training)))
    return flower_messages.evaluated_reply(message, found)


def _packed(training: LocalTraining, record: Any) -> Tensor:
    x = training.packing.zeros()
    flower_messages.pack(record, training.packing, x)
    return x


def _clients_of(context: Any, clients: int) -> Tensor:
    """The clients of this node, (n,) int64."""
    config = context.node_config
    for key in ("partition-id", "num-partitions"):
        if key not in config:
            raise ValueError(f"node_config: lacks {key!r}, which says which clients are this node's")
    place, nodes = int(config["partition-id"]), int(config["num-partitions"])
    if not 0 <= place < min(nodes, clients):
        raise ValueError(f"node_config: node {place} of {nodes} has none of the {clients} clients")
    return torch.arange(place, clients, nodes)
