"""What ops of servers and of clients share: their state, and the numbers of a call."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from .. import bind

State = dict[str, Tensor]  # an optimizer's vectors and counters, by the table's names

# the rules over plain numbers
scalar_rules = bind.load(
    "rules",
    "math",
    {"sqrt": math.sqrt, "maximum": max, "minimum": min, "where": lambda condition, a, b: a if condition else b},
)


def numbers_of(resolve: Any, options: dict[str, Any], *arguments: Any) -> Any:
    """The numbers of a call from the cache, whose key tells 1 from True; an unhashable value is explained uncached."""
    try:
        return resolve(*arguments, tuple(options), *options.values())
    except TypeError:
        return resolve.__wrapped__(*arguments, tuple(options), *options.values())
