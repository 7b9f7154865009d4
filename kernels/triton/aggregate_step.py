"""Weighted sum and server step in one pass: the sum lives in registers only."""


# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl
from torch import Tensor

from ..table import ServerNumbers, ServerRule
from .launch import launch
from .server_step import Moments, apply_rule, compiled_in
from .vectors import place
from .weighted_sum import summing_blocks, weighted


@triton.jit(do_not_specialize=["clients"])
def _aggregate_step(
    x,
    deltas,
    weights,
    moments,
    scalars,
    clients,
    size,
    FORMULA: tl.constexpr,
    OF_DELTA: tl.constexpr,
    BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
):
    _, at, mask = place(size, BLOCK)
    delta = weighted(deltas, weights, clients, size, at, mask, BLOCK, AHEAD)
    apply_rule(x, delta, moments, scalars, at, mask, FORMULA, OF_DELTA)


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
    clients, d = deltas.shape
    args = (x, deltas, weights, Moments(m, v, vmax), n.scalars, clients, d)
    options = summing_blocks(d)
    launch(_aggregate_step, -(-d // options["BLOCK"]), x, *args, **compiled_in(rule, n), **options)
