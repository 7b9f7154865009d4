"""Progress of a run: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_SECONDS_BETWEEN_LINES = 10.0


class Display(Protocol):
    """Shows the rows of a run as they come."""

    def show(self, row: dict[str, Any]) -> None: ...


@contextmanager
def display(wanted: bool | None, done: int, total: int | None) -> Iterator[Display]:
    """`wanted` None: a bar if standard error is a terminal, else lines; True: the same; False: nothing."""
    if wanted is False:
        yield _Silent()
    elif sys.stderr.isatty():
        with _Bar(done, total) as bar:
            yield bar
    else:
        yield _Lines(done, total)


class _Silent:
    def show(self, row: dict[str, Any]) -> None:
        """Nothing."""


class _Bar:
    def __init__(self, done: int, total: int | None) -> None:
        columns = (TextColumn("round"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[says]}"))
        self._progress = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))
        self._task = self._progress.add_task("round", total=total, completed=done, says="")
        self._best: dict[str, float] = {}

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def show(self, row: dict[str, Any]) -> None:
        self._best |= {name: row[name] for name in row if name.startswith("test_")}
        speed = self._progress.tasks[self._task].speed
        says = _numbers({**row, **self._best}) + (f"  {speed:.1f} rounds/s" if speed else "")
        self._progress.update(self._task, completed=row["round"], says=says)


class _Lines:
    def __init__(self, done: int, total: int | None) -> None:
        self._total, self._first, self._began = total, done, time.monotonic()
        self._said = self._began

    def show(self, row: dict[str, Any]) -> None:
        now = time.monotonic()
        if now - self._said < _SECONDS_BETWEEN_LINES:
            return
        self._said = now
        speed = (row["round"] - self._first) / (now - self._began)
        of_all = "" if self._total is None else f"/{self._total}"
        print(f"round {row['round']}{of_all}  {_numbers(row)}  {speed:.1f} rounds/s", file=sys.stderr, flush=True)


def _numbers(row: dict[str, Any]) -> str:
    shown = [name for name in row if (name == "train_loss" or name.startswith("test_")) and row[name] is not None]
    return "  ".join(f"{name.replace('_', ' ')} {row[name]:.4g}" for name in shown)
