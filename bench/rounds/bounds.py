"""What no round can be quicker than: its products at the processor's speed, its bytes at that of the memory.

The processor's speed is that of multiply-adds in registers, which wait for nothing; a large product of the library's
(sgemm) stays behind it. Products that are left out (Winograd's, those of the Gram form) count as if they were made.

The bytes are those that must come from memory whatever the engine does: a client's examples, once for each epoch, and,
of a model that the caches cannot hold beside a thread's others, its weights: read once by each pass of a step and
written once, and four times over when a client begins and ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from ... import _core
from ...data import Examples, Inputs, Pixels, Sparse
from ..common.timing import Call, Timing
from .workloads import Workload

SPIN, SGEMM, READ = "multiply-adds", "sgemm", "read"
ROUNDS = 1 << 20  # of multiply-adds: some milliseconds
SIDE = 1024  # of the square matrices whose product is the peak
MEMORY = 1 << 28  # bytes that are read, far more than caches hold
COPIES = 3  # of a model that a thread works with: the client's own, the start, the sum
_FLOAT = 4
_POWERS = {"K": 10, "M": 20}


class Peaks(NamedTuple):
    """What this machine reaches with so many threads, a second: operations in registers, of a large product; bytes
    read."""

    flops: float
    sgemm: float
    bytes: float


@dataclass(frozen=True)
class Bound:
    """Seconds that the workload's products and its bytes take at the machine's peaks, and its products by sgemm."""

    products: float
    sgemm: float
    memory: float

    @property
    def seconds(self) -> float:
        return max(self.products, self.memory)

    @property
    def words(self) -> str:
        """Which of the two it is."""
        return "products" if self.products >= self.memory else "memory"


def peak_calls() -> dict[str, Call]:
    """What is timed for them, with torch's threads as they are."""
    a, b, out = (torch.rand(SIDE, SIDE) for _ in range(3))
    long = torch.rand(MEMORY // _FLOAT)
    return {
        SPIN: lambda: _core.product_probe(ROUNDS),
        SGEMM: lambda: torch.mm(a, b, out=out),
        READ: lambda: long.sum(),
    }


def peaks_of(timings: Mapping[str, Timing]) -> Peaks:
    """By the timings of these calls, among others."""
    operations = _core.product_probe(ROUNDS)
    return Peaks(operations / timings[SPIN].median, 2 * SIDE**3 / timings[SGEMM].median, MEMORY / timings[READ].median)


def bytes_of_client(workload: Workload, examples: Examples, parameters: int, threads: int, cache: int) -> float:
    """The bytes that one client's training moves through a memory behind `cache` bytes of caches; of the `parameters`
    that it goes through as a whole."""
    each = sum(map(_bytes, (examples.inputs, examples.targets))) / len(examples)
    data = workload.epochs * workload.examples * each
    model = _FLOAT * parameters
    if COPIES * model * threads <= cache:
        return data
    steps = workload.epochs * -(-workload.examples // workload.batch)
    return data + model * (3 * steps + 4)


def bound_of(flops: float, moved: float, peaks: Peaks) -> Bound:
    """Of so many operations and bytes."""
    return Bound(flops / peaks.flops, flops / peaks.sgemm, moved / peaks.bytes)


def cache_size() -> int:
    """The bytes of the largest cache; 0 if the system does not say (Linux does)."""
    sizes = [place.read_text().strip() for place in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(size[:-1]) << _POWERS[size[-1]] for size in sizes if size[-1:] in _POWERS), default=0)


def _bytes(store: Inputs) -> int:
    if isinstance(store, Sparse):
        return sum(tensor.nbytes for tensor in (store.starts, store.columns, store.values))
    return store.bytes.nbytes if isinstance(store, Pixels) else store.nbytes
