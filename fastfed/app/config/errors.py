"""What is wrong with a configuration, in words that name the key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


class ConfigError(ValueError):
    """A configuration cannot be used. Every line of the message is a sentence that begins with a dotted key."""


@contextmanager
def in_file(path: str | Path) -> Iterator[None]:
    """Sentences about keys name the file as well; those about an option of the command line begin with that."""
    try:
        yield
    except ConfigError as error:
        lines = str(error).splitlines()
        raise ConfigError(
            "\n".join(line if line.startswith("--") else f"{path}: {line}" for line in lines)
        ) from error  # fmt: skip


def keyed(error: Exception, keys: Mapping[str, str], table: str = "") -> str:
    """The sentence of a refusal with the dotted key that a file has for the refused argument, of those in `keys`.

    FastFed's refusals begin with the argument and a colon: "lr: must be ...". One that does not, or whose argument no
    file gives, is said of the whole `table`, if there is one.
    """
    argument, colon, sentence = str(error).partition(": ")
    if colon and argument in keys:
        return f"{keys[argument]}: {sentence}"
    return f"{table}: {error}" if table else str(error)


def keys_in(table: str, options: Iterable[str]) -> dict[str, str]:
    """The dotted keys of the options of a table, for `keyed`."""
    return {name: f"{table}.{name}" for name in options}
