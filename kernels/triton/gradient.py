"""What the passes of a client step share: a client's coefficients, its corrected gradient and its direction."""


# mypy: disable-error-code="no-untyped-def"

from typing import Any, NamedTuple

import triton.language as tl
from torch import Tensor

from .. import passes
from ..client_call import ClientCall
from .compiled import device, rules

COEFFICIENTS = tl.constexpr(passes.COEFFICIENTS)
ACTIVE = tl.constexpr(passes.ACTIVE)
SCALE = tl.constexpr(passes.SCALE)
REFRESH = tl.constexpr(passes.REFRESH)
KEEP = tl.constexpr(passes.KEEP)
STEP = tl.constexpr(passes.STEP)
ROOT_SCALE = tl.constexpr(passes.ROOT_SCALE)


class Gradient(NamedTuple):
    """The ingredients of ``rules.corrected_gradient`` besides x; None where absent. Stride 0: all share one row."""

    grad: Tensor
    anchor: Tensor | None
    anchor_stride: int
    correction: Tensor | None
    correction_stride: int
    weight_decay: float
    prox: float


def gradient_of(call: ClientCall) -> Gradient:
    """The gradient of a call as its kernels take it."""
    d = call.x.shape[1]
    strides = [0 if t is None or t.shape[0] == 1 else d for t in (call.anchor, call.correction)]
    n = call.numbers
    return Gradient(call.grad, call.anchor, strides[0], call.correction, strides[1], n.weight_decay, n.prox)


def gradient_needs_x(call: ClientCall) -> bool:
    """Whether a pass that only measures the gradient has to read x."""
    return call.numbers.weight_decay > 0 or call.numbers.prox > 0


def formula_of(call: ClientCall) -> Any:
    """The direction of a call's rule."""
    return getattr(rules, f"direction_{call.rule.formula}")


@device
def coefficient(coef, client, INDEX: tl.constexpr):
    return tl.load(coef + client * COEFFICIENTS + INDEX)


@device
def _shared(vector, client, stride, at, mask, absent):
    if vector is None:
        return absent
    else:
        return tl.load(vector + client * stride + at, mask=mask)


@device
def corrected(source, x, coef, client, size, at, mask):
    """The elements `at` of a client's gradient, x being the same elements of its model."""
    return correct(source, tl.load(source.grad + client * size + at, mask=mask), x, coef, client, at, mask)


@device
def correct(source, g, x, coef, client, at, mask):
    """What the rule sees of the elements `at` of a raw gradient g."""
    anchor = _shared(source.anchor, client, source.anchor_stride, at, mask, x)
    correction = _shared(source.correction, client, source.correction_stride, at, mask, 0.0)
    scale = coefficient(coef, client, SCALE)
    return rules.corrected_gradient(g, x, anchor, correction, source.weight_decay, source.prox, scale)


@device
def refreshed(v, g, n, refresh):
    """The second moment of this step: v, or where it is refreshed, v with the squares of g."""
    return tl.where(refresh != 0, rules.second_moment(v, g * g, n.beta2, n.gain2), v)


@device
def direction(g, m, v, n, coef, client, FORMULA: tl.constexpr):
    """(direction, m) of the rule."""
    return FORMULA(g, m, v, n, coefficient(coef, client, ROOT_SCALE), coefficient(coef, client, KEEP))
