"""Whether two contenders train the same thing: a benchmark of wrong results is worthless.

The first local step must agree closely: other batches, another loss or learning rate would show. Over more steps
rounding grows: where it turns one ReLU or one pooling window the other way, that client's later gradients move with it
(seen on W3 between float32 and float64: 4e-3 of a client's delta).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...packing import Packing

ROUNDINGS = 4  # how often local steps round a weight, by estimate


class Limits(NamedTuple):
    """The most that rounding explains, relative: of the whole aggregate, and of any one parameter."""

    whole: float
    parameter: float


FIRST_STEP, ALL_STEPS = Limits(1e-3, 2e-2), Limits(1e-2, 5e-2)


class Disagreement(RuntimeError):
    """Two aggregates are further apart than rounding explains."""


def compare(packing: Packing, start: Tensor, ours: Tensor, theirs: Tensor, limits: Limits) -> float:
    """The largest relative difference of any parameter between two aggregates (d,), both trained from `start` (d,).

    A parameter's difference is relative to its change in `theirs`, but no change counts as smaller than what float32
    resolves in its weights: a delta is the difference of such weights, and has lost the rest.
    """
    whole = _relative(ours, theirs, 0.0)
    if not whole <= limits.whole:  # NaN included
        raise Disagreement(f"differ by {whole:.2g} of their norm (at most {limits.whole:g} is rounding)")
    x, a, b = packing.views(start), packing.views(ours), packing.views(theirs)
    unit = ROUNDINGS * torch.finfo(start.dtype).eps / limits.parameter
    found = {
        slot.name: _relative(a[slot.name], b[slot.name], unit * float(x[slot.name].norm())) for slot in packing.slots
    }
    where = max(found, key=found.__getitem__)
    if found[where] > limits.parameter:
        raise Disagreement(
            f"differ by {found[where]:.2g} in parameter {where!r} (relative; at most {limits.parameter:g} is rounding)"
        )
    return found[where]


def _relative(a: Tensor, b: Tensor, least: float) -> float:
    """|a - b| over |b|, or over `least` where that is more; 0 if they are equal."""
    apart = float((a - b).norm())
    return 0.0 if apart == 0 else apart / max(float(b.norm()), least, torch.finfo(b.dtype).tiny)
