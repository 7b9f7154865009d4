"""Checks of the arguments that partitions and made-up tasks share."""

from __future__ import annotations

import math
import numbers


def check_whole(name: str, value: object, least: int) -> int:
    """`value` as an int, if it is a whole number >= `least`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or int(value) < least:
        raise ValueError(f"{name}: must be a whole number >= {least}, got {value!r}")
    return int(value)


def check_real(name: str, value: object, least: float = 0.0, above: float | None = None) -> float:
    """`value` as a float, if it is a finite number >= `least`, or > `above` where that is given."""
    if isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(float(value)):
        number = float(value)
        if number >= least if above is None else number > above:
            return number
    raise ValueError(f"{name}: must be a number {f'>= {least:g}' if above is None else f'> {above:g}'}, got {value!r}")
