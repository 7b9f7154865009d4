"""The device that a run lives on: one that is there and holds numbers, or an error in one sentence."""

from __future__ import annotations

import torch


def find_device(device: torch.device | str) -> torch.device:
    """The device that is meant; refused, if torch does not have it here."""
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, ImportError, TypeError) as error:  # torch says it in all these ways
        problem = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"device: must be one that torch has here, as in cpu, got {_word(device)}: {problem}"
        ) from error
    if found.type == "meta":
        raise ValueError("device: must be one that holds numbers, got 'meta'")
    there = 1 if found.type == "cpu" else torch.get_device_module(found).device_count()
    if found.index is not None and not 0 <= found.index < there:
        names = ", ".join(f"{found.type}:{number}" for number in range(there)) or "none"
        raise ValueError(f"device: must be one of the {there} that are here ({names}), got {_word(device)}")
    return found


def _word(device: torch.device | str) -> str:
    return repr(str(device) if isinstance(device, torch.device) else device)
