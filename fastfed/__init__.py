"""FastFed: federated optimisation simulated fast."""

from . import waiting  # first: torch loads OpenMP, which is told once

# isort: split
from . import (
    aggregate,
    algorithms,
    clients,
    compression,
    data,
    exchange,
    fleet,
    hooks,
    kernels,
    methods,
    models,
    optim,
    plan,
    privacy,
    ranks,
    schedules,
    servers,
    timing,
    train,
    tune,
)
from ._version import __version__
from .abi import get_include, get_library
from .packing import Packing
from .record.history import History
from .simulation import Simulation

__all__ = [
    "History",
    "Packing",
    "Simulation",
    "__version__",
    "aggregate",
    "algorithms",
    "clients",
    "compression",
    "data",
    "exchange",
    "fleet",
    "get_include",
    "get_library",
    "hooks",
    "kernels",
    "methods",
    "models",
    "optim",
    "plan",
    "privacy",
    "ranks",
    "schedules",
    "servers",
    "timing",
    "train",
    "tune",
    "waiting",
]
