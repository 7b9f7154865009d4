"""Who runs a sweep's points: here the host process of this machine, `dask_pool` a cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from ..runs import RunFailed
from .points import Point

_PROGRAM = "from fastfed.app.sweep.host import main; main()"


class Pool(Protocol):
    """Runs points, and says what becomes of them."""

    def __enter__(self) -> Pool: ...

    def __exit__(self, *error: object) -> None:
        """Lets go of all that it has; if an error brought us here, points in flight leave checkpoints first."""

    def run(self, tasks: Iterable[tuple[Point, Path]], rounds: int | None, is_last: bool) -> Iterator[dict[str, Any]]:
        """Runs points in their directories, to their ends or for so many `rounds`, and yields events until all have
        finished or been stopped. No other points come after the `is_last` batch."""

    def stop(self) -> None:
        """Points in flight leave checkpoints; the second time they are ended at once. For signal handlers."""


def tasks_of(points: Iterable[tuple[Point, Path]], rounds: int | None) -> list[dict[str, Any]]:
    """What the process that runs a point is told of it."""
    return [
        {"task": point.name, "home": str(home.absolute()), "tables": point.tables, "rounds": rounds}
        for point, home in points
    ]


class LocalPool:
    """Runs points in processes of this machine, `jobs` at once, with `threads` threads each. Their host is started when
    there is one to run."""

    def __init__(self, jobs: int, threads: int) -> None:
        self._shares = (str(jobs), str(threads))
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = self.stopping = False

    def _host(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            from .host import ENVIRONMENT

            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, *self._shares],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **ENVIRONMENT, "PYTHONSAFEPATH": "1"},
                start_new_session=True,  # Ctrl-C on a terminal reaches only us; we say what it means
            )
        return self._process

    def __enter__(self) -> LocalPool:
        return self

    def __exit__(self, *error: object) -> None:
        """Ends the host; if an error brought us here, its points leave checkpoints first."""
        if self._process is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                with suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]
            self._process.wait()

    def run(self, tasks: Iterable[tuple[Point, Path]], rounds: int | None, is_last: bool) -> Iterator[dict[str, Any]]:
        """As `Pool` says. After the `is_last` batch the host lets go of data that nobody needs any more."""
        lines = tasks_of(tasks, rounds)
        waiting = {line["task"] for line in lines}
        if not lines or self.stopping:
            return
        host = self._host()
        _say(host, [*lines, *([{"end": True}] if is_last else [])])
        while waiting:
            event = self._event(host)
            if event is None:
                return
            if event["event"] == "finished":
                waiting.discard(event["task"])
            yield event

    def _event(self, host: subprocess.Popen[bytes]) -> dict[str, Any] | None:
        """The next event; None if there are no more because we stopped it."""
        assert host.stdout is not None
        line = host.stdout.readline()
        if not line and self.stopping:
            return None
        if not line:
            code = host.wait()
            how = f"by the signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            raise RunFailed(f"the process that runs the sweep's points was ended {how}; --resume goes on")
        event: dict[str, Any] = json.loads(line)
        self._ready |= event["event"] == "ready"
        return event

    def stop(self) -> None:
        """Points in flight leave checkpoints; the second time they are ended at once. For signal handlers."""
        number = signal.SIGTERM if self.stopping else signal.SIGINT
        self.stopping = True
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number if self._ready else signal.SIGKILL)


def _say(host: subprocess.Popen[bytes], lines: list[dict[str, Any]]) -> None:
    assert host.stdin is not None
    with suppress(BrokenPipeError):  # it has gone; the next event says so
        host.stdin.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        host.stdin.flush()


@contextmanager
def interrupts(stop: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C calls `stop` instead of breaking into whatever is being done. Only the main thread can arrange that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: stop())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
