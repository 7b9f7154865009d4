"""Activations and their slopes: written out, because the interpreter and the compiler share no library of them.

Every function passes NaN on. Which curve is which number stands in ``layers.py``.
"""

# mypy: disable-error-code="no-untyped-def"

import triton.language as tl

from ..compiled import device


@device
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(tl.where(x < -80.0, 80.0, -x)))  # beyond, nothing but an overflow would come of it


@device
def tanh(x):
    """Near 0 by a polynomial, where the difference of exponentials would cancel."""
    s = x * x
    p = -0.0056973346874
    p = p * s + 0.020632497587
    p = p * s - 0.053737781219
    p = p * s + 0.133314201479
    p = p * s - 0.333332811745
    near = x + x * (s * p)
    size = tl.abs(x)
    far = 1.0 - 2.0 / (tl.exp(2.0 * tl.where(size > 40.0, 40.0, size)) + 1.0)
    return tl.where(size < 0.625, near, tl.where(x < 0, -far, far))


@device
def _bell(x):
    """How much of a standard normal distribution lies below x."""
    return 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))


@device
def _tanh_bell(x):
    """Its approximation by tanh, and the slope of that."""
    t = tanh(0.7978845608028654 * (x + 0.044715 * (x * x * x)))
    slope = 0.5 * (1.0 - t * t) * (0.7978845608028654 * (1.0 + 0.134145 * (x * x)))
    return 0.5 * (1.0 + t), slope


@device
def activated(x, CURVE: tl.constexpr):
    """The curve at x."""
    if CURVE == 1:
        return tl.where(x <= 0, 0.0, x)
    elif CURVE == 2:
        return sigmoid(x)
    elif CURVE == 3:
        return tanh(x)
    elif CURVE == 4:
        return x * sigmoid(x)
    elif CURVE == 5:
        return x * _bell(x)
    elif CURVE == 6:
        bell, _ = _tanh_bell(x)
        return x * bell
    else:
        return x


@device
def gated(d, y, CURVE: tl.constexpr):
    """The gradient of a curve's input, from that of its output, `d`, and the output `y` itself."""
    if CURVE == 1:
        return tl.where(y <= 0, 0.0, d)
    elif CURVE == 2:
        return d * (1.0 - y) * y
    elif CURVE == 3:
        return d * (1.0 - y * y)
    else:
        return d


@device
def sloped(d, x, CURVE: tl.constexpr):
    """The gradient of a curve's input x, from that of its output, `d`."""
    if CURVE == 4:
        s = sigmoid(x)
        return d * (s * (1.0 + x * (1.0 - s)))
    elif CURVE == 5:
        return d * (_bell(x) + x * (0.3989422804014327 * tl.exp(-0.5 * x * x)))
    elif CURVE == 6:
        bell, slope = _tanh_bell(x)
        return d * (bell + x * slope)
    else:
        return gated(d, activated(x, CURVE), CURVE)
