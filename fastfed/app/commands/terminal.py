"""What commands share: a console, complaints, progress of bouts, and exit codes."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement

if TYPE_CHECKING:
    from rich.table import Table

_NOTHING = ("", "\N{EN DASH}")  # cells that say nothing
_UNBOUNDED = 1 << 20  # columns

FAILED, ASKED_WRONGLY, INTERRUPTED = 1, 2, 130


class CommandError(Exception):
    """Something failed that a user can act on; its text is the sentence they read."""


def console(stderr: bool = False) -> Console:
    """Tables need room: where the output is no terminal, nobody wraps them for us."""
    found = Console(stderr=stderr)
    return found if found.is_terminal else Console(stderr=stderr, width=150)


def say(sentence: str, stderr: bool = False) -> None:
    """A line as it is: not wrapped, not coloured, nothing in it taken for markup."""
    console(stderr).print(sentence, highlight=False, soft_wrap=True, markup=False)


def report_command(home: Path) -> str:
    """What to type for a page about the runs in a directory."""
    return f"fastfed report {shlex.quote(str(home))}"


def show_table(table: Table, stderr: bool = False) -> None:
    """A table; on a terminal that is too narrow for its words, a few lines for each of its rows."""
    shown = console(stderr)
    wide = shown.options.update(max_width=_UNBOUNDED)
    if shown.is_terminal and Measurement.get(shown, wide, table).minimum > shown.width:
        shown.print(_in_lines(table))
    else:
        shown.print(table)


def _in_lines(table: Table) -> Group:
    """Of every row the first cell, and below it the others, each with its heading; what is empty is left out."""
    from rich.table import Table
    from rich.text import Text

    first, *others = table.columns
    parts: list[RenderableType] = [] if table.title is None else [table.title]
    for place, name in enumerate(first.cells):
        lines = Table.grid(padding=(0, 1))
        for column in others:
            cell = list(column.cells)[place]
            if cell not in _NOTHING:
                lines.add_row("", column.header, cell)
        parts += [Text.from_markup(str(name), style="bold"), lines]
    return Group(*parts, *([] if table.caption is None else [table.caption]))


def complain(sentences: str) -> None:
    """On standard error, a line per sentence."""
    for sentence in sentences.splitlines():
        print(f"fastfed: {sentence}", file=sys.stderr)


@contextmanager
def told_plainly(*kinds: type[Exception]) -> Iterator[None]:
    """Errors of these kinds as `CommandError`: what they say is fit for a user."""
    try:
        yield
    except kinds as error:
        raise CommandError(str(error)) from error


@contextmanager
def exit_codes() -> Iterator[None]:
    """Errors that a user can act on as sentences: 2 where the request was wrong, 1 where it failed, 130 for Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        complain("interrupted")
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        raise  # nobody listens any more: typer ends quietly
    except Exception as error:
        told = _told(error)
        if told is None:
            raise
        complain(told[1])
        raise typer.Exit(told[0]) from error


def _told(error: Exception) -> tuple[int, str] | None:
    """The exit code of an error, and its sentence; None if it is none of a user's."""
    if isinstance(error, (CommandError, ImportError, MemoryError)):
        return FAILED, str(error) or type(error).__name__
    if isinstance(error, OSError):
        return FAILED, f"{error.filename or 'the system'}: {error.strerror or error}"
    from ...ranks import RankFailed, RankLost
    from ...train.device.self_test import SelfTestFailed
    from ..config import ConfigError  # not before an error asks for it: it takes a second
    from ..runs import DamagedRun, RunExists, RunFailed

    if isinstance(error, (ConfigError, RunExists, DamagedRun)):
        return ASKED_WRONGLY, str(error)
    return (FAILED, str(error)) if isinstance(error, (RunFailed, SelfTestFailed, RankFailed, RankLost)) else None


@contextmanager
def bouts(
    shown: Console, total: int, starts_bout: Callable[[str], bool] = lambda line: True
) -> Iterator[Callable[[str], None]]:
    """What to tell of work in `total` bouts: a bar on a terminal, which lines that start a bout move on, with the
    others printed above it; every line elsewhere."""
    if not shown.is_terminal:
        yield lambda line: print(line, file=sys.stderr, flush=True)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=shown, transient=True) as progress:
        task = progress.add_task("", total=total)
        started = 0

        def tell(line: str) -> None:
            nonlocal started
            if not starts_bout(line):
                progress.console.print(line)
                return
            progress.update(task, description=line, completed=started)
            started += 1

        yield tell
