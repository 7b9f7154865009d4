"""Flower's own names, in one place: what this package takes from it, or what to install."""

from __future__ import annotations

from ...extras import needed

_strategies = needed("flwr.serverapp.strategy", extra="flower", by="fastfed.integrations.flower")

from flwr.app import (  # noqa: E402
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.common import log  # noqa: E402
from flwr.serverapp import Grid  # noqa: E402
from flwr.serverapp.exception import AggregationError  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402

_SERVER = 1  # what Flower calls the node, the run and the task where it needs some


def be_somebody() -> None:
    """Flower's messages say who sends them. Its engines tell a process who it is; where none has, it is the server."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:
        return  # a version whose messages are told when they are sent
    for name in ("task_id", "run_id", "node_id"):
        try:
            getattr(TaskIdentity, name)
        except RuntimeError:
            setattr(TaskIdentity, name, _SERVER)


__all__ = [
    "AggregationError",
    "Array",
    "ArrayRecord",
    "ClientApp",
    "ConfigRecord",
    "Context",
    "Error",
    "FedAvg",
    "Grid",
    "Message",
    "MessageType",
    "MetricRecord",
    "RecordDict",
    "be_somebody",
    "log",
]
