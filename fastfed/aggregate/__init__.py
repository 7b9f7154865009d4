"""The aggregate room: from the clients' deltas to the one vector that the server steps along.

It is a chain of stages (``chain.py``): divide by steps, encode, clip, reduce, add noise. `Mean` is the usual reduction;
`Median`, `TrimmedMean`, `Krum`, `GeometricMedian` and `NormBounded` withstand clients that send anything. Any object
with a method `reduce` is one (`Reduction`).
"""

from .distances import GeometricMedian, Krum, NormBounded
from .reduce import Mean, Median, Reduction, TrimmedMean
from .result import Aggregate

__all__ = [
    "Aggregate",
    "GeometricMedian",
    "Krum",
    "Mean",
    "Median",
    "NormBounded",
    "Reduction",
    "TrimmedMean",
]
