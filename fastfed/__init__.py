"""FastFed: federated optimisation simulated fast."""

from . import clients, data, kernels, models, train
from ._version import __version__
from .packing import Packing

__all__ = ["Packing", "__version__", "clients", "data", "kernels", "models", "train"]
