"""How much memory a round takes: the resident set of a fresh process, before it and at its peak.

As a program (``python -m fastfed.bench.rounds.memory '{"workload": "W2", ...}'``) it runs the round and prints a
`Footprint`.
"""

from __future__ import annotations

import ctypes
import gc
import json
import re
import resource
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from .prepared import Prepared
from .workloads import WORKLOADS

_PROC = Path("/proc/self")
GROWN, FEW, MANY = "W2", 100, 10_000  # the workload and the numbers of clients of a `Growth`
ROUNDS = 2  # the second one would show what the first leaves behind


@dataclass(frozen=True)
class Footprint:
    """Bytes resident `before` the round, with the data, the model and the program; and at the `peak` of the round."""

    before: int
    peak: int

    @property
    def of_round(self) -> int:
        """By how many bytes the process grew."""
        return self.peak - self.before


@dataclass(frozen=True)
class Growth:
    """A round of a `few` clients and one of `many`, on the same examples, with so many threads."""

    few: Footprint
    many: Footprint
    threads: int

    @property
    def relative(self) -> float:
        """By what share the peak grows, without what the cohort's own description (its row numbers) takes."""
        return (self.many.peak - (self.many.before - self.few.before)) / self.few.peak - 1

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "relative": self.relative}


def measure(workload: str, clients: int, stored: int, threads: int, executor: str = "native") -> Footprint:
    """The footprint of a round in a process of its own; the examples are those of `stored` clients."""
    wanted = {"workload": workload, "clients": clients, "stored": stored, "threads": threads, "executor": executor}
    command = [sys.executable, "-m", "fastfed.bench.rounds.memory", json.dumps(wanted)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    if said.returncode:
        last = (said.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise RuntimeError(f"the memory of {workload} could not be measured: {last}")
    return Footprint(**json.loads(said.stdout))


def grow(threads: int, executor: str = "native") -> Growth:
    """The footprints of a few and of many clients, who share the examples of the few."""
    few, many = (measure(GROWN, clients, FEW, threads, executor) for clients in (FEW, MANY))
    return Growth(few, many, threads)


def _run(workload: str, clients: int, stored: int, threads: int, executor: str) -> Footprint:
    torch.set_num_threads(threads)
    _wake(threads, executor)
    prepared = Prepared.of(WORKLOADS[workload], stored, threads, executor)
    call = prepared.our_round(clients)
    before = _start_watching()
    for _ in range(ROUNDS):
        call()
    return Footprint(before, _peak())


def _wake(threads: int, executor: str) -> None:
    """Loads libraries and starts threads with a tiny round, so that they are not taken for the round's memory."""
    Prepared.of(WORKLOADS["W1"], 2, threads, executor).our_round(2)()


def _start_watching() -> int:
    """The resident set in bytes, from which on the peak is watched."""
    _return_free_memory()
    try:
        (_PROC / "clear_refs").write_text("5")  # Linux: the peak starts anew
        return _status("VmRSS")
    except OSError:
        return _peak()


def _return_free_memory() -> None:
    """Gives back what making the data has left free in the heap: a round that used that would seem to need nothing."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc
    if trim is not None:
        trim(0)


def _peak() -> int:
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


if __name__ == "__main__":
    print(json.dumps(asdict(_run(**json.loads(sys.argv[1])))))
