"""One server step in one pass."""


# mypy: disable-error-code="no-untyped-def"

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from ..table import ServerNumbers, ServerRule
from .compiled import device, rules
from .launch import launch
from .tiles import block_for, blocks_of
from .vectors import load, place, store


class Moments(NamedTuple):
    """The vectors that a server rule keeps; None where it keeps none."""

    m: Tensor | None
    v: Tensor | None
    vmax: Tensor | None


@device
def apply_rule(x, delta, moments, scalars, at, mask, FORMULA: tl.constexpr, OF_DELTA: tl.constexpr):
    """Moves the elements `at` of x and of the moments along `delta`, a block in registers."""
    m, v, vmax = load(moments.m, at, mask), load(moments.v, at, mask), load(moments.vmax, at, mask)
    start = tl.load(x + at, mask=mask)
    new, m, v, vmax = FORMULA(start, delta, m, v, vmax, scalars, OF_DELTA)
    store(x, at, new, mask)
    store(moments.m, at, m, mask)
    store(moments.v, at, v, mask)
    store(moments.vmax, at, vmax, mask)


@triton.jit
def _server_step(x, delta, moments, scalars, size, FORMULA: tl.constexpr, OF_DELTA: tl.constexpr, BLOCK: tl.constexpr):
    _, at, mask = place(size, BLOCK)
    apply_rule(x, load(delta, at, mask), moments, scalars, at, mask, FORMULA, OF_DELTA)


def compiled_in(rule: ServerRule, n: ServerNumbers) -> dict[str, Any]:
    """What of a rule and its numbers chooses a compiled variant."""
    return {"FORMULA": getattr(rules, f"server_{rule.formula}"), "OF_DELTA": n.of_delta}


def server_step(
    rule: ServerRule,
    x: Tensor,
    delta: Tensor,
    m: Tensor | None,
    v: Tensor | None,
    vmax: Tensor | None,
    n: ServerNumbers,
) -> None:
    d = x.numel()
    args = (x, delta, Moments(m, v, vmax), n.scalars, d)
    launch(_server_step, blocks_of(d), x, *args, **compiled_in(rule, n), BLOCK=block_for(d))
