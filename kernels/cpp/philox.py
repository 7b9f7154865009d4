"""Random numbers and permutations."""

from fastfed._core import normal, permutation, uniform

__all__ = ["normal", "permutation", "uniform"]
