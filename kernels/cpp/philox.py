"""Random numbers and permutations."""

from fastfed._core import normal, permutation, shuffles, uniform

__all__ = ["normal", "permutation", "shuffles", "uniform"]
