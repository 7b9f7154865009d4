"""What is wrong with a configuration, in words that name the key."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping


class ConfigError(ValueError):
    """A configuration cannot be used. Every line of the message is a sentence that begins with a dotted key."""


def located(table: str, error: Exception, known: Collection[str]) -> str:
    """The sentence of a constructor, "lr: must be ...", with the table that its option stands in."""
    sentence = str(error)
    begins = re.match(r"\w+", sentence)
    return f"{table}.{sentence}" if begins and begins[0] in known else f"{table}: {sentence}"


def relocated(error: Exception, homes: Mapping[str, str]) -> str:
    """The sentence of a function, "server: must be ...", with the dotted key that its argument comes from."""
    argument, colon, rest = str(error).partition(": ")
    return f"{homes[argument]}: {rest}" if colon and argument in homes else str(error)
