"""One server step over whole tensors."""

from __future__ import annotations

from torch import Tensor

from ..table import ServerNumbers, ServerRule
from ..torch_rules import rules


def server_step(
    rule: ServerRule,
    x: Tensor,
    delta: Tensor,
    m: Tensor | None,
    v: Tensor | None,
    vmax: Tensor | None,
    n: ServerNumbers,
) -> None:
    formula = getattr(rules, f"server_{rule.formula}")
    zero = x.new_zeros(())
    old = [zero if t is None else t for t in (m, v, vmax)]
    new = formula(x, delta.to(x.dtype), *old, n.scalars, n.of_delta)
    for target, value in zip((x, m, v, vmax), new, strict=True):
        if target is not None:
            target.copy_(value)
