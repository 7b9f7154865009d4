"""The mean of deltas without the extremes of every coordinate."""

from fastfed._core import trimmed_mean

__all__ = ["trimmed_mean"]
