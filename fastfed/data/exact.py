"""Logarithm, exponential and cosine with the same bits on every machine, for numbers that decide who gets what.

The ones of numpy and of C libraries differ in the last bit between processors. These only add, multiply, divide and
scale by powers of two, which IEEE 754 rounds in one way; they are within a few units in the last place.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# ln 2 in two parts: whole multiples of the first are exact.
_LN2_HIGH = float.fromhex("0x1.62e42feep-1")
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_SQRT_HALF = math.sqrt(0.5)
_LOWEST = -745.0  # below it, exp is 0


def log(x: Floats) -> Floats:
    """Of numbers > 0, not subnormal."""
    mantissa, exponent = np.frexp(x)
    small = mantissa < _SQRT_HALF
    mantissa = np.where(small, 2 * mantissa, mantissa)  # in [sqrt(1/2), sqrt(2))
    whole = (exponent - small).astype(np.float64)
    t = (mantissa - 1) / (mantissa + 1)
    series = _polynomial(t * t, [1 / (2 * k + 1) for k in range(12)])  # of artanh(t) / t
    return whole * _LN2_HIGH + (whole * _LN2_LOW + 2 * t * series)


def exp(x: Floats) -> Floats:
    """Of numbers up to 709; -inf gives 0."""
    bounded = np.maximum(x, _LOWEST)
    whole = np.rint(bounded / (_LN2_HIGH + _LN2_LOW))
    rest = (bounded - whole * _LN2_HIGH) - whole * _LN2_LOW
    series = _polynomial(rest, [1 / math.factorial(k) for k in range(15)])
    return np.where(x < _LOWEST, 0.0, np.ldexp(series, whole.astype(np.int32)))


def cos_of_turns(u: Floats) -> Floats:
    """cos(2 pi u) for u in [0, 1]."""
    half = np.abs(u - 0.5)  # the cosine is symmetric about half a turn, where it is -1 ...
    quarter = np.minimum(half, 0.5 - half)  # ... and changes its sign about a quarter
    angle = 2 * math.pi * quarter
    series = _polynomial(angle * angle, [(-1) ** k / math.factorial(2 * k) for k in range(13)])
    return np.where(half <= 0.25, -series, series)


def _polynomial(x: Floats, coefficients: list[float]) -> Floats:
    """The sum of coefficients[k] * x**k (Horner)."""
    total: Any = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return np.asarray(total)
