"""Launches the norms of rows and their clipping; also the second half of every sum of squares."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from ..rows import measures_rows
from .launch import is_wide, quad_blocks, run, suffix, sum_blocks


class Rows(ctypes.Structure):
    """``Rows`` of csrc/cuda/norms.cu."""

    _fields_ = [("x", ctypes.c_void_p), ("clients", ctypes.c_longlong), ("d", ctypes.c_longlong)]


def empty_partials(clients: int, blocks: int, device: torch.device) -> Tensor:
    """Room for one sum per block of every client."""
    return torch.empty((clients, blocks), dtype=torch.float64, device=device)


def fold(partials: Tensor, out: Tensor, kernel: str = "fold_squares") -> None:
    """Adds up `partials` (clients, blocks) in a fixed order into `out` (clients,)."""
    clients, blocks = partials.shape
    run("norms", kernel, out.device, 1, clients, partials, out, clients, blocks)


@measures_rows
def norms(x: Tensor, out: Tensor) -> None:
    """x: (clients, d); out: (clients,) float64."""
    clients, d = x.shape
    partials = empty_partials(clients, sum_blocks(d), x.device)
    name = f"square_rows{suffix(is_wide(d, x))}"
    run("norms", name, x.device, sum_blocks(d), clients, Rows(x.data_ptr(), clients, d), partials)
    fold(partials, out, "fold_norms")


@measures_rows
def clip(x: Tensor, limit: float, out: Tensor) -> None:
    """Scales the rows of x (clients, d) whose norm exceeds `limit` down to it; `out` receives the norms before."""
    norms(x, out)
    clients, d = x.shape
    name, rows = f"clip_rows{suffix(is_wide(d, x))}", Rows(x.data_ptr(), clients, d)
    run("norms", name, x.device, quad_blocks(d), clients, rows, out, ctypes.c_double(limit))
