"""Client ids of 64 bits, as hosts have them, and the 32 bits of them that key random streams."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import Stream
from ..kernels.ops.random import words
from ..purposes import Purpose

_WORD = 1 << 32


def check_ids(ids: object) -> Tensor:
    """The ids (clients,) of a work: int64 from 0 on, or uint64, on the CPU, at least one."""
    if not isinstance(ids, Tensor) or ids.dtype not in (torch.int64, torch.uint64) or ids.dim() != 1 or not ids.is_cpu:
        kind = f"{ids.dtype} {tuple(ids.shape)} on {ids.device}" if isinstance(ids, Tensor) else repr(ids)
        raise TypeError(f"ids: must be a one-dimensional int64 or uint64 tensor on the CPU, got {kind}")
    if ids.numel() == 0:
        raise ValueError("ids: must name at least one client")
    if ids.dtype is torch.int64 and int(ids.min()) < 0:
        raise ValueError(f"ids: must be >= 0, got {int(ids.min())}; those from 2**63 on are given as uint64")
    return ids


def stream_ids(ids: Tensor) -> Tensor:
    """The words below 2**32 by which streams know clients with these ids (clients,): int64.

    An id below 2**32 is its own word. A larger one has one that Philox makes of it, of its own 64 bits alone: two such
    ids share theirs, and with it the order of their examples, with a chance of 2**-32.
    """
    bits = ids.contiguous().view(torch.int64)
    low, high = bits & (_WORD - 1), (bits >> 32) & (_WORD - 1)
    if not bool(high.any()):
        return bits  # the usual case, and a simulation's
    mixed = words(high, Stream(0, Purpose.IDS), clients=low)[0]
    return torch.where(high == 0, low, mixed)
