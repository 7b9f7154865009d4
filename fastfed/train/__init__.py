"""The train room: a round's work in, one weighted sum of deltas and a few scalars per client out."""

from .batches import steps_for
from .contrast import Contrast
from .executors import Executor, make
from .predict import measure
from .total import Total
from .work import DeltaPolicy, Outcome, RoundWork

__all__ = ["Contrast", "DeltaPolicy", "Executor", "Outcome", "RoundWork", "Total", "make", "measure", "steps_for"]
