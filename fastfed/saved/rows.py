"""The history of a run beside its checkpoints: a file that only grows, of which each checkpoint knows a beginning. The
rows that come after it are in the checkpoint itself.

So a checkpoint does not wait for the disk twice: the file is written to only when there are more than `MOST_IN_TAIL`
rows to append, and a checkpoint does not grow with the run.

Every row is a line of JSON. Where a run goes back, because it was resumed from an earlier round or a row was evaluated
later, a line ``{"back_to": n}`` says that only the first n rows hold from there on: what was written before stays as it
is, for the checkpoints that know it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..record.writers import line

NAME = "history"
MOST_IN_TAIL = 100  # rows: about as long as the state of a small model
_BACK = "back_to"


@dataclass(frozen=True)
class SavedRows:
    """What a checkpoint knows of all `rows` of its run: so many `bytes` of a file, and the `tail` that follows them."""

    file: str
    bytes: int
    rows: int
    sha256: str
    tail: str = ""


class Rows:
    """The rows of a run in a directory.

    `saved`: what a checkpoint of this directory knows of them, if the run goes on from there.
    """

    _path: Path
    _lines: list[str]  # that hold
    _in_file: int  # so many of them
    _bytes: int  # of the file, as far as it is known here

    def __init__(self, directory: str | Path, saved: SavedRows | None = None) -> None:
        self._home = Path(directory)
        self._begin_again()
        if saved is not None and (saved.bytes == 0 or (self._home / saved.file).exists()):
            self._path = self._home / saved.file
            content = _beginning(self._path, saved)
            self._hash.update(content)
            self._bytes, self._lines = len(content), _lines_that_hold(content)
            self._in_file = len(self._lines)

    def _begin_again(self) -> None:
        """With a file of its own, in which nothing is."""
        self._path = self._home / _free_name(self._home)
        self._lines, self._in_file, self._bytes, self._hash = [], 0, 0, hashlib.sha256()

    def add(self, rows: Sequence[Mapping[str, Any]]) -> SavedRows:
        """Takes over what is new or changed of all rows of the run; what a checkpoint must know of them."""
        if self._size() < self._bytes:  # somebody has removed it
            self._begin_again()
        kept = self._kept(rows)
        new = [line(row) for row in rows[kept:]]
        if kept < self._in_file or len(rows) - self._in_file > MOST_IN_TAIL:
            stays = min(kept, self._in_file)
            self._append(stays, self._lines[stays:kept] + new)
            self._in_file = len(rows)
        self._lines[kept:] = new
        tail = "".join(self._lines[self._in_file :])
        return SavedRows(self._path.name, self._bytes, len(rows), self._hash.hexdigest(), tail)

    def _size(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0

    def _kept(self, rows: Sequence[Mapping[str, Any]]) -> int:
        """How many of the lines hold. Rows change only at the end: the last of them may have been evaluated since."""
        known = min(len(self._lines), len(rows))
        while known and self._lines[known - 1] != line(rows[known - 1]):
            known -= 1
        return known

    def _append(self, stays: int, lines: list[str]) -> None:
        """Writes the lines that follow the first `stays` rows of the file. What is there beyond what is known here, of
        a run that was stopped before its checkpoint or went on elsewhere, is taken along: the line that goes back
        follows it."""
        goes_back = stays < self._in_file or self._size() > self._bytes
        content = "".join([line({_BACK: stays})] * goes_back + lines).encode()
        self._home.mkdir(parents=True, exist_ok=True)
        with self._path.open("a+b") as file:
            file.seek(self._bytes)
            unknown = file.read()
            if unknown and not unknown.endswith(b"\n"):
                content = b"\n" + content
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self._hash.update(unknown + content)
        self._bytes += len(unknown) + len(content)


def read(directory: str | Path, saved: SavedRows) -> list[dict[str, Any]]:
    """The rows that a checkpoint knows; ValueError or OSError if the file is not what it was."""
    lines = _lines_that_hold(_beginning(Path(directory) / saved.file, saved))
    rows = [json.loads(text) for text in [*lines, *saved.tail.splitlines()]]
    if len(rows) != saved.rows:
        raise ValueError(f"{saved.file} holds {len(rows)} rows, not {saved.rows}")
    return rows


def _beginning(path: Path, saved: SavedRows) -> bytes:
    """What a checkpoint knows of the file; a file of which it knows nothing need not be there."""
    if saved.bytes == 0:
        return b""
    with path.open("rb") as file:
        content = file.read(saved.bytes)
    if hashlib.sha256(content).hexdigest() != saved.sha256:
        raise ValueError(f"{path.name} does not hold what was written")
    return content


def _lines_that_hold(content: bytes) -> list[str]:
    held: list[str] = []
    for text in content.decode().splitlines(keepends=True):
        if text.startswith(f'{{"{_BACK}"'):
            del held[json.loads(text)[_BACK] :]
        elif text.startswith('{"round"') and text.endswith("}\n"):
            held.append(text)
    return held


def _free_name(home: Path) -> str:
    number = 1
    while (home / (name := f"{NAME}.jsonl" if number == 1 else f"{NAME}-{number}.jsonl")).exists():
        number += 1
    return name
