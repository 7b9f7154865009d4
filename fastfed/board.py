"""Memory that all ranks see which run on one machine: vectors go by it instead of the network.

A rank writes what it has, all meet, and each reads what the others wrote. A network takes every vector through the
kernel twice, and wakes a thread on each side: more than a small round takes.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import torch
from torch import Tensor

try:
    from . import _core
except ImportError:  # no compiled extension: the network serves all
    _core = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from .ranks import Ranks

LEFT_OUT = "FASTFED_RANKS_BY_NETWORK"  # set: ranks of one machine go by the network, too
MEMORY = "/dev/shm"  # where files are memory
MOST = 1 << 30  # bytes of it at the most; what takes more goes by the network
_PATIENCE = 0.5  # seconds between two looks at who is still there
_FIRST = 1 << 16  # bytes of an area to begin with
_LINE = 64


def machine() -> str | None:
    """What is the same for two processes that can share memory: the machine since it began, and its network."""
    if _core is None or os.environ.get(LEFT_OUT) or not os.access(MEMORY, os.W_OK):
        return None
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        return None


class Board:
    """Two areas, which take turns: an exchange writes to the one that all have done with when they came to the meeting
    of the exchange before. All ranks call the same functions in the same order with the same `counts`."""

    def __init__(self, ranks: Ranks, folder: str, timeout: float) -> None:
        self._ranks, self._timeout = ranks, timeout
        self._file: BinaryIO = open(Path(folder, "ranks"), "r+b")  # noqa: SIM115 - open while the process lives
        # A lock of a byte goes when its process does, however it ends.
        fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, ranks.rank)
        places = ranks.count * _core.counter_apart
        self._counters = np.frombuffer(mmap.mmap(self._file.fileno(), 8 * places), np.int64)
        self._meetings = 0
        self._areas = torch.empty(2, 0, dtype=torch.uint8)
        self._turn = 0
        self._refused = MOST  # bytes of an area that are not to be had, as far as is known

    @classmethod
    def among(cls, ranks: Ranks, timeout: float) -> Board | None:
        """Theirs, if all of them are on one machine and it has memory for it. All ranks ask."""
        machines = ranks.told(machine())
        if machines[0] is None or len(set(machines)) > 1:
            return None
        folder = ranks.on_first(lambda: _made("ranks", 8 * ranks.count * _core.counter_apart))
        if folder is None:
            return None
        board = None
        with suppress(OSError):  # containers of one machine may each have memory of their own
            board = cls(ranks, folder, timeout)
        everybody = all(ranks.told(board is not None))
        _removed(ranks, folder)
        return board if everybody and board is not None and board._has_room(_FIRST) else None

    # ---- what is exchanged ------------------------------------------------------------------------------------------

    def takes(self, like: Tensor, rows: int) -> bool:
        """Whether so many rows like those of a tensor (k, ...) may go by the board. Makes room for them."""
        return like.device.type == "cpu" and self._has_room(_bytes(like, rows))

    def gathered(self, numbers: Tensor, counts: Sequence[int]) -> list[Tensor]:
        """As `Ranks.gathered`; the board `takes` what all have together."""
        every = self._rows(numbers, sum(counts)).split(list(counts))
        every[self._ranks.rank].copy_(numbers)
        self.meet()
        return [one.clone() for one in every]

    def summed_in_slices(self, rows: Tensor, counts: Sequence[int], fold: Callable[[Tensor], Tensor]) -> Tensor:
        """As `Ranks.summed_in_slices`; the board `takes` what all have together, and the sum."""
        d, rank = rows.shape[1], self._ranks.rank
        area = self._rows(rows, sum(counts) + 1)
        every, total = area[:-1], area[-1]
        every.split(list(counts))[rank].copy_(rows)
        self.meet()
        size = -(-d // self._ranks.count)
        mine = slice(min(rank * size, d), min((rank + 1) * size, d))
        if mine.start < mine.stop:  # of fewer columns than ranks some have none
            total[mine] = fold(every[:, mine])
        self.meet()
        return total.clone()

    # ---- meetings ---------------------------------------------------------------------------------------------------

    def meet(self) -> None:
        """Waits until all ranks are there: what each wrote before is what the others read then."""
        self._meetings += 1
        until = time.monotonic() + self._timeout
        while not _core.meet(self._counters, self._ranks.rank, self._ranks.count, self._meetings, _PATIENCE):
            if gone := self._gone():
                raise RuntimeError(f"rank {gone[0]} has ended")
            if time.monotonic() > until:
                raise RuntimeError(f"nobody came within {self._timeout:g} seconds")

    def _gone(self) -> list[int]:
        """Ranks whose processes have ended without having come."""
        found = []
        for other in range(self._ranks.count):
            came = self._counters[other * _core.counter_apart] >= self._meetings
            if other == self._ranks.rank or came:
                continue
            with suppress(OSError):  # it holds its lock
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, other)
                found.append(other)
        return found

    # ---- memory -----------------------------------------------------------------------------------------------------

    def _rows(self, like: Tensor, rows: int) -> Tensor:
        """Room for so many rows like those of a tensor (k, ...), in the area whose turn it is."""
        self._turn = 1 - self._turn
        room = self._areas[self._turn, : _bytes(like, rows)]
        return room.view(like.dtype).view(rows, *like.shape[1:])

    def _has_room(self, needed: int) -> bool:
        """Whether an area has so many bytes; it grows if it must. All ranks have the same areas, and ask the same."""
        if needed <= self._areas.shape[1]:
            return True
        size = -(-max(needed, 2 * self._areas.shape[1]) // _LINE) * _LINE
        if 2 * size > MOST:
            size = -(-needed // _LINE) * _LINE
        if 2 * size > MOST or needed >= self._refused:
            return False
        folder = self._ranks.on_first(lambda: _made("areas", 2 * size))
        if folder is None:
            self._refused = needed
            return False

        def opened() -> Tensor:
            with open(Path(folder, "areas"), "r+b") as file:
                return torch.frombuffer(mmap.mmap(file.fileno(), 2 * size), dtype=torch.uint8).view(2, size)

        self._areas = self._ranks.heard(opened)
        _removed(self._ranks, folder)
        return True


def _bytes(like: Tensor, rows: int) -> int:
    return rows * math.prod(like.shape[1:]) * like.element_size()


def _made(name: str, size: int) -> str | None:
    """A folder with a file of so many bytes of memory; None if there is not so much."""
    folder = tempfile.mkdtemp(prefix=f"fastfed-{os.getpid()}-", dir=MEMORY)
    try:
        with open(Path(folder, name), "wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        return None
    return folder


def _removed(ranks: Ranks, folder: str) -> None:
    """The folder goes as soon as all have opened what is in it: nothing is left of ranks that are killed."""
    ranks.agree()
    if ranks.is_first:
        shutil.rmtree(folder, ignore_errors=True)
