"""FastFed: federated optimisation simulated fast.

What is named here is imported when it is first used: torch takes seconds, and `fastfed --help` needs none of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from . import waiting  # first: torch loads OpenMP, which is told once
from ._version import __version__

# isort: split
if TYPE_CHECKING:
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
        loggers,
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
    from .abi import get_include, get_library
    from .fine_tune import FineTune
    from .packing import Packing
    from .record.history import History
    from .simulation import Simulation

__all__ = [
    "FineTune",
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
    "loggers",
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

_HOMES = {  # of what is no module itself
    "FineTune": "fine_tune",
    "History": "record.history",
    "Packing": "packing",
    "Simulation": "simulation",
    "get_include": "abi",
    "get_library": "abi",
}

if not TYPE_CHECKING:  # where types are checked, a name that is not there is an error

    def __getattr__(name: str) -> object:
        if name in _HOMES:
            found = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
        elif name in __all__:
            found = importlib.import_module(f".{name}", __name__)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
