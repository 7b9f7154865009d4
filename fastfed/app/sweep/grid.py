"""Axes of a grid: a dotted key of the configuration, and the values that it takes.

client.lr=1e-3:1e0:log7         seven values, evenly spaced on a logarithmic scale, both ends included
run.epochs=1:9:lin5             five on a linear scale; whole numbers stay whole
server.lr=0.01,0.1,1            these
method=fedavg,fedyogi           words need no quotes
client={rule="sgd",lr=0.1},{rule="adam",lr=0.01}    any TOML values, tables too
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..config import ConfigError
from ..config.document import DOTTED_KEY, FUNCTION

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_RANGE = re.compile(r"\s*([^:{}\[\]\"',]+):([^:{}\[\]\"',]+):\s*([A-Za-z]*)(\d*)\s*")
_DIGITS = 6  # of values between the ends of a range: as many as anybody would type
_MOST_VALUES = 10_000
_FORMS = "a list a,b,c, or a range such as 1e-3:1e0:log7 or 1:9:lin5"


@dataclass(frozen=True)
class GridAxis:
    """A dotted key and its values, each different from the others."""

    key: str
    values: tuple[Any, ...]

    @property
    def is_numeric(self) -> bool:
        """Whether all values are numbers."""
        return all(is_number(value) for value in self.values)


def is_number(value: object) -> bool:
    """A finite number; True and False are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def parse_axis(text: str, where: str = "--grid") -> GridAxis:
    """The axis that "key=values" describes; `where` is what errors call it."""
    key, equals, values = text.partition("=")
    if not equals:
        raise ConfigError(f"{where}: must be a dotted key and its values, as in client.lr=1e-3:1e0:log7, got {text!r}")
    return make_axis(key.strip(), values.strip(), where)


def make_axis(key: str, values: Any, where: str) -> GridAxis:
    """The axis of a key, with values as text (a range or a list), or as a list of values."""
    if not DOTTED_KEY.fullmatch(key):
        raise ConfigError(f"{where}: must begin with a dotted key, as in client.lr, got {key!r}")
    if isinstance(values, str):
        found = _values(values, f"{where}: {key}")
    elif isinstance(values, Sequence):
        found = list(values)
    else:
        raise ConfigError(f"{where}: {key} must have {_FORMS}, got {values!r}")
    if not found:
        raise ConfigError(f"{where}: {key} has no values; it must have {_FORMS}")
    if len(found) > _MOST_VALUES:
        raise ConfigError(f"{where}: {key} has {len(found):,} values; more than {_MOST_VALUES:,} are surely a mistake")
    for place, value in enumerate(found):
        if any(value == other and type(value) is type(other) for other in found[:place]):
            raise ConfigError(f"{where}: {key} has the value {value!r} twice")
    return GridAxis(key, tuple(found))


def _values(text: str, where: str) -> list[Any]:
    ranged = _RANGE.fullmatch(text)
    if ranged is not None:
        return _range(text, ranged, where)
    try:
        listed: list[Any] = tomllib.loads(f"values = [{text}]")["values"]
        return listed
    except (tomllib.TOMLDecodeError, RecursionError):
        return [_value(part.strip(), where) for part in _split(text, where)] if text else []


# ---- ranges ---------------------------------------------------------------------------------------------------------


def _range(text: str, parts: re.Match[str], where: str) -> list[Any]:
    low, high, scale, number = parts.groups()
    if scale not in ("log", "lin") or not number:
        raise ConfigError(f"{where}: a range must end in logN or linN with the number of values, got {text!r}")
    first, last, count = _number(low, text, where), _number(high, text, where), int(number)
    if not 2 <= count <= _MOST_VALUES:
        raise ConfigError(f"{where}: a range must have 2 to {_MOST_VALUES:,} values, got {text!r}")
    if first == last:
        raise ConfigError(f"{where}: the ends of a range must differ, got {text!r}")
    if scale == "log" and min(first, last) <= 0:
        raise ConfigError(f"{where}: the ends of a logarithmic range must be > 0, got {text!r}")
    between = [_between(first, last, i / (count - 1), scale == "log") for i in range(1, count - 1)]
    whole = isinstance(first, int) and isinstance(last, int) and all(value == int(value) for value in between)
    return [first, *(int(value) if whole else value for value in between), last]


def _between(first: float, last: float, share: float, log: bool) -> float:
    if log:
        value = 10 ** (math.log10(first) + share * (math.log10(last) - math.log10(first)))
    else:
        value = first + share * (last - first)
    return float(f"{value:.{_DIGITS}g}")


def _number(part: str, text: str, where: str) -> int | float:
    try:
        return int(part)
    except ValueError:
        pass
    try:
        value = float(part)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"{where}: the ends of a range must be numbers, got {part.strip()!r} in {text!r}")
    return value


# ---- lists ----------------------------------------------------------------------------------------------------------


def _split(text: str, where: str) -> list[str]:
    """At the commas that stand in no quotes, brackets or braces."""
    parts, depth, quote = [""], 0, ""
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        elif sign in "[{":
            depth += 1
        elif sign in "]}":
            depth -= 1
        if sign == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += sign
    if quote or depth != 0:
        raise ConfigError(f"{where}: quotes, brackets or braces do not close in {text!r}")
    return parts


def _value(part: str, where: str) -> Any:
    """A TOML value; a bare word is a string, so that nobody needs quotes within quotes."""
    try:
        return tomllib.loads(f"value = {part}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        pass
    if not part:
        raise ConfigError(f"{where} has an empty value between two commas")
    if part[0] in "[{\"'":
        raise ConfigError(f"{where}: {part!r} is not a TOML value")
    if ":" in part and not FUNCTION.fullmatch(part):
        raise ConfigError(f"{where}: must be {_FORMS}, got {part!r}")
    try:
        return float(part)  # TOML wants a digit before the point
    except ValueError:
        return part
