"""Launches the weighted sum of a batch of deltas."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from .launch import is_wide, quad_blocks, run, suffix

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


def weighted_sum(deltas: Tensor, weights: Tensor, out: Tensor) -> None:
    d = out.numel()
    name = f"weighted_sum_{DTYPES[deltas.dtype]}{suffix(is_wide(d, deltas, out))}"
    run("weighted_sum", name, out.device, quad_blocks(d), 1, Deltas.of(deltas, weights), out)
