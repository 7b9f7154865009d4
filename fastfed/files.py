"""Files and directories that are there as a whole or not at all: written aside, then renamed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any


@contextmanager
def aside(target: Path, *, synced: bool = False) -> Iterator[Path]:
    """Where to write what is to be `target`: a path beside it, renamed at the end of the block, and removed if the
    block fails. Only a killed process leaves it behind: ``.<name>.<machine>.<process>.tmp``. `synced`: a file's
    contents reach the disk before its name does, so that not even a crash of the machine leaves half of it; and the
    name does before the block ends."""
    scratch = target.with_name(f".{target.name}.{_machine()}.{os.getpid()}.tmp")
    try:
        yield scratch
        if synced:
            with scratch.open("rb") as file:
                os.fsync(file.fileno())
        os.replace(scratch, target)
        if synced:
            sync_directory(target.parent)
    except BaseException:
        if scratch.is_dir():
            shutil.rmtree(scratch, ignore_errors=True)
        else:
            scratch.unlink(missing_ok=True)
        raise


def sync_directory(path: Path) -> None:
    """The names in a directory reach the disk, where the system can say when."""
    with suppress(OSError):
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


@cache
def _machine() -> str:
    """A few digits that tell machines apart which share a disk: their processes may have the same number."""
    return hashlib.sha256(os.uname().nodename.encode()).hexdigest()[:6]


def write_whole(target: Path, text: str) -> None:
    """Writes a file of text (UTF-8), in place of one that may be there."""
    with aside(target, synced=True) as scratch:
        scratch.write_text(text, encoding="utf-8")


def write_over(target: Path, text: str) -> None:
    """Writes a file of text (UTF-8) that is there already into the room that it has: on a full disk there is no
    other. Only as much as it has room for."""
    content = text.encode()
    with target.open("r+b") as file:
        held = os.fstat(file.fileno())
        if len(content) > max(held.st_size, getattr(held, "st_blocks", 0) * 512):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        file.write(content)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


def as_json(value: Mapping[str, Any]) -> str:
    """The text of a JSON file that people may read, too. What JSON lacks is refused: NaN and infinities."""
    return json.dumps(value, indent=1, allow_nan=False) + "\n"
