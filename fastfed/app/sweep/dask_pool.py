"""A sweep's points on the workers of a Dask cluster: each point is a task, its directory on a disk that all share.

Every worker has one point at a time, whatever its own number of threads, and holds the data of one sweep at a time.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...hooks import Hook
from ...record.history import Row
from ..config import ConfigError
from ..runs import RunFailed
from .outcome import FAILED, INTERRUPTED
from .points import Point
from .pool import tasks_of

if TYPE_CHECKING:
    from ...simulation import Simulation

SCHEME = "dask://"
_SECONDS_TO_CONNECT = 10
_SECONDS_BETWEEN_LOOKS = 1.0  # at the cluster: for workers that came or went; at the sweep: whether it was stopped


class _Placed(NamedTuple):
    """A point that is being run, and where."""

    task: str
    worker: str


class DaskPool:
    """Runs points on the cluster whose scheduler is at "dask://HOST:PORT", with `threads` threads each (default: as
    many as its workers have)."""

    def __init__(self, address: str, threads: int | None) -> None:
        if not address.startswith(SCHEME) or not address.removeprefix(SCHEME):
            raise ConfigError(f"--pool: must be the address of a scheduler, {SCHEME}HOST:PORT, got {address!r}")
        self._client = _connected(address)
        self._threads = threads
        self._stop = f"fastfed-{uuid.uuid4().hex}"  # the name of the event that points in flight listen to
        self.stopping = self._at_once = False

    def __enter__(self) -> DaskPool:
        return self

    def __exit__(self, *error: object) -> None:
        """As `Pool` says: who listens to the event need not be waited for."""
        if error[0] is not None:
            with suppress(OSError):
                self._tell_to_stop()
        self._client.close()

    def run(self, tasks: Iterable[tuple[Point, Path]], rounds: int | None, is_last: bool) -> Iterator[dict[str, Any]]:
        """As `Pool` says."""
        waiting: deque[dict[str, Any]] = deque(tasks_of(tasks, rounds))
        running: dict[Any, _Placed] = {}
        while (waiting and not self.stopping) or running:
            workers = self._workers()
            busy = {placed.worker for placed in running.values()}
            for worker in workers.keys() - busy:
                if waiting and not self.stopping:
                    task = waiting.popleft()
                    running[self._submit(task, worker, workers[worker])] = _Placed(task["task"], worker)
            if self.stopping:
                self._tell_to_stop()
            for future in self._over(running, workers):
                placed = running.pop(future)
                lost = placed.worker not in workers
                yield {"event": "finished", "task": placed.task, **self._result(future, placed, lost)}

    def stop(self) -> None:
        """As `Pool` says. Only noted here: a signal handler must not speak to the cluster."""
        self._at_once, self.stopping = self.stopping, True

    def _workers(self) -> dict[str, int]:
        """The threads of each worker by its address."""
        try:
            found = self._client.scheduler_info(n_workers=-1)["workers"]
        except OSError as error:
            raise RunFailed(f"--pool: the scheduler has gone ({error}); --resume goes on") from error
        return {name: int(worker["nthreads"]) for name, worker in found.items()}

    def _submit(self, task: dict[str, Any], worker: str, threads: int) -> Any:
        return self._client.submit(
            run_on_worker,
            task,
            self._threads or threads,
            self._stop,
            key=f"{self._stop}-{uuid.uuid4().hex}",  # a scheduler gives the same key the result that it has
            workers=[worker],
            pure=False,
            retries=0,
        )

    def _over(self, running: dict[Any, _Placed], workers: dict[str, int]) -> list[Any]:
        """The points that are done, or whose workers are no more; after a while none perhaps."""
        from distributed import wait

        if not running:
            time.sleep(_SECONDS_BETWEEN_LOOKS)  # for workers
            return []
        with self._client.as_current(), suppress(TimeoutError):
            wait(list(running), timeout=_SECONDS_BETWEEN_LOOKS, return_when="FIRST_COMPLETED")
        if self._at_once:
            return list(running)
        return [future for future, placed in running.items() if future.done() or placed.worker not in workers]

    def _result(self, future: Any, placed: _Placed, lost: bool) -> dict[str, Any]:
        if self._at_once and not future.done():
            future.cancel(force=True)
            return {"status": INTERRUPTED, "error": None}
        if lost and not future.done():
            future.cancel(force=True)
            return {
                "status": FAILED,
                "error": f"{placed.task}: the worker that ran it, {placed.worker}, has gone; --resume tries it again",
            }
        try:
            result: dict[str, Any] = future.result()
        except Exception as error:
            return {"status": FAILED, "error": f"{placed.task}: {type(error).__name__}: {error}".splitlines()[0]}
        future.release()
        return result

    def _tell_to_stop(self) -> None:
        from distributed import Event

        Event(self._stop, client=self._client).set()


def _connected(address: str) -> Any:
    try:
        from distributed import Client
    except ModuleNotFoundError as error:
        raise ConfigError(f"--pool: {SCHEME} needs {error.name}: pip install 'fastfed[dask]'") from None
    try:
        return Client("tcp://" + address.removeprefix(SCHEME), timeout=_SECONDS_TO_CONNECT, set_as_default=False)
    except (OSError, ValueError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"--pool: no scheduler answers at {address}: {why}") from None


# ---- on a worker ----------------------------------------------------------------------------------------------------

_one_at_a_time = threading.Lock()
_stores: list[Any] = []  # the data that this worker holds, once it has any


def run_on_worker(task: dict[str, Any], threads: int, stop: str) -> dict[str, Any]:
    """Runs a point in this process; `stop` is the name of the event that interrupts it."""
    import torch

    from ..config import parse
    from .host import DataStore, run_point, sentence_of
    from .points import shortened, with_threads

    with _one_at_a_time:
        torch.set_num_threads(threads)
        _stores[:] = _stores or [DataStore()]
        try:
            config = with_threads(shortened(parse(task["tables"]), task["rounds"]), threads)
            _stores[0].keep([task])
            fed = _stores[0].get(task, config.data, lambda name: None)
        except Exception as error:
            return {"status": FAILED, "error": sentence_of(error)}
        return run_point(task, config, fed, [_Interrupts(stop)])


class _Interrupts(Hook):
    """Interrupts a run, as Ctrl-C would, once the event of that name is set."""

    def __init__(self, name: str) -> None:
        from distributed import Event

        self._event, self._looked = Event(name), time.monotonic()

    def after_round(self, sim: Simulation, row: Row, last: bool) -> None:
        if time.monotonic() - self._looked > _SECONDS_BETWEEN_LOOKS:
            self._looked = time.monotonic()
            if self._event.is_set():
                raise KeyboardInterrupt
