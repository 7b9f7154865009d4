"""The ops: the one front door to every kernel. Each checks its arguments, picks a backend by device and hands over.

What an op mutates stands in its docstring; nothing is written before every check has passed. The rules, their options
and defaults stand in ``table.py``.
"""

from .client_state import client_state, cover_maxima
from .client_step import client_step
from .random import normal, permutation, shuffles, uniform
from .server import aggregate_step, lanes_step, server_state, server_step
from .sums import clip, norms, trimmed_mean, weighted_sum

__all__ = [
    "aggregate_step",
    "client_state",
    "client_step",
    "clip",
    "cover_maxima",
    "lanes_step",
    "normal",
    "norms",
    "permutation",
    "server_state",
    "server_step",
    "shuffles",
    "trimmed_mean",
    "uniform",
    "weighted_sum",
]
