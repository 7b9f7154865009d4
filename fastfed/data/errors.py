"""What a loader says of a file that it cannot use."""

from __future__ import annotations

from pathlib import Path


class DataError(ValueError):
    """A data file is missing, truncated or not what it should be.

    The message names the file, what was expected, and where to get it.
    """

    def __init__(self, path: str | Path, problem: str, expected: str, source: str) -> None:
        super().__init__(f"{path}: {problem}. Expected {expected}. Where to get it: {source}")
        self.path = Path(path)
