"""How much memory this process has, and had at its peak: nothing but Python is needed here."""

from __future__ import annotations

import ctypes
import gc
import re
import resource
import sys
from pathlib import Path

_PROC = Path("/proc/self")


def watch() -> int:
    """The resident set in bytes, from which on the peak is watched."""
    _return_free_memory()
    try:
        (_PROC / "clear_refs").write_text("5")  # Linux: the peak starts anew
        return _status("VmRSS")
    except OSError:
        return peak()


def _return_free_memory() -> None:
    """Gives back what making the data has left free in the heap: a round that used that would seem to need nothing."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc
    if trim is not None:
        trim(0)


def peak() -> int:
    """The most that was resident since, in bytes."""
    try:
        return _status("VmHWM")
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status(name: str) -> int:
    """A line of /proc/self/status, in bytes."""
    found = re.search(rf"^{name}:\s+(\d+) kB$", (_PROC / "status").read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"/proc/self/status has no line {name}")
    return int(found[1]) * 1024
