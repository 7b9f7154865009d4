"""One server step: the aggregate of one client of weight one, which is exact and spares a second set of kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from ..table import ServerNumbers, ServerRule
from .aggregate_step import aggregate_step

_ONE = torch.ones(1, dtype=torch.float32)


def server_step(
    rule: ServerRule,
    x: Tensor,
    delta: Tensor,
    m: Tensor | None,
    v: Tensor | None,
    vmax: Tensor | None,
    n: ServerNumbers,
) -> None:
    aggregate_step(rule, x, delta[None], _ONE, m, v, vmax, n)
