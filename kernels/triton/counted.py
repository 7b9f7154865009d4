"""What launches move and multiply, counted while the interpreter runs them: the witness of every formula for a cost.

Compiled code cannot say how often its loops turn; a run on small shapes can. Elements that a mask hides are not
counted; an element that is read twice counts twice, whether or not a card's cache would have kept it, and so does one
that is read and not used, which a compiler would leave out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from .interpreted import READ, WRITE, Access, Observer, Product, Started, observed


@dataclass
class Counts:
    """One launch. `flops` of `tl.dot` by precision (``interpreted.Product``): two for each multiplication that the
    product needs, however many passes the precision takes. `distinct_read` and `distinct_written` count every byte
    once, however often it is touched, and none as read that the launch itself had written: what a cache that held
    everything would move. `by_argument`: all bytes, by the argument whose tensor they belong to (the first of those
    that share memory)."""

    kernel: str
    programs: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    distinct_read: int = 0
    distinct_written: int = 0
    atomics: int = 0
    barriers: int = 0
    flops: Counter[str] = field(default_factory=Counter)
    by_argument: Counter[str] = field(default_factory=Counter)


@contextmanager
def counted() -> Iterator[list[Counts]]:
    """The counts of every launch made inside, in their order. Needs TRITON_INTERPRET=1."""
    counter = _Counting()
    with observed(counter):
        yield counter.launches


class _Counting(Observer):
    def __init__(self) -> None:
        self.launches: list[Counts] = []
        self._begins, self._names = np.empty(0, dtype=np.uint64), list[str]()
        # by bytes of an element: kinds and addresses, in their order
        self._touched: dict[int, list[tuple[str, np.ndarray]]] = {}

    def launch_starts(self, launch: Started) -> None:
        self.launches.append(Counts(launch.kernel))
        self._touched = {}
        storages = {t.untyped_storage().data_ptr(): name for name, t in reversed(launch.tensors.items())}
        self._begins = np.array(sorted(storages), dtype=np.uint64)
        self._names = [storages[int(begin)] for begin in self._begins]

    def launch_ends(self) -> None:
        counts = self.launches[-1]
        for item_bytes, touched in self._touched.items():
            addresses = np.concatenate([found for _, found in touched])
            written = np.concatenate([np.full(found.size, kind == WRITE) for kind, found in touched])
            _, first = np.unique(addresses, return_index=True)
            counts.distinct_read += item_bytes * int((~written[first]).sum())
            counts.distinct_written += item_bytes * np.unique(addresses[written]).size
        self._touched = {}

    def program_starts(self, index: tuple[int, int, int]) -> None:
        self.launches[-1].programs += 1

    def access(self, access: Access) -> None:
        counts, size = self.launches[-1], access.starts.size
        if size:
            owner = int(np.searchsorted(self._begins, np.uint64(access.starts[0]), side="right")) - 1
            counts.by_argument[self._names[owner]] += size * access.item_bytes
        if access.kind in (READ, WRITE):
            self._touched.setdefault(access.item_bytes, []).append((access.kind, np.unique(access.starts)))
        if access.kind == READ:
            counts.bytes_read += size * access.item_bytes
        elif access.kind == WRITE:
            counts.bytes_written += size * access.item_bytes
        else:
            counts.atomics += size

    def product(self, product: Product) -> None:
        self.launches[-1].flops[product.precision] += product.flops

    def barrier(self) -> None:
        self.launches[-1].barriers += 1
