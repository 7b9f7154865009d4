"""A device's memory for chunks of clients, which take turns in it, and their training, which is captured there."""

from __future__ import annotations

import math
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...data.resident import upload_into

if TYPE_CHECKING:
    from ...kernels.triton.graphs import Graph

VARIABLE = "FASTFED_GRAPHS"  # "off": every launch is made by Python
MOST_GRAPHS = 8  # that are kept: chunks differ in clients and steps


class Arena:
    """Memory by name on a device: what a chunk keeps under a name lies where that of the chunk before was, so that
    launches which were captured for one can be replayed for the other. `replayed`: how often that was done."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.replayed = device, 0
        self._held: dict[str, Tensor] = {}
        self._graphs: OrderedDict[Hashable, Graph | None] = OrderedDict()

    def room(self, name: str, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """A tensor with nothing in it yet."""
        size = math.prod(shape) * dtype.itemsize
        if name not in self._held or self._held[name].numel() < size:
            self._graphs.clear()  # which know the old place, and keep it
            self._held.pop(name, None)
            self._held[name] = torch.empty(size, dtype=torch.uint8, device=self.device)
        return self._held[name][:size].view(dtype).view(*shape)

    def put(self, name: str, values: Tensor) -> Tensor:
        """A copy of a tensor that is on the host or the device."""
        return upload_into(self.room(name, values.shape, values.dtype), values)

    def run(self, kind: Hashable, training: Callable[[], None]) -> None:
        """Does a training: the first of its kind kernel by kernel, which compiles them; the second is captured, every
        further one replayed by a single call.

        All of a kind must make the same launches with the same numbers, and keep here whatever else these read.
        """
        from ...kernels.triton.graphs import capture

        if os.environ.get(VARIABLE) == "off":
            training()
        elif kind not in self._graphs:
            training()
            self._graphs[kind] = None
            if len(self._graphs) > MOST_GRAPHS:
                self._graphs.popitem(last=False)
        else:
            graph = self._graphs[kind]
            self._graphs.move_to_end(kind)
            if graph is None:
                self._graphs[kind] = capture(training, self.device)
            else:
                graph.replay()
                self.replayed += 1
