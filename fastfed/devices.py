"""The devices that a run lives on: ones that are there and hold numbers, or an error in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .kernels.registry import interpreting

Devices = torch.device | str | Sequence[torch.device | str]  # several by name: "cuda:0,cuda:1", or all cards: "cuda:*"
ALL_CARDS = "cuda:*"


def find_devices(device: Devices) -> tuple[torch.device, ...]:
    """The devices that are meant, at least one; refused, if one is not here, or named twice.

    Only Triton's interpreter, which pretends that the CPU is a card, may have it several times.
    """
    each = _each(device)
    if each == [ALL_CARDS]:
        return _all_cards()
    if not each:
        raise ValueError(f"device: must name at least one device, got {device!r}")
    found = tuple(find_device(one) for one in each)
    if len(found) == 1:
        return found
    numbered = [_numbered(one) for one in found]
    twice = next((one for one in numbered if numbered.count(one) > 1), None)
    if twice is not None and not (interpreting() and twice.type == "cpu"):
        raise ValueError(f"device: must name every device once, got {written(device)!r}, which has {twice} twice")
    return tuple(numbered)


def written(device: Devices) -> str:
    """Devices as one word, which `find_devices` reads again."""
    return ",".join(map(str, _each(device)))


def kind_of(device: Devices) -> str:
    """What kind of device is meant (cpu, cuda), here or elsewhere."""
    return torch.device(written(device).partition(",")[0].removesuffix(":*")).type


def _each(device: Devices) -> list[torch.device | str]:
    if isinstance(device, str):
        return [name.strip() for name in device.split(",")]
    return list(device) if isinstance(device, Sequence) else [device]


def _all_cards() -> tuple[torch.device, ...]:
    cards = torch.cuda.device_count()
    if not cards:
        raise ValueError(f"device: {ALL_CARDS!r} means all CUDA devices, and torch has none here")
    return tuple(find_device(f"cuda:{number}") for number in range(cards))


def _numbered(device: torch.device) -> torch.device:
    """The device by its own number: "cuda" is the current one."""
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", torch.cuda.current_device())


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
