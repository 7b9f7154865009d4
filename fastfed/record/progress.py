"""Progress of a run: a bar on a terminal or in a notebook, a line now and then elsewhere."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from html import escape
from typing import Any, Protocol

_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_BETWEEN_DRAWINGS = 0.1
_WIDEST_BAR = 40


class Display(Protocol):
    """Shows the rows of a run as they come, and `say`s a sentence, if it `speaks` at all."""

    speaks: bool

    def show(self, row: dict[str, Any]) -> None: ...

    def say(self, sentence: str) -> None: ...


@contextmanager
def display(wanted: bool | None, done: int, total: int | None) -> Iterator[Display]:
    """`wanted` None: a bar in a notebook, or if standard error is a terminal (and rich is there), else lines; True: the
    same; False: nothing."""
    if wanted is False:
        yield _Silent()
    elif _is_notebook():
        cell = _NotebookBar(done, total)
        try:
            yield cell
        finally:
            cell.draw()
    elif sys.stderr.isatty() and importlib.util.find_spec("rich") is not None:
        with _Bar(done, total) as bar:
            yield bar
    else:
        yield _Lines(done, total)


class _Silent:
    speaks = False

    def show(self, row: dict[str, Any]) -> None:
        """Nothing."""

    def say(self, sentence: str) -> None:
        """Nothing."""


class _Bar:
    """Round, loss, the newest accuracy, speed and the time that is left; the bar has what room remains."""

    speaks = True

    def __init__(self, done: int, total: int | None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column

        bar = BarColumn(bar_width=None, table_column=Column(max_width=_WIDEST_BAR))
        columns = (TextColumn("round"), bar, MofNCompleteColumn(), TextColumn("{task.fields[says]}"))
        self._progress = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))
        self._task = self._progress.add_task("round", total=total, completed=done, says="")
        self._measured: dict[str, Any] = {}

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def show(self, row: dict[str, Any]) -> None:
        self._measured |= {name.removeprefix("test_"): row[name] for name in row if name.startswith("test_")}
        self._measured["loss"] = row["train_loss"]
        speed = self._progress.tasks[self._task].speed
        says = _numbers(self._measured, 3) + (f"  {speed:.3g} rounds/s" if speed else "")
        self._progress.update(self._task, completed=row["round"], says=says)

    def say(self, sentence: str) -> None:
        self._progress.console.print(f"fastfed: {sentence}", highlight=False, markup=False, soft_wrap=True)


def _is_notebook() -> bool:
    """Whether this is the kernel of a notebook, which shows what it is given in the cell's output."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and type(shell).__name__ in ("ZMQInteractiveShell", "Shell")  # the second is Colab's


class _NotebookBar:
    """One output of the cell, replaced a few times a second: plain HTML, no widget that a saved notebook would lack."""

    speaks = True

    def __init__(self, done: int, total: int | None) -> None:
        self._done, self._total, self._first = done, total, done
        self._began = self._drawn = time.monotonic()
        self._measured: dict[str, Any] = {}
        self._handle = importlib.import_module("IPython.display").display(self._bundle(), raw=True, display_id=True)

    def show(self, row: dict[str, Any]) -> None:
        self._done = row["round"]
        self._measured |= {name.removeprefix("test_"): row[name] for name in row if name.startswith("test_")}
        self._measured["loss"] = row["train_loss"]
        if time.monotonic() - self._drawn >= _SECONDS_BETWEEN_DRAWINGS:
            self.draw()

    def draw(self) -> None:
        self._drawn = time.monotonic()
        self._handle.update(self._bundle(), raw=True)

    def say(self, sentence: str) -> None:
        print(f"fastfed: {sentence}", file=sys.stderr, flush=True)

    def _bundle(self) -> dict[str, str]:
        passed = time.monotonic() - self._began
        speed = (self._done - self._first) / passed if passed > 0 else 0.0
        of = "" if self._total is None else f"/{self._total}"
        says = f"round {self._done}{of}  {_numbers(self._measured, 3)}"
        if speed:
            says += f"  {speed:.3g} rounds/s"
            if self._total is not None and self._done < self._total:
                says += f"  {timedelta(seconds=round((self._total - self._done) / speed))} left"
        known = "" if self._total is None else f' value="{self._done}" max="{max(1, self._total)}"'
        bar = f'<progress{known} style="width: 16em; vertical-align: middle"></progress>'
        return {"text/plain": says, "text/html": f"{bar} <code>{escape(says)}</code>"}


class _Lines:
    speaks = True

    def __init__(self, done: int, total: int | None) -> None:
        self._total, self._first, self._began = total, done, time.monotonic()
        self._said = self._began

    def show(self, row: dict[str, Any]) -> None:
        now = time.monotonic()
        if now - self._said < _SECONDS_BETWEEN_LINES:
            return
        self._said = now
        speed = (row["round"] - self._first) / (now - self._began)
        measured = {name: row[name] for name in row if name == "train_loss" or name.startswith("test_")}
        says = f"{_numbers(measured, 4)}  {speed:.3g} rounds/s"
        if self._total is None:
            line = f"round {row['round']}  {says}"
        else:
            left = timedelta(seconds=round((self._total - row["round"]) / speed))
            line = f"round {row['round']}/{self._total}  {says}  {left} left"
        print(line, file=sys.stderr, flush=True)

    def say(self, sentence: str) -> None:
        print(f"fastfed: {sentence}", file=sys.stderr, flush=True)


def _numbers(measured: dict[str, Any], digits: int) -> str:
    known = {name.replace("_", " "): value for name, value in measured.items() if value is not None}
    return "  ".join(f"{name} {value:.{digits}g}" for name, value in known.items())
