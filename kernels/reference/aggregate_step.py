"""Weighted sum and server step, one after the other (the fused backends never hold the sum)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..table import ServerNumbers, ServerRule
from .server_step import server_step
from .weighted_sum import weighted_sum


def aggregate_step(
    rule: ServerRule,
    x: Tensor,
    deltas: Tensor,
    weights: Tensor,
    m: Tensor | None,
    v: Tensor | None,
    vmax: Tensor | None,
    n: ServerNumbers,
) -> None:
    delta = torch.empty_like(x)
    weighted_sum(deltas, weights, delta)
    server_step(rule, x, delta, m, v, vmax, n)
