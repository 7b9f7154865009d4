"""Launches that are captured once and replayed: a CUDA graph, or in the interpreter the same launches once more.

A graph repeats its launches to the letter: the same tensors at the same places, the same numbers. What may differ from
one time to the next must be read from memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

import torch

from .launch import Launch, again, taped

_capturing = threading.Lock()  # one capture at a time, whichever device it is for


class Graph(Protocol):
    """Captured launches."""

    def replay(self) -> None:
        """Makes them again, on the current stream."""


class _CudaGraph:
    def __init__(self, body: Callable[[], None], device: torch.device) -> None:
        self._graph, self._device = torch.cuda.CUDAGraph(), device
        stream = torch.cuda.Stream(device)
        # Other threads go on with other devices: only what this one does may break the capture.
        captured = torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local")
        with _capturing, torch.cuda.device(device), captured, taped() as launches:
            body()
        self._launches = launches  # they keep the tensors that the graph reads
        self.replay()

    def replay(self) -> None:
        with torch.cuda.device(self._device):
            self._graph.replay()


class _Tape:
    """For tensors that no CUDA graph can hold: stricter than one, because torch's own operations are not repeated."""

    def __init__(self, body: Callable[[], None]) -> None:
        with taped() as launches:
            body()
        self._launches: list[Launch] = launches

    def replay(self) -> None:
        for item in self._launches:
            again(item)


def capture(body: Callable[[], None], device: torch.device) -> Graph:
    """Does what `body` does, which must have been done before (kernels are compiled then) and must not wait for the
    device; captures its launches."""
    return _CudaGraph(body, device) if device.type == "cuda" else _Tape(body)
