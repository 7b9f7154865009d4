"""The C++ backend: SIMD loops and threads, one call into ``fastfed._core`` per op."""

from .aggregate_step import aggregate_step
from .client_step import client_step
from .norms import clip, norms
from .philox import normal, permutation, shuffles, uniform
from .server_step import server_step
from .trimmed_mean import trimmed_mean
from .weighted_sum import weighted_sum

__all__ = [
    "aggregate_step",
    "client_step",
    "clip",
    "normal",
    "norms",
    "permutation",
    "server_step",
    "shuffles",
    "trimmed_mean",
    "uniform",
    "weighted_sum",
]
