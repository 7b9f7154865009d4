"""From trained models to lanes of their weighted sum: no delta x - start is ever written to memory.

Models are read twice: once for their norms, which decide what a client counts, and once to be added up.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..compiled import device, largest, rules, total
from ..launch import launch
from ..tiles import block_for, blocks_of
from ..vectors import load, place, store, sum_of_squares
from ..weighted_sum import TAIL, summing_blocks

_PARTS = 256  # partial sums of squares added up side by side

# ---- what a client counts -------------------------------------------------------------------------------------------


@triton.jit
def _delta_squares(x, start, partials, size, OWN: tl.constexpr, BLOCK: tl.constexpr):
    client, at, mask = place(size, BLOCK)
    here = client * size + at
    delta = load(x, here, mask) - load(start, here if OWN else at, mask)
    tl.store(partials + tl.program_id(0), sum_of_squares(delta, mask))


@triton.jit
def _weigh(partials, shares, limits, norms, weights, parts, PARTS: tl.constexpr):
    """A client's norm, and its weight: its share, scaled down to its limit; 0 if the norm is not finite."""
    client = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, PARTS)
    sums = tl.full((PARTS,), 0.0, tl.float64)
    for first in range(0, parts, PARTS):
        sums += tl.load(partials + client * parts + first + at, mask=first + at < parts, other=0.0)
    norm = tl.sqrt(total(sums))  # in float64 the correctly rounded one
    weight = tl.load(shares + client)
    if limits is not None:
        weight = weight * rules.clip_scale(norm, tl.load(limits + client))
    tl.store(norms + client, norm)
    tl.store(weights + client, tl.where(norm < float("inf"), weight, 0.0).to(tl.float32))  # NaN is below nothing


def squares(x: Tensor, start: Tensor, out: Tensor) -> None:
    """Sums of squares of x - start, in parts: x (clients, d), start (d,) or (clients, d), `out` (clients,
    parts) float64. How many parts there are, and of which elements, depends on d alone."""
    clients, d = x.shape
    own = start.dim() == 2
    launch(_delta_squares, clients * blocks_of(d), x, x, start, out, d, OWN=own, BLOCK=block_for(d))


def weigh(
    x: Tensor, start: Tensor, shares: Tensor, limits: Tensor | None, norms: Tensor, known: Tensor | None = None
) -> Tensor:
    """The weights (clients,) float32 of the deltas of x (clients, d) in a sum: `shares` (clients,) float64, times what
    scales a delta down to the norm that `limits` (clients,) float64 allow it, and 0 where a delta is not finite.

    `norms` (clients,) float64 receives the deltas' norms. `known` (clients,) float64 are their squares, where training
    has found them already: x is then not read.
    """
    partials = known
    if partials is None:
        partials = torch.empty((len(x), blocks_of(x.shape[1])), dtype=torch.float64, device=x.device)
        squares(x, start, partials)
    clients, parts = len(x), partials.numel() // len(x)
    weights = torch.empty(clients, dtype=torch.float32, device=x.device)
    launch(_weigh, clients, x, partials, shares, limits, norms, weights, parts, PARTS=_PARTS)
    return weights


# ---- the sum --------------------------------------------------------------------------------------------------------


@device
def _with_deltas(
    sums, x, start, shared, weights, first, end, size, at, mask, COUNT: tl.constexpr, OWN: tl.constexpr
):  # fmt: skip
    """`sums` and the deltas of COUNT clients from `first` on, as far as they are before `end` and count: zeros that are
    added change nothing. What does not count is read all the same, as nobody waits for a weight before reading."""
    for ahead in tl.static_range(COUNT):
        client = first + ahead
        exists = client < end
        here = tl.cast(client, tl.int64) * size + at
        weight = tl.load(weights + client, mask=exists, other=0.0)
        found = tl.where(exists, mask, False)
        origin = load(start, here, found) if OWN else shared
        sums += tl.where(weight != 0, weight * (load(x, here, found) - origin), 0.0)
    return sums


@triton.jit(do_not_specialize=["clients", "run", "offset"])
def _fold_deltas(
    x, start, weights, sums, clients, run, offset, size,
    OWN: tl.constexpr, BLOCK: tl.constexpr, AHEAD: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    lane, at, mask = place(size, BLOCK)
    begin = tl.maximum(lane.to(tl.int32) * run - offset, 0)
    end = tl.minimum(lane.to(tl.int32) * run + run - offset, clients)
    whole = begin + (end - begin) // AHEAD * AHEAD
    shared = 0.0 if OWN else load(start, at, mask)
    so_far = load(sums, lane * size + at, mask)
    for first in range(begin, whole, AHEAD):
        so_far = _with_deltas(so_far, x, start, shared, weights, first, end, size, at, mask, AHEAD, OWN)
    for first in range(whole, end, REST):
        so_far = _with_deltas(so_far, x, start, shared, weights, first, end, size, at, mask, REST, OWN)
    store(sums, lane * size + at, so_far, mask)


def _folding_blocks(lanes: int, size: int, own: bool) -> dict[str, Any]:
    """As of a sum over clients; start models of their own are as many numbers on their way again."""
    options = summing_blocks(lanes * size)
    ahead = max(1, options["AHEAD"] // 2) if own else options["AHEAD"]
    return {**options, "AHEAD": ahead, "REST": min(TAIL.value, ahead)}


def fold(x: Tensor, start: Tensor, weights: Tensor, sums: Tensor, first: int, run: int) -> None:
    """Adds weights * (x - start) to lanes of a sum, client after client, without those of weight 0.

    x (clients, d), start (d,) or (clients, d), weights (clients,) float32, `sums` (lanes, d). A lane takes `run`
    clients one after another; the first one here has the number `first` in the first lane.
    """
    clients, d = x.shape
    begin, end = first // run, -(-(first + clients) // run)
    touched, own = sums[begin:end], start.dim() == 2
    options = _folding_blocks(len(touched), d, own)
    args = (x, start, weights, touched, clients, run, first - begin * run, d)
    launch(_fold_deltas, len(touched) * -(-d // options["BLOCK"]), x, *args, OWN=own, **options)


@triton.jit
def _join(sums, out, tops, size, LANES: tl.constexpr, BLOCK: tl.constexpr):
    _, at, mask = place(size, BLOCK)
    joined = load(sums, at, mask)
    for lane in tl.static_range(1, LANES):
        joined += load(sums, lane * size + at, mask)
    store(out, at, joined, mask)
    magnitude = tl.where(joined == joined, tl.abs(joined), float("inf"))
    tl.store(tops + tl.program_id(0), largest(tl.where(mask, magnitude, 0.0)))


def join(sums: Tensor) -> tuple[Tensor, Tensor]:
    """The sum (d,) of lanes (lanes, d), one after another, and the largest magnitude in it, () float32: infinite if one
    is not finite."""
    lanes, d = sums.shape
    out, tops = torch.empty_like(sums[0]), torch.empty(blocks_of(d), dtype=torch.float32, device=sums.device)
    launch(_join, blocks_of(d), sums, sums, out, tops, d, LANES=lanes, BLOCK=block_for(d))
    return out, tops.max()
