"""The history of a run beside its checkpoints: a file that only grows, of which each checkpoint holds a beginning.

Every row is a line of JSON. Where a run goes back, because it was resumed from an earlier round or a row was evaluated
later, a line ``{"back_to": n}`` says that only the first n rows hold from there on: what was written before stays as it
is, for the checkpoints that know it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..record.writers import line

NAME = "history"
_BACK = "back_to"


class Rows:
    """The rows of a run in a directory; new ones are appended when a checkpoint is written.

    `beginning`: what a checkpoint of this directory holds of the file, if the run goes on from there.
    """

    _path: Path
    _lines: list[str]  # that hold
    _bytes: int  # of the file, as far as it is known here

    def __init__(self, directory: str | Path, beginning: Mapping[str, Any] | None = None) -> None:
        self._home = Path(directory)
        self._begin_again()
        if beginning is not None and (self._home / beginning["file"]).exists():
            self._path = self._home / beginning["file"]
            content = _beginning(self._path, beginning)
            self._hash.update(content)
            self._bytes, self._lines = len(content), _lines_that_hold(content)

    def _begin_again(self) -> None:
        """With a file of its own, in which nothing is."""
        self._path = self._home / _free_name(self._home)
        self._lines, self._bytes, self._hash = [], 0, hashlib.sha256()

    def add(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Appends what is new or changed of all rows of the run; what a checkpoint must know of the file."""
        there = self._path.stat().st_size if self._path.exists() else 0
        if there < self._bytes:  # somebody has removed it
            self._begin_again()
            there = 0
        kept = self._kept(rows)
        new = [line(row) for row in rows[kept:]]
        goes_back = kept < len(self._lines) or there > self._bytes
        self._append("".join([line({_BACK: kept})] * goes_back + new).encode())
        self._lines[kept:] = new
        return {"file": self._path.name, "bytes": self._bytes, "rows": len(rows), "sha256": self._hash.hexdigest()}

    def _kept(self, rows: Sequence[Mapping[str, Any]]) -> int:
        """How many of the lines hold. Rows change only at the end: the last of them may have been evaluated since."""
        known = min(len(self._lines), len(rows))
        while known and self._lines[known - 1] != line(rows[known - 1]):
            known -= 1
        return known

    def _append(self, content: bytes) -> None:
        """What is in the file beyond what is known here, of a run that was stopped before its checkpoint or went on
        elsewhere, is taken along: the line that goes back follows it."""
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


def read(directory: str | Path, beginning: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows that a checkpoint holds; ValueError or OSError if the file is not what it was."""
    content = _beginning(Path(directory) / beginning["file"], beginning)
    rows = [json.loads(text) for text in _lines_that_hold(content)]
    if len(rows) != beginning["rows"]:
        raise ValueError(f"{beginning['file']} holds {len(rows)} rows, not {beginning['rows']}")
    return rows


def _beginning(path: Path, beginning: Mapping[str, Any]) -> bytes:
    with path.open("rb") as file:
        content = file.read(beginning["bytes"])
    if hashlib.sha256(content).hexdigest() != beginning["sha256"]:
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
