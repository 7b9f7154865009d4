"""The weighted sum of deltas."""

from fastfed._core import weighted_sum

__all__ = ["weighted_sum"]
