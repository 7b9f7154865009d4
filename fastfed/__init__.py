"""FastFed: federated optimisation simulated fast."""

from . import kernels
from ._version import __version__
from .packing import Packing

__all__ = ["Packing", "__version__", "kernels"]
