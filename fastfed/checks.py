"""Refusals that several rooms share."""

from __future__ import annotations

from typing import Any, get_type_hints

from .kernels.table import nearest

__all__ = ["fits", "missing", "nearest"]


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
