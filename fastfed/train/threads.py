"""Clients side by side: threads that change nothing about the result."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def check_threads(threads: int | None) -> None:
    """An executor's number of threads: a whole number >= 1, or None for torch's."""
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise ValueError(f"threads: must be a whole number >= 1, or None, got {threads!r}")


def check_memory(executor: str, threads: int | None, memory: int | None) -> None:
    """For executors whose clients share a device's memory instead of threads: bytes, a whole number >= 1, or None."""
    if threads is not None:
        raise ValueError(f"threads: executor {executor!r} has no use for them, got {threads!r}")
    if memory is not None and (isinstance(memory, bool) or not isinstance(memory, int) or memory < 1):
        raise ValueError(f"memory: must be a whole number of bytes >= 1, or None, got {memory!r}")


@contextmanager
def one_thread_per_operation() -> Iterator[None]:
    """Torch's operations run in one thread each: how they would share their work decides about the last bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def in_order(function: Callable[[_Item], _Result], items: Iterable[_Item], threads: int) -> Iterator[_Result]:
    """function(item) for every item, `threads` at a time, the results in the items' order; few wait at any time."""
    if threads == 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[_Result]] = deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
