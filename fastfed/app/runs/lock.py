"""One process at a time on a run: a lock of the system's, which lets go of it whatever becomes of the process.

It is on a file in the run's directory, not on the directory: over a network only files that are open for writing can be
locked, and machines that share a disk are what it is for.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .directory import RunExists, RunFailed

LOCK = ".lock"


class RunBusy(RunExists):
    """Another process, of this machine or another, is at work on a run."""


@contextmanager
def alone(home: Path) -> Iterator[None]:
    """Nobody else is at work on the run meanwhile. The directory is made if it is not there, and removed again, with
    those above it that were made, if nothing was written into it. A disk without locks does without: `check_locks` is
    for those who share one."""
    made = [folder for folder in (home, *home.parents) if not folder.exists()]
    try:
        handle = _locked(home)
    except OSError as error:
        raise RunFailed(f"{home}: cannot be written: {error.strerror or error}; nothing was begun") from error
    try:
        yield
    finally:
        (home / LOCK).unlink(missing_ok=True)  # while it is ours: who waits for it looks again
        os.close(handle)
        with suppress(OSError):  # the first that is not empty
            for folder in made:
                folder.rmdir()


def _locked(home: Path) -> int:
    """The lock's file, open and locked. Who had it before may remove file and directory at any time: then once more."""
    while True:
        home.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(home / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise RunBusy(f"{home}: another process is at work on this run; wait for it, or stop it") from None
        except OSError:
            return handle
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(home / LOCK)):
                return handle
        os.close(handle)


def check_locks(folder: Path) -> None:
    """An error where the disk of a directory has no locks: two processes could be at work on the same run there."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=LOCK) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            why = f"its disk has no locks ({error.strerror}), and two processes could be at work on one run"
            raise RunFailed(f"{folder}: {why}; use --out with another disk") from error
