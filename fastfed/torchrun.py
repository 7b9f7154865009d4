"""What torchrun tells a process that it starts, read without torch: the command line asks before it needs torch."""

from __future__ import annotations

import os

_ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # as torchrun sets it


def are_asked_for() -> bool:
    """Whether this process was started as one of several, as torchrun does."""
    if not all(os.environ.get(name) for name in _ENVIRONMENT):
        return False
    for name in ("RANK", "WORLD_SIZE"):
        if not os.environ[name].isdecimal():
            raise ValueError(f"{name}: must be a whole number, as torchrun sets it, got {os.environ[name]!r}")
    return int(os.environ["WORLD_SIZE"]) > 1
