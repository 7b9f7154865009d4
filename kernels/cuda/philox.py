"""Launches the random numbers. A permutation is the stable order of its sort keys, found by torch."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from ..rows import draws_rows
from ..streams import StreamWords
from .launch import THREADS, is_wide, quad_blocks, run, suffix


class Words(ctypes.Structure):
    """``Stream`` of csrc/philox.h."""

    _fields_ = [(name, ctypes.c_uint32) for name in StreamWords._fields]


class Draws(ctypes.Structure):
    """``Draws`` of csrc/cuda/philox.cu."""

    _fields_ = [
        ("out", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("clients", ctypes.c_longlong),
        ("n", ctypes.c_longlong),
    ]


class ShuffleKeys(ctypes.Structure):
    """``ShuffleKeys`` of csrc/cuda/philox.cu."""

    _fields_ = [
        ("out", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("steps", ctypes.c_void_p),
        ("counts", ctypes.c_void_p),
        ("rows", ctypes.c_longlong),
        ("width", ctypes.c_longlong),
    ]


def _draw(kernel: str, blocks: int, out: Tensor, stream: StreamWords, clients: Tensor) -> None:
    draws = Draws(out.data_ptr(), clients.data_ptr(), *out.shape)
    run("philox", kernel, out.device, blocks, out.shape[0], draws, Words(*stream))


@draws_rows
def uniform(out: Tensor, stream: StreamWords, clients: Tensor) -> None:
    """out: (clients, n) float32."""
    n = out.shape[1]
    _draw(f"philox_uniform{suffix(is_wide(n, out))}", quad_blocks(n), out, stream, clients)


@draws_rows
def normal(out: Tensor, stream: StreamWords, clients: Tensor) -> None:
    """out: (clients, n) float32."""
    n = out.shape[1]
    _draw(f"philox_normal{suffix(is_wide(n, out))}", quad_blocks(n), out, stream, clients)


@draws_rows
def permutation(out: Tensor, stream: StreamWords, clients: Tensor) -> None:
    """out: (clients, n) int64, every row a permutation of 0 .. n-1."""
    keys = torch.empty_like(out)
    _draw("philox_keys", -(-out.shape[1] // (2 * THREADS)), keys, stream, clients)
    out.copy_(keys.sort(dim=1, stable=True).indices)


def shuffles(out: Tensor, stream: StreamWords, clients: Tensor, steps: Tensor, counts: Tensor) -> None:
    """out: (rows, width) int64; clients, steps, counts: (rows,) int64."""
    rows, width = out.shape
    keys = torch.empty_like(out)
    to = ShuffleKeys(*(tensor.data_ptr() for tensor in (keys, clients, steps, counts)), rows, width)
    run("philox", "philox_shuffle_keys", out.device, -(-width // (2 * THREADS)), rows, to, Words(*stream))
    out.copy_(keys.sort(dim=1, stable=True).indices)
