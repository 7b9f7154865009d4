"""Where a benchmark runs: the host, or a card, whose clock is read when all that it was handed is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ...cards import card_of, why_none
from ...devices import find_device
from .timing import Call

CPU = torch.device("cpu")


def _nothing() -> None:
    """The host is done when a call returns."""


@dataclass(frozen=True)
class Place:
    """A `device`. `card` is the name of a card, "" for the host; `synchronise` waits until the device is done.

    `grown_by` says how many bytes a call takes at its peak, on a card that counts them; None if nobody does.
    """

    device: torch.device = CPU
    card: str = ""
    synchronise: Callable[[], None] = _nothing
    grown_by: Callable[[Call], int | None] = lambda call: None

    @property
    def on_card(self) -> bool:
        return bool(self.card)

    @property
    def name(self) -> str:
        """As results have it."""
        return self.card or "cpu"


HOST = Place()


def find_place(device: str) -> Place:
    """The host for "cpu", else a CUDA device; an error in one sentence if that is not there."""
    if device == "cpu":
        return HOST
    if torch.device(device).type != "cuda":
        raise ValueError(f"must be cpu or a CUDA device as in cuda:0, got {device!r}")
    missing = why_none()
    if missing is not None:
        raise ValueError(missing)
    found = find_device(device)
    card = card_of(torch.cuda.current_device() if found.index is None else found.index)
    there = torch.device("cuda", card.index)
    return Place(there, card.name, lambda: torch.cuda.synchronize(there), lambda call: _grown_by(call, there))


def _grown_by(call: Call, device: torch.device) -> int:
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
