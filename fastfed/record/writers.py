"""Rows of a run as they come: JSON lines, TensorBoard events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from ..extras import needed
from ..files import write_whole
from .history import History, Row


class Recorder(Protocol):
    """Takes rows as they come."""

    def write(self, row: Row) -> None: ...

    def close(self) -> None: ...


class JsonLines:
    """One JSON object per line. `history` is what the file holds already: a resumed run begins by writing it again."""

    def __init__(self, path: str | Path, history: History) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, "".join(map(line, history)))
        self._file = self.path.open("a")

    def write(self, row: Row) -> None:
        self._file.write(line(row))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_json_lines(path: str | Path) -> History:
    """The history that `JsonLines` wrote; an unfinished last line is left out."""
    lines = Path(path).read_text().splitlines(keepends=True)
    return History([json.loads(line) for line in lines if line.endswith("\n")])


def line(row: Mapping[str, Any]) -> str:
    """A row as a line of JSON."""
    return json.dumps(row, allow_nan=False) + "\n"


class TensorBoard:
    """TensorBoard events, one scalar per number of a row."""

    def __init__(self, directory: str | Path, history: History) -> None:
        events = needed("torch.utils.tensorboard", extra="tensorboard", by="a log of events", package="tensorboard")
        purge = int(history.rounds[-1]["round"]) + 1 if history.rounds else None
        self._writer = events.SummaryWriter(str(directory), purge_step=purge)

    def write(self, row: Row) -> None:
        for name, value in row.items():
            if name != "round" and isinstance(value, (int, float)):
                self._writer.add_scalar(name, value, row["round"])

    def close(self) -> None:
        self._writer.close()


@contextmanager
def recorders(log: str | Path | None, tensorboard: str | Path | None, history: History) -> Iterator[list[Recorder]]:
    """Those that were asked for, closed in the end."""
    opened: list[Recorder] = []
    try:
        if log is not None:
            opened.append(JsonLines(log, history))
        if tensorboard is not None:
            opened.append(TensorBoard(tensorboard, history))
        yield opened
    finally:
        for recorder in opened:
            recorder.close()
