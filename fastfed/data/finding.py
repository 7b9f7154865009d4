"""Finds a data set's files below the directory that the user names, or says what is missing and where to get it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from .errors import DataError, reading


@dataclass(frozen=True)
class Origin:
    """A data set's public home: `files` says what a directory of it holds, `url` where that can be downloaded."""

    files: str
    url: str

    def error(self, path: str | Path, problem: str, expected: str = "") -> DataError:
        """What is wrong with a file, with this home in it; `expected` is what the whole directory holds by default."""
        return DataError(path, problem, expected or self.files, self.url)

    def reading(self, path: str | PathLike[str], expected: str = "") -> AbstractContextManager[None]:
        """Whatever the block raises becomes such an error."""
        return reading(path, expected or self.files, self.url)

    def directory(self, root: str | PathLike[str]) -> Path:
        """The directory that the user named."""
        path = Path(root)
        if not path.is_dir():
            raise self.error(path, "is not a directory" if path.exists() else "no such directory")
        return path

    def find(self, directories: Sequence[Path], names: Sequence[str]) -> Path:
        """The first file there is, by directory and then by name."""
        for directory in directories:
            for name in names:
                if (directory / name).is_file():
                    return directory / name
        others = f" (nor {', '.join(names[1:])})" if len(names) > 1 else ""
        raise self.error(directories[0] / names[0], f"no such file{others}")
