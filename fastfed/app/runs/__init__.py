"""Runs on disk: a directory with everything that a run was told, did and gave.

    config.toml   the configuration, every default stated
    run.json      how it stands and what it ran on: status, error, versions, machine, times
    rounds.jsonl  a row per round, as ``fastfed.record.writers`` writes them
    checkpoint/   where it goes on from
    clients.json  who has what
    costs.json    what a round costs a client

`execute` makes one, `read` reads one, `find` looks for them. Nothing is ever overwritten by another run.
"""

from .beginning import create
from .clients import who_has_what
from .directory import (
    CHECKPOINT,
    CONFIG,
    INFO,
    ROUNDS,
    TRACEBACK,
    DamagedRun,
    Run,
    RunExists,
    RunFailed,
    find,
    has_rows,
    holds_run,
    read,
    update,
)
from .execution import difference_from, execute, is_finished, on_first
from .lock import LOCK, RunBusy, alone, check_locks

__all__ = [
    "CHECKPOINT", "CONFIG", "INFO", "LOCK", "ROUNDS", "TRACEBACK", "DamagedRun", "Run", "RunBusy", "RunExists",
    "RunFailed", "alone", "check_locks", "create", "difference_from", "execute", "find", "has_rows", "holds_run",
    "is_finished", "on_first", "read", "update", "who_has_what",
]  # fmt: skip
