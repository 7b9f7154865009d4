"""Examples as the device engine reads them: a store's tensors on the device, and batches gathered out of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..data import Examples, Pixels, Sparse
from ..kernels.layers import Network, Shape
from ..program import Unsupported


class DeviceStore:
    """The examples of a store on a device: bytes as bytes, sparse rows as sparse, nothing made larger."""

    def __init__(self, examples: Examples, network: Network, device: torch.device) -> None:
        self.network = network
        inputs, targets = examples.inputs, examples.targets
        self.table = inputs.values_of_bytes().to(device) if isinstance(inputs, Pixels) else None
        numbers = inputs.bytes if isinstance(inputs, Pixels) else inputs
        self.image = isinstance(numbers, Tensor) and numbers.dim() == 4
        self.inputs, self.targets = _on(numbers, device), _on(targets, device)
        _check_labels(targets, network)

    def load(self, rows: Tensor, lengths: Tensor, batch: int, into: Tensor) -> None:
        """Gathers the inputs of rows (clients, batch) into the network's first buffer."""
        self._gather(self.inputs, rows, lengths, batch, into, self.network.buffers[0], self.table, self.image)

    def load_targets(self, rows: Tensor, lengths: Tensor, batch: int, into: Tensor, counts: Tensor | None) -> None:
        """Gathers the targets of rows (clients, batch); of labels, `counts` (clients,) how many count."""
        from ..kernels.triton.engine.batches import count_labels

        shape = self.network.shape
        numbers = shape.rows if counts is not None else shape.rows * shape.width
        self._gather(self.targets, rows, lengths, batch, into, Shape(1, numbers, numbers), None, False)
        if counts is not None:
            count_labels(into, counts, lengths, shape.rows)

    def _gather(
        self, store: Any, rows: Tensor, lengths: Tensor, batch: int, into: Tensor, shape: Shape, table: Tensor | None,
        image: bool,
    ) -> None:  # fmt: skip
        from ..kernels.triton.engine.batches import gather, gather_sparse

        if isinstance(store, Sparse):
            gather_sparse(store.starts, store.columns, store.values, rows, into, lengths, shape.stride, batch)
        else:
            gather(store, table, rows, into, lengths, shape, batch, image)


def _on(rows: Tensor | Sparse, device: torch.device) -> Tensor | Sparse:
    if isinstance(rows, Sparse):
        return Sparse(rows.starts.to(device), rows.columns.to(device), rows.values.to(device), rows.width)
    return rows.contiguous().to(device)


def _check_labels(targets: Tensor | Sparse, network: Network) -> None:
    """The loss knows what it is given: labels or numbers, as many as the outputs."""
    shape = network.shape
    if network.loss == "cross_entropy":
        if not isinstance(targets, Tensor) or targets.is_floating_point():
            raise Unsupported("targets: cross entropy takes int64 labels")
        wanted = shape.rows
    else:
        wanted = shape.rows * shape.width
    found = targets.width if isinstance(targets, Sparse) else targets[0].numel() if len(targets) else wanted
    if found != wanted:
        raise Unsupported(f"targets: the loss takes {wanted} numbers for an example, the data have {found}")
