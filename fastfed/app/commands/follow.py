"""Rows of a run as they are written: what `--json` prints."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_SECONDS_BETWEEN_LOOKS = 0.05


@contextmanager
def followed(path: Path, skip: int, tell: Callable[[str], None]) -> Iterator[None]:
    """Tells every line that is written to a file while the block runs, but for the first `skip`.

    The file may not be there yet. One that is there already is an older one, which the run replaces by its own.
    """
    over = threading.Event()
    lines = _Lines(path, skip)

    def follow() -> None:
        with suppress(BrokenPipeError):  # nobody listens any more; the run goes on
            while not over.wait(_SECONDS_BETWEEN_LOOKS):
                lines.pass_on(tell)
            lines.pass_on(tell)

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    try:
        yield
    finally:
        over.set()
        follower.join()


class _Lines:
    """What has been read of a file, to the last whole line."""

    def __init__(self, path: Path, skip: int) -> None:
        self.path, self.skip, self.place = path, skip, 0
        self.older = path.stat().st_ino if path.exists() else None

    def pass_on(self, tell: Callable[[str], None]) -> None:
        if not self.path.exists() or self.path.stat().st_ino == self.older:
            return
        with self.path.open("rb") as file:
            file.seek(self.place)
            read = file.read()
        whole = read[: read.rfind(b"\n") + 1]
        self.place += len(whole)
        for line in whole.decode().splitlines():
            if self.skip > 0:
                self.skip -= 1
            else:
                tell(line)
