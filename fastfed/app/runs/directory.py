"""The directory of a run: its files, what they say, and how they are changed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...files import as_json, write_over, write_whole
from ...record.history import History
from ...record.writers import read_json_lines
from ...saved.checkpoint import OF_A_RUN, all_of
from ...shown import Shown
from ..config import ConfigError
from ..config import document as documents

CONFIG, INFO, ROUNDS, CLIENTS, COSTS = "config.toml", "run.json", "rounds.jsonl", "clients.json", "costs.json"
CHECKPOINT, TRACEBACK = OF_A_RUN, "traceback.txt"


class RunExists(ValueError):
    """A directory holds a run already."""


class DamagedRun(ValueError):
    """A directory holds no run, or one that cannot be read: the message names the file."""


class RunFailed(RuntimeError):
    """A run ended before its time; its directory says so too."""


@dataclass(frozen=True, repr=False)
class Run(Shown):
    """A run as its directory tells it. `config` is the resolved configuration as plain tables (``config.parse`` makes
    a `Config` of it), `info` what run.json holds, `history` the rows so far; `clients` and `costs` may be None."""

    path: Path
    config: dict[str, Any]
    info: dict[str, Any]
    history: History
    clients: dict[str, Any] | None
    costs: dict[str, Any] | None

    def _facts(self) -> dict[str, object]:
        measured = self.history.values(self.metric)
        last = {self.metric: measured[-1]} if measured else {}
        return {"path": str(self.path), "name": self.name, "status": self.status, "rounds": len(self.history), **last}

    @property
    def name(self) -> str:
        return str(self.info["name"])

    @property
    def status(self) -> str:
        """ "running", "done", "interrupted" or "failed"."""
        return str(self.info["status"])

    @property
    def metric(self) -> str:
        """The column that says how good the model is."""
        return str(self.info["metric"])


def find(directory: str | Path) -> list[Path]:
    """All runs below a directory, itself included, by their paths."""
    return sorted(path.parent for path in Path(directory).rglob(INFO) if (path.parent / CONFIG).is_file())


def holds_run(path: str | Path) -> bool:
    """Whether there is a run, or a part of one."""
    return any((Path(path) / name).exists() for name in (CONFIG, INFO, ROUNDS, CHECKPOINT))


def has_rows(path: str | Path) -> bool:
    """Whether a round was run there that a checkpoint keeps."""
    return bool(all_of(Path(path) / CHECKPOINT))


def read(path: str | Path) -> Run:
    """The run of a directory."""
    home = Path(path)
    if not (home / INFO).is_file():
        raise DamagedRun(f"{home}: holds no run ({INFO} is not there)")
    info = read_json(home / INFO)
    for name in ("name", "status", "metric", "seconds", "started"):
        if name not in info:
            raise DamagedRun(f"{home / INFO}: is damaged: it does not say {name!r}")
    history = History() if not (home / ROUNDS).exists() else _rows(home / ROUNDS)
    return Run(home, _tables(home / CONFIG), info, history, _optional(home / CLIENTS), _optional(home / COSTS))


def _tables(path: Path) -> dict[str, Any]:
    try:
        return documents.read_alone(path)
    except ConfigError as error:
        raise DamagedRun(str(error)) from error


def _rows(path: Path) -> History:
    try:
        return read_json_lines(path)
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedRun(f"{path}: is damaged: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    try:
        held = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedRun(f"{path}: cannot be read: {error}") from error
    if not isinstance(held, dict):
        raise DamagedRun(f"{path}: is damaged: it holds no JSON object")
    return held


def _optional(path: Path) -> dict[str, Any] | None:
    return read_json(path) if path.exists() else None


def update(path: str | Path, **changes: Any) -> None:
    """Changes what run.json says: whole or not at all; where the disk has no room for another file, in its place."""
    target = Path(path) / INFO
    text = as_json({**read_json(target), **changes})
    try:
        write_whole(target, text)
    except OSError:
        write_over(target, text)
