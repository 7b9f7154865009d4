"""The process that runs a sweep's points: it holds the data, and forks a process for every point.

Forking shares the data in memory without copying or loading it again, and nothing that happens to one point reaches
another. It is only safe in a process that has never started threads: a forked OpenMP pool waits for threads that are
not there. So this is a process of its own, whose environment (`ENVIRONMENT`) lets no library start any before a fork;
only the forked ones compute, each with as many threads as it was given. A fork costs some milliseconds, a new
interpreter with torch seconds.

It reads tasks as JSON lines from standard input ({"task", "home", "tables", "rounds"}), then {"end": true}, and writes
events to what was its standard output: {"event": "ready"}, {"event": "loading", "data"}, {"event": "started", "task",
"pid"} and {"event": "finished", "task", "status", "error"}. SIGINT interrupts all points, which leave checkpoints;
SIGTERM ends them. If the other side goes away, points are interrupted.
"""

from __future__ import annotations

import functools
import json
import os
import selectors
import shutil
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ...data import Federation
from ...hooks import Hooked
from .. import runs
from ..config import Config, ConfigError, parse
from ..config.own import OwnData
from ..config.source import Data, Source
from ..errors import first_line
from .outcome import DONE, ELSEWHERE, FAILED, INTERRUPTED
from .points import shortened, with_threads

ENVIRONMENT = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
Task = dict[str, Any]


def main() -> None:
    """Arguments: how many points run at once, and the threads of each."""
    jobs, threads = (int(argument) for argument in sys.argv[1:3])
    events = os.dup(1)
    os.dup2(2, 1)  # whatever anybody prints must not get among the events
    Host(jobs, threads, events).serve()
    os._exit(0)  # nothing is left to do, and torch takes its time to leave


class Host:
    """`events` is the file descriptor that events are written to."""

    def __init__(self, jobs: int, threads: int, events: int) -> None:
        self.jobs, self.threads = jobs, threads
        self._events = events
        self._tasks: deque[Task] = deque()
        self._children: dict[int, _Child] = {}  # by the file descriptor that their result comes from
        self._store = DataStore()
        self._selector = selectors.DefaultSelector()
        self._more, self._stopping = True, False
        self._unread = b""

    def serve(self) -> None:
        """Until all tasks are done, or it is told to stop."""
        signals, wakeup = socket.socketpair()
        wakeup.setblocking(False)
        signals.setblocking(False)
        signal.set_wakeup_fd(wakeup.fileno())
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)  # noticed through the wakeup descriptor
        self._selector.register(signals, selectors.EVENT_READ, lambda: self._signalled(signals.recv(64)))
        self._selector.register(0, selectors.EVENT_READ, self._told)
        self._tell(event="ready")
        while self._more or self._tasks or self._children:
            while self._tasks and len(self._children) < self.jobs:
                self._start(self._tasks.popleft())
            if self._more or self._children:
                for key, _ in self._selector.select():
                    key.data()

    # ---- what it is told --------------------------------------------------------------------------------------------

    def _told(self) -> None:
        read = os.read(0, 1 << 16)
        if not read:
            self._selector.unregister(0)
            self._stop(signal.SIGINT)  # the other side stays until all is done, unless something has happened to it
            return
        *lines, self._unread = (self._unread + read).split(b"\n")
        for line in lines:
            told = json.loads(line)
            if "end" in told:
                self._more = False
            elif not self._stopping:
                self._tasks.append(told)

    def _signalled(self, numbers: bytes) -> None:
        self._stop(signal.SIGTERM if signal.SIGTERM in numbers else signal.SIGINT)

    def _stop(self, number: signal.Signals) -> None:
        first, self._stopping, self._more = not self._stopping, True, False
        self._tasks.clear()
        for child in self._children.values():
            if number == signal.SIGTERM:
                child.kill(signal.SIGKILL)
            elif first:  # a second Ctrl-C would break into the checkpoint
                child.kill(signal.SIGINT)

    def _tell(self, **event: Any) -> None:
        with suppress(BrokenPipeError):
            os.write(self._events, json.dumps(event).encode() + b"\n")

    # ---- points -----------------------------------------------------------------------------------------------------

    def _start(self, task: Task) -> None:
        try:
            config = shortened(parse(task["tables"]), task["rounds"])
            fed = self._store.get(task, config.data, lambda name: self._tell(event="loading", data=name))
        except Exception as error:  # the data: all others may be there
            self._tell(event="finished", task=task["task"], status=FAILED, error=sentence_of(error))
            return
        if not self._more:
            self._store.keep(self._tasks)
        child = self._fork(task, config, fed)
        self._children[child.results] = child
        self._selector.register(child.results, selectors.EVENT_READ, functools.partial(self._heard, child))
        self._tell(event="started", task=task["task"], pid=child.pid)

    def _fork(self, task: Task, config: Config, fed: Federation) -> _Child:
        results, writes = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # none may be lost before the child can take it
        pid = os.fork()
        if pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                for inherited in (0, self._events, results):
                    os.close(inherited)
                torch.set_num_threads(self.threads)
                config = with_threads(config, self.threads)
                os.write(writes, json.dumps(run_point(task, config, fed)).encode())
            finally:
                os._exit(0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        os.close(writes)
        return _Child(pid, task, results)

    def _heard(self, child: _Child) -> None:
        read = os.read(child.results, 1 << 16)
        if read:
            child.said += read
            return
        self._selector.unregister(child.results)
        os.close(child.results)
        del self._children[child.results]
        _, status = os.waitpid(child.pid, 0)
        result = json.loads(child.said) if child.said else _killed(child.task, status)
        self._tell(event="finished", task=child.task["task"], **result)


@dataclass
class _Child:
    pid: int
    task: Task
    results: int
    said: bytes = b""

    def kill(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


def run_point(task: Task, config: Config, fed: Federation, hooks: Sequence[Hooked] = ()) -> dict[str, Any]:
    """Runs a point, or goes on with it; in a process of its own. Says its status, and the sentence where it failed."""
    home = Path(task["home"])
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        _clear_unborn(home)
        runs.execute(config, home, resume=True, progress=False, fed=fed, hooks=hooks)
    except KeyboardInterrupt:
        return {"status": INTERRUPTED, "error": None}
    except runs.RunBusy:
        return {"status": ELSEWHERE, "error": None}
    except Exception as error:
        return {"status": FAILED, "error": sentence_of(error)}
    return {"status": DONE, "error": None}


def _clear_unborn(home: Path) -> None:
    """Removes what a point left that was killed while its directory was made: nothing has been computed there yet."""
    if runs.holds_run(home):
        with suppress(runs.RunExists), runs.alone(home):  # somebody else's may be about to begin
            if not (home / runs.ROUNDS).exists() and not (home / runs.CHECKPOINT).exists():
                for path in home.iterdir():
                    if path.name != runs.LOCK:  # it is ours until all else is gone
                        shutil.rmtree(path) if path.is_dir() else path.unlink()


def sentence_of(error: Exception) -> str:
    """An error as a sweep tells it."""
    first = first_line(error)
    known = (ConfigError, runs.RunExists, runs.DamagedRun, runs.RunFailed)
    return first if isinstance(error, known) and first else f"{type(error).__name__}: {first}"


def _killed(task: Task, status: int) -> dict[str, Any]:
    """Of a point whose process ended without a word; its directory is told too."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        how = f"by the signal {signal.Signals(number).name}{' (out of memory?)' if number == signal.SIGKILL else ''}"
    else:
        how = f"with exit code {os.waitstatus_to_exitcode(status)}"
    sentence = f"{task['home']}: the process of this run was ended {how}"
    with suppress(OSError, runs.DamagedRun):
        runs.update(task["home"], status=FAILED, error=sentence)
    return {"status": FAILED, "error": sentence}


# ---- data -----------------------------------------------------------------------------------------------------------


class DataStore:
    """The data sets that points need: each is loaded once, and so is each file that several of them deal anew."""

    def __init__(self) -> None:
        self._feds: dict[str, Federation | Exception] = {}  # by the tables [data]
        self._loaded: dict[str, Any] = {}  # by the loaders and their arguments

    def get(self, task: Task, data: Data, tell: Callable[[str], None]) -> Federation:
        """The clients of a task; what could not be loaded is not tried again."""
        key = _data_key(task)
        if key not in self._feds:
            tell(data.loader.name)
            try:
                self._feds[key] = replace(data, loader=self._once(data.loader)).make()
            except Exception as error:
                self._feds[key] = error
        found = self._feds[key]
        if isinstance(found, Exception):
            raise found
        return found

    def _once(self, loader: Source | OwnData) -> Source | OwnData:
        """The loader, whose result is kept."""
        key = _key([loader.name, loader.arguments()])

        @functools.wraps(loader.function)
        def load(*args: Any, **kwargs: Any) -> Any:
            if key not in self._loaded:
                self._loaded[key] = loader.function(*args, **kwargs)
            return self._loaded[key]

        return replace(loader, function=load)

    def keep(self, tasks: Iterable[Task]) -> None:
        """Lets go of what no task needs: there will be no others."""
        if len(self._feds) > 1 or self._loaded:
            wanted = set(map(_data_key, tasks))
            self._feds = {key: fed for key, fed in self._feds.items() if key in wanted}
            if wanted <= self._feds.keys():
                self._loaded.clear()


def _data_key(task: Task) -> str:
    return _key(task["tables"]["data"])


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


if __name__ == "__main__":
    main()
