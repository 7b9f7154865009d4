"""The train room: a round's work in, one weighted sum of deltas and a few scalars per client out."""

from .contrast import Contrast
from .total import Total
from .work import DeltaPolicy, Outcome, RoundWork

__all__ = ["Contrast", "DeltaPolicy", "Outcome", "RoundWork", "Total"]
