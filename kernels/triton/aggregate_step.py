"""Weighted sum and server step in one pass: the sum lives in registers only.

The device engine's sums are such deltas, too: a few lanes that count 1 each, in a layout that need not be the model's.
"""


# mypy: disable-error-code="no-untyped-def"

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from ..table import ServerNumbers, ServerRule
from .launch import launch
from .server_step import Moments, apply_rule, compiled_in
from .tiles import WARP, WIDE
from .vectors import place
from .weighted_sum import summing_blocks, weighted


@triton.jit(do_not_specialize=["clients"])
def _aggregate_step(
    x,
    deltas,
    weights,
    places,
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
    # A delta's elements are read side by side; those of the model, which are fewer, where they are.
    there = at if places is None else tl.load(places + at, mask=mask, other=0)
    apply_rule(x, delta, moments, scalars, there, mask, FORMULA, OF_DELTA)


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
    _launch(rule, x, deltas, weights, None, Moments(m, v, vmax), n, summing_blocks(deltas.shape[1]))


def step_along_lanes(
    rule: ServerRule, x: Tensor, lanes: Tensor, places: Tensor | None, moments: Moments, n: ServerNumbers
) -> None:
    """A server step along the sum of `lanes` (lanes, d), one after another: x (d,) and moments in place.

    `places` (d,) int32, each once: where a lane's elements are in x; None if they are at the same places. Lanes that
    began at 0 hold no -0, so that it changes no bit that their sum begins at 0, too.
    """
    options = _lane_blocks(len(lanes), x.numel(), moved=places is not None)
    _launch(rule, x, lanes, None, places, moments, n, options)


def _lane_blocks(lanes: int, size: int, moved: bool) -> dict[str, Any]:
    """As of a sum over clients, with all lanes on their way at once where a thread can. Numbers that are elsewhere in
    the model are one thread's each: wide accesses would find no neighbours there, and addresses take registers."""
    options = summing_blocks(size)
    if moved and not WIDE:
        options |= {"BLOCK": options["warps"] * WARP, "AHEAD": lanes}
    return {**options, "AHEAD": min(options["AHEAD"], lanes)}


def _launch(
    rule: ServerRule,
    x: Tensor,
    deltas: Tensor,
    weights: Tensor | None,
    places: Tensor | None,
    moments: Moments,
    n: ServerNumbers,
    options: dict[str, Any],
) -> None:
    clients, d = deltas.shape
    args = (x, deltas, weights, places, moments, n.scalars, clients, d)
    launch(_aggregate_step, -(-d // options["BLOCK"]), x, *args, **compiled_in(rule, n), **options)
