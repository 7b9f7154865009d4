"""What a run has to say besides its numbers: each sentence once, on the screen and in the record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from .train.executors import Executor


class Notes:
    """Sentences in their order. Those that were shown are not shown again."""

    def __init__(self) -> None:
        self._sentences: list[str] = []
        self._shown = 0

    def __iter__(self) -> Iterator[str]:
        return iter(self._sentences)

    def __len__(self) -> int:
        return len(self._sentences)

    def add(self, sentence: str) -> None:
        """Says it, unless it was said before."""
        if sentence not in self._sentences:
            self._sentences.append(sentence)

    def unseen(self) -> list[str]:
        """Those that nobody was shown yet, who is shown them now."""
        found, self._shown = self._sentences[self._shown :], len(self._sentences)
        return found


def tell_of_slower(notes: Notes, executor: Executor, device: torch.device) -> None:
    """Says why "auto" did not take the fastest executor of the device."""
    fastest = "native" if device.type == "cpu" else "device"
    if executor.name != fastest:
        notes.add(f"executor: {executor.name}, not {fastest}: {executor.why}")
