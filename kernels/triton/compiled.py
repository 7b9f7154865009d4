"""The rules and the random numbers with Triton's primitives bound to the names they leave free."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from typing import Any

import triton
import triton.language as tl

from .. import bind
from ..registry import interpreting


def device(function):
    """A function that kernels call.

    The interpreter runs plain functions just as well, and much faster: it patches the whole language again at every
    call of a wrapped one (2 ms).
    """
    return function if interpreting() else triton.jit(function)


def _of_language(function: Any) -> Any:
    """A function of Triton's own library, unwrapped in the interpreter for the same reason."""
    return function.fn if interpreting() else function


largest = _of_language(tl.max)
total = _of_language(tl.sum)


def _constant(value: float) -> Any:
    """A number that functions may read as a global: compiled ones want it marked, interpreted ones plain."""
    return value if interpreting() else tl.constexpr(value)


@device
def _sqrt(x):
    return tl.sqrt_rn(x)  # the correctly rounded one, as on every other backend


@device
def _maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@device
def _minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@device
def _where(condition, a, b):
    return tl.where(condition, a, b)


@device
def _sign(x):
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


rules = bind.load(
    "rules",
    "triton",
    {"tl": tl, "sqrt": _sqrt, "maximum": _maximum, "minimum": _minimum, "where": _where, "sign": _sign},
    wrap=device,
)


@device
def _wide_multiply(a, b):
    return tl.umulhi(a, b), a * b


@device
def _to_float(word):
    return word.to(tl.float32)


@device
def _log(x):
    return tl.log(x)


@device
def _cos(x):
    return tl.cos(x)


@device
def _sin(x):
    return tl.sin(x)


philox = bind.load(
    "philox",
    "triton",
    {
        "tl": tl,
        "wide_multiply": _wide_multiply,
        "to_float": _to_float,
        "log": _log,
        "sqrt": _sqrt,
        "cos": _cos,
        "sin": _sin,
        "UNIT24": _constant(2.0**-24),
        "UNIT32": _constant(2.0**-32),
        "HALF": _constant(0.5),
        "MINUS_TWO": _constant(-2.0),
        "TWO_PI": _constant(2.0 * math.pi),
    },
    wrap=device,
)
