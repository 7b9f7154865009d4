"""The one way to a kernel: what a launch is made of, and who carries it out (CuPy, or the host launcher in tests)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor

from .. import registry
from . import sources

Argument = Any  # a ctypes instance with the size and layout of the kernel's parameter
Grid = tuple[int, int, int]
MOST_BLOCKS_Y = 65535  # CUDA's limit for the grid's second axis

THREADS, QUAD, SUM_QUADS = (sources.size(name) for name in ("THREADS", "QUAD", "SUM_QUADS"))


class Launcher(Protocol):
    """Runs `kernel` of ``cuda/<stem>.cu`` over `grid` blocks of `threads`, in order with torch's work on `device`."""

    def launch(
        self, stem: str, kernel: str, grid: Grid, device: torch.device, arguments: Sequence[Argument], threads: int
    ) -> None: ...


@lru_cache(maxsize=1)
def launcher() -> Launcher:
    if registry.on_host():
        from .host import HostLauncher

        return HostLauncher.of_kernels()
    from .device import DeviceLauncher

    return DeviceLauncher()


def run(
    stem: str, kernel: str, device: torch.device, blocks: int, clients: int, *arguments: Any, threads: int = THREADS
) -> None:
    """Launches `blocks` blocks of `threads` for each client. Arguments: tensors (or None) as pointers, whole numbers as
    long long, ctypes instances as they are; the tensors must outlive the call."""
    planes = -(-clients // MOST_BLOCKS_Y)
    grid = (blocks, -(-clients // planes), planes)
    launcher().launch(stem, kernel, grid, device, [_argument(value) for value in arguments], threads)


def _argument(value: Any) -> Argument:
    if value is None or isinstance(value, Tensor):
        return ctypes.c_void_p(address(value))
    return ctypes.c_longlong(value) if isinstance(value, int) else value


def address(tensor: Tensor | None) -> int:
    """Where the tensor's numbers start; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


def quad_blocks(d: int) -> int:
    """Blocks for d coordinates with one quad per thread."""
    return -(-d // (THREADS * QUAD))


def sum_blocks(d: int) -> int:
    """Blocks for d coordinates in a pass with a block sum: depends on d alone, so sums have one order."""
    return -(-d // (THREADS * QUAD * SUM_QUADS))


def is_wide(d: int, *rows: Tensor | None) -> bool:
    """Whether these (clients, d) tensors allow four coordinates per access."""
    return d % QUAD == 0 and all(t is None or t.data_ptr() % (QUAD * t.element_size()) == 0 for t in rows)


def suffix(wide: bool) -> str:
    return "_wide" if wide else ""
