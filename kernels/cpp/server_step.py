"""One server step."""

from __future__ import annotations

from torch import Tensor

from fastfed import _core

from .. import extension
from ..table import ServerNumbers, ServerRule

FORMULAS = extension.numbers("server_formulas")


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
