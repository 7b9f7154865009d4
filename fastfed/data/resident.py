"""Examples on a device."""

from __future__ import annotations

import torch
from torch import Tensor


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor on the device, without waiting for it: through pinned memory to a CUDA device; itself on the CPU."""
    if device.type != "cuda" or not tensor.is_cpu:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
