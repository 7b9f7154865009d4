"""Fused optimizer kernels over packed buffers, on five backends that agree.

import fastfed as ff
state = ff.kernels.server_state("yogi", x, tau=1e-3)
ff.kernels.server_step("yogi", x, delta, state, lr=0.01, tau=1e-3)
"""

from .extension import prepare
from .ops import (
    aggregate_step,
    client_state,
    client_step,
    clip,
    normal,
    norms,
    permutation,
    server_state,
    server_step,
    shuffles,
    trimmed_mean,
    uniform,
    weighted_sum,
)
from .registry import BackendUnavailable, backends
from .streams import Stream
from .table import CLIENT_RULES, SERVER_RULES

prepare()

__all__ = [
    "CLIENT_RULES",
    "SERVER_RULES",
    "BackendUnavailable",
    "Stream",
    "aggregate_step",
    "backends",
    "client_state",
    "client_step",
    "clip",
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
