"""One server step."""

from __future__ import annotations

from torch import Tensor

from fastfed import _core

from ..table import ServerNumbers, ServerRule

FORMULAS = {"sgd": 0, "momentum": 1, "adam": 2, "yogi": 3, "ams": 4}  # csrc/cpu/blocks.h: ServerFormula


def server_step(
    rule: ServerRule,
    x: Tensor,
    delta: Tensor,
    m: Tensor | None,
    v: Tensor | None,
    vmax: Tensor | None,
    n: ServerNumbers,
) -> None:
    _core.server_step(FORMULAS[rule.formula], x, delta, m, v, vmax, n)
