"""How much memory a round takes: the resident set of a fresh process, before it and at its peak.

As a program (``python -m fastfed.bench.rounds.memory '{"workload": "W2", ...}'``) it runs the round and prints a
`Footprint`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ..peers.resident import peak, watch
from .prepared import Prepared
from .workloads import WORKLOADS

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
    before = watch()
    for _ in range(ROUNDS):
        call()
    return Footprint(before, peak())


def _wake(threads: int, executor: str) -> None:
    """Loads libraries and starts threads with a tiny round, so that they are not taken for the round's memory."""
    Prepared.of(WORKLOADS["W1"], 2, threads, executor).our_round(2)()


if __name__ == "__main__":
    print(json.dumps(asdict(_run(**json.loads(sys.argv[1])))))
