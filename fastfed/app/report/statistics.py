"""Means over seeds and their 95% intervals by Student's t, without a statistics package."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Estimate:
    """A mean over `n` seeds; `half` is half the width of its 95% interval, None for a single seed."""

    mean: float
    half: float | None
    n: int


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of the values, which must not be empty, with its 95% interval."""
    n = len(values)
    mean = math.fsum(values) / n
    if n == 1:
        return Estimate(mean, None, 1)
    return Estimate(mean, t_quantile(n - 1) * math.sqrt(_variance(values, mean) / n), n)


def clearly_apart(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether Welch's 95% interval of the difference of two means leaves zero out; with one seed nobody knows: True."""
    if min(len(a), len(b)) < 2:
        return True
    means = math.fsum(a) / len(a), math.fsum(b) / len(b)
    parts = _variance(a, means[0]) / len(a), _variance(b, means[1]) / len(b)
    total = sum(parts)
    if total == 0:
        return means[0] != means[1]
    freedom = total**2 / (parts[0] ** 2 / (len(a) - 1) + parts[1] ** 2 / (len(b) - 1))
    return abs(means[0] - means[1]) > t_quantile(max(1, math.floor(freedom))) * math.sqrt(total)


@cache
def t_quantile(freedom: int, level: float = 0.95) -> float:
    """t such that Student's variable with that many degrees of freedom lies in [-t, t] with probability `level`."""
    low, high = 0.0, math.pi / 2
    for _ in range(80):  # halvings: to the last bit
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < level else (low, middle)
    return math.tan(low) * math.sqrt(freedom)


def _within(angle: float, freedom: int) -> float:
    """P(|T| <= sqrt(freedom) tan(angle)): a finite sum, as the degrees of freedom are whole."""
    cosine = math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = 0.0
    for k in range(2 + odd, freedom + 1, 2):  # the terms' exponents are odd, or 0, 2, 4, ...
        total += term
        term *= cosine * cosine * (k - 1) / k
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total


def _variance(values: Sequence[float], mean: float) -> float:
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
