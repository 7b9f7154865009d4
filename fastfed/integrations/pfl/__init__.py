"""FastFed in pfl: its servers as central optimizers, its engine as the local training of an algorithm (docs/pfl.md)."""

from .algorithm import NativeAveraging
from .optimizer import CentralOptimizer

__all__ = ["CentralOptimizer", "NativeAveraging"]
