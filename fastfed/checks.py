"""Refusals that several rooms share."""

from __future__ import annotations

from typing import Any, get_type_hints

from torch import Tensor

from .kernels.table import NON_NEGATIVE, Domain, nearest

__all__ = ["WEIGHT", "check_weights", "fits", "missing", "nearest"]

_MOST = 1e30  # of a weight: so many times that, as there can be clients, is still a number
WEIGHT = Domain(f"a number from 0 to {_MOST:g}", lambda value: NON_NEGATIVE.admits(value) and value <= _MOST)


def check_weights(name: str, weights: Tensor) -> None:
    """Refuses weights that are none, and those of which a sum would overflow."""
    wrong = ~((weights >= 0) & (weights <= _MOST))
    if bool(wrong.any()):
        client = int(wrong.nonzero()[0])
        raise ValueError(f"{name}: must be {WEIGHT.words}, got {weights[client].item():g} for client {client}")


def missing(value: object, protocol: type) -> list[str]:
    """What a value lacks to be one of those that a Protocol describes: names of methods and attributes."""
    wanted = {name for kind in protocol.__mro__ for name in vars(kind) if not name.startswith("_")}
    wanted |= set(get_type_hints(protocol))
    return sorted(name for name in wanted if not hasattr(value, name))


def fits(name: str, value: Any, protocol: type, home: str) -> None:
    """Refuses a setting that is not like those of the module `home`: the sentence says what it lacks."""
    lacks = missing(value, protocol)
    if lacks:
        raise TypeError(f"{name}: must be like those of {home}, and {value!r} has no {', '.join(lacks)}")
