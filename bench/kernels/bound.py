"""The streaming bound: how fast this machine can move the bytes of an op, measured beside the op itself.

The probe reads k arrays and updates j arrays in place, with SIMD and the same threads as the kernels. An update costs a
read and a write (8 bytes per float32), a read 4. A plain triad would be no bound: it writes to an array that it never
read, and pays for fetching that array all the same.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch
from torch import Tensor

from ..common.timing import Call

UPDATE = 8  # bytes that a float32 costs which is read and written

Probe = Callable[[list[Tensor], list[Tensor]], None]


def bytes_per_element(reads: int, updates: int) -> int:
    """Bytes that `reads` read-only and `updates` updated float32 arrays move for each element."""
    return 4 * reads + UPDATE * updates


def find_probe() -> Probe | str:
    """The C++ probe, or the reason why there is none."""
    try:
        core = importlib.import_module("fastfed._core")
    except ImportError as error:
        return f"no streaming bound: the compiled extension fastfed._core did not load ({error})"
    probe: Probe | None = getattr(core, "stream_probe", None)
    return probe or "no streaming bound: fastfed._core has no stream_probe; reinstall FastFed"


def contender(probe: Probe, d: int, reads: list[Tensor] | int, updates: int) -> Call:
    """The probe over `reads` (arrays that exist already, or how many to make) and `updates` arrays of `d` numbers."""
    read = [torch.full((d,), 1e-3) for _ in range(reads)] if isinstance(reads, int) else reads
    updated = [torch.ones(d) for _ in range(updates)]
    return lambda: probe(read, updated)


def on_device(d: int, reads: int, updates: int, device: torch.device) -> Call:
    """On a card, where there is no probe: torch's update in place of so many numbers that it moves the same bytes."""
    numbers = torch.ones(max(1, d * bytes_per_element(reads, updates) // UPDATE), device=device)
    return lambda: numbers.mul_(1.0)
