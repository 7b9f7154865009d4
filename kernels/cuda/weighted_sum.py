"""Launches the weighted sum of a batch of deltas."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from . import sources
from .launch import QUAD, THREADS, is_wide, run, suffix

DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}  # the kernels' names for them


class Deltas(ctypes.Structure):
    """``Deltas`` of csrc/cuda/deltas.h."""

    _fields_ = [
        ("rows", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("clients", ctypes.c_longlong),
        ("d", ctypes.c_longlong),
    ]

    @staticmethod
    def of(deltas: Tensor, weights: Tensor) -> Deltas:
        """deltas: (clients, d); weights: (clients,) float32."""
        return Deltas(deltas.data_ptr(), weights.data_ptr(), *deltas.shape)


LEAST_BLOCKS = 216  # two for each multiprocessor of an A100
WARP = sources.size("LANES")


class SumGrid(NamedTuple):
    """How a sum over clients is launched: whether a thread owns a quad (`wide`) or one coordinate, the threads of a
    block, and how many blocks there are."""

    wide: bool
    threads: int
    blocks: int

    @staticmethod
    def of(d: int, allows_wide: bool) -> SumGrid:
        """Quads and large blocks where that leaves blocks enough. Each coordinate is one thread's, client after client:
        short vectors must be cut finely to reach all of a card, and the cut changes no bit."""
        wide = allows_wide and d >= QUAD * WARP * LEAST_BLOCKS
        each, threads = QUAD if wide else 1, THREADS
        while threads > WARP and d < each * threads * LEAST_BLOCKS:
            threads //= 2
        return SumGrid(wide, threads, -(-d // (each * threads)))


def weighted_sum(deltas: Tensor, weights: Tensor, out: Tensor) -> None:
    grid = SumGrid.of(out.numel(), is_wide(out.numel(), deltas, out))
    name = f"weighted_sum_{DTYPES[deltas.dtype]}{suffix(grid.wide)}"
    run("weighted_sum", name, out.device, grid.blocks, 1, Deltas.of(deltas, weights), out, threads=grid.threads)
