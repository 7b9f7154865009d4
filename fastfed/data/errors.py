"""What a loader says of a file that it cannot use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

_READABLE = 300  # characters of what a library says


class DataError(ValueError):
    """A data file is missing, truncated or not what it should be.

    The message names the file, what was expected, and where to get it.
    """

    def __init__(self, path: str | PathLike[str], problem: str, expected: str, source: str) -> None:
        super().__init__(f"{path}: {problem}. Expected {expected}. Where to get it: {source}")
        self.path = Path(path)


@contextmanager
def reading(path: str | PathLike[str], expected: str, source: str) -> Iterator[None]:
    """Whatever a damaged file makes the block raise, it becomes a DataError that names the file."""
    try:
        yield
    except (DataError, ImportError):  # what is known already, and a package that is not there
        raise
    except Exception as error:
        raise DataError(path, f"cannot be read ({_told(error)})", expected, source) from error


def _told(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, MemoryError):
        return "it asks for more memory than there is"
    return f"{type(error).__name__}: {in_brief(str(error))}" if str(error) else type(error).__name__


def in_brief(text: str) -> str:
    """What a library says, on one line: no more of it than can be read."""
    line = " ".join(text.split())
    return line if len(line) <= _READABLE else f"{line[:_READABLE]} ..."


# Deflate packs at most 1,032 bytes into one: what promises more lies, and is not given the memory.
DEEPEST = 1032
