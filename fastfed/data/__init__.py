"""Data: the flat example store that every executor reads."""

from .store import Examples, Inputs, Pixels, Sparse

__all__ = ["Examples", "Inputs", "Pixels", "Sparse"]
