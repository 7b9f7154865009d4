"""Whether others use the machine: their load hits contenders unequally, so ratios taken beside it say little.

A loop of small operations on several threads waits at every one of them for a thread that has lost its core, and can
become ten times slower; one client per thread only gets its smaller share.
"""

from __future__ import annotations

import time
from pathlib import Path

_STAT = Path("/proc/stat")
SECONDS = 0.5
TOLERABLE = 0.15  # of all cores; about what a desktop does by itself


def busy(seconds: float = SECONDS) -> float | None:
    """The share of all cores that was in use while this process slept; None where the system does not tell."""
    before = _ticks()
    time.sleep(seconds)
    after = _ticks()
    if before is None or after is None or after[1] == before[1]:
        return None
    return 1 - (after[0] - before[0]) / (after[1] - before[1])


def _ticks() -> tuple[int, int] | None:
    """Idle ticks and all ticks of all cores so far (Linux)."""
    try:
        fields = [int(field) for field in _STAT.read_text().splitlines()[0].split()[1:9]]
    except (OSError, ValueError, IndexError):
        return None
    return fields[3] + fields[4], sum(fields)
