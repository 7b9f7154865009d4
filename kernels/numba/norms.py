"""Euclidean norm of every row, and rows scaled down to a norm."""

from __future__ import annotations

import torch
from numba import prange
from torch import Tensor

from ..rows import measures_rows
from ..torch_rules import rules as torch_rules
from .compiled import Array, add_in_order, chunks_of, jit, launch, parallel, partials_of, span_of, square_sum


@parallel
def _square_sums(x: Array, partials: Array) -> None:
    chunks = chunks_of(x.shape[1])
    for index in prange(x.shape[0] * chunks):
        client, chunk = index // chunks, index % chunks
        begin, end = span_of(chunk, x.shape[1])
        partials[client, chunk] = square_sum(x[client, begin:end])


@jit
def _scale(x: Array, scale: float) -> None:
    for i in range(x.size):
        x[i] *= scale


@parallel
def _scale_rows(x: Array, scales: Array) -> None:
    chunks = chunks_of(x.shape[1])
    for index in prange(x.shape[0] * chunks):
        client, chunk = index // chunks, index % chunks
        begin, end = span_of(chunk, x.shape[1])
        if scales[client] != 1:  # most rows of a batch are short enough, and need not be written
            _scale(x[client, begin:end], scales[client])


@measures_rows
def norms(x: Tensor, out: Tensor) -> None:
    """x: (clients, d); out: (clients,) float64."""
    partials = partials_of(*x.shape)
    launch(_square_sums, x.numpy(), partials)
    torch.sqrt(add_in_order(partials), out=out)


@measures_rows
def clip(x: Tensor, limit: float, out: Tensor) -> None:
    """Scales the rows of x (clients, d) whose norm exceeds `limit` down to it; `out` receives the norms before."""
    norms(x, out)
    launch(_scale_rows, x.numpy(), torch_rules.clip_scale(out, limit).to(x.dtype).numpy())
