"""Weighted sum and server step in one pass."""

from __future__ import annotations

from torch import Tensor

from fastfed import _core

from ..table import ServerNumbers, ServerRule
from .server_step import FORMULAS


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
    _core.aggregate_step(FORMULAS[rule.formula], x, deltas, weights, m, v, vmax, n)
