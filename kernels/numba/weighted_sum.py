"""The weighted sum of deltas, chunk by chunk, clients in their order."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import prange, types
from numba.extending import overload
from torch import Tensor

from .compiled import Array, chunks_of, jit, launch, parallel, span_of

# How 16 bits become a float32: shift exponent and fraction into place, then correct the exponent's bias by a power of
# two (exact, subnormals included); from `infinity` on, there is no finite exponent to correct.
Half = tuple[np.uint32, np.uint32, np.float32]  # shift, infinity, power
HALVES: dict[torch.dtype, Half] = {
    torch.bfloat16: (np.uint32(16), np.uint32(0x7F80), np.float32(1)),
    torch.float16: (np.uint32(13), np.uint32(0x7C00), np.float32(2.0**112)),
}
_NOT_FINITE = np.uint32(0x7F800000)  # the exponent of inf and nan


def elements(deltas: Tensor) -> tuple[Array, Half]:
    """Deltas as numba can read them: float32 as they are, half-width ones as 16 bits each and how to widen them."""
    if deltas.dtype is torch.float32:
        return deltas.numpy(), HALVES[torch.bfloat16]
    return deltas.view(torch.uint16).numpy(), HALVES[deltas.dtype]


@jit
def _widened(bits: Any, half: Half) -> np.float32:
    shift, infinity, power = half
    magnitude = np.uint32(bits & np.uint16(0x7FFF))
    shifted = np.uint32(magnitude << shift)
    value = shifted.view(np.float32) * power
    if magnitude >= infinity:
        value = np.uint32(shifted | _NOT_FINITE).view(np.float32)
    return -value if bits & np.uint16(0x8000) else value


def as_float32(element: Any, half: Half) -> np.float32:
    """A delta's element as float32, whatever it is stored as."""
    raise NotImplementedError("compiled code only")


@overload(as_float32, strict=False)  # strict: would compare the annotations too
def _as_float32_by_type(element: Any, half: Any) -> Any:
    if element is types.float32:
        return lambda element, half: element
    return lambda element, half: _widened(element, half)


@jit
def sum_into(out: Array, deltas: Array, weights: Array, begin: int, half: Half) -> None:
    """The weighted sum of the deltas' elements from `begin` on, as many as `out` holds."""
    for client in range(deltas.shape[0]):
        weight, delta = weights[client], deltas[client, begin : begin + out.size]
        if client == 0:
            for i in range(out.size):
                out[i] = weight * as_float32(delta[i], half)
        else:
            for i in range(out.size):
                out[i] += weight * as_float32(delta[i], half)


@parallel
def _weighted_sum(deltas: Array, weights: Array, out: Array, half: Half) -> None:
    for chunk in prange(chunks_of(out.size)):
        begin, end = span_of(chunk, out.size)
        sum_into(out[begin:end], deltas, weights, begin, half)


def weighted_sum(deltas: Tensor, weights: Tensor, out: Tensor) -> None:
    rows, half = elements(deltas)
    launch(_weighted_sum, rows, weights.numpy(), out.numpy(), half)
