"""FastFed: federated optimisation simulated fast."""

from . import clients, data, exchange, kernels, methods, models, plan, schedules, servers, train
from ._version import __version__
from .packing import Packing
from .record import History
from .simulation import Simulation

__all__ = [
    "History",
    "Packing",
    "Simulation",
    "__version__",
    "clients",
    "data",
    "exchange",
    "kernels",
    "methods",
    "models",
    "plan",
    "schedules",
    "servers",
    "train",
]
