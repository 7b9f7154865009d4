"""The train room: a round's work in, one weighted sum of deltas and a few scalars per client out."""

from .work import DeltaPolicy, Outcome, RoundWork

__all__ = ["DeltaPolicy", "Outcome", "RoundWork"]
