"""Examples as the device engine reads them: the tensors of a store on the device, and batches gathered out of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...data import Examples, Pixels, Sparse
from ...data.resident import Bytes, Copied, Csr, InPlace, Numbers, upload
from ...data.store import Inputs
from ...kernels.layers import Embedding, Network, Shape
from ...losses import IGNORED, LossReduction
from ...program import Unsupported


class _Rows(NamedTuple):
    """One side of the examples: numbers row by row, or sparse rows (`starts` and `columns`, else None)."""

    numbers: Tensor
    starts: Tensor | None = None
    columns: Tensor | None = None


class Gathering:
    """Gathers batches of a store for a network; `meaning` is for images that are bytes."""

    def __init__(self, network: Network, source: Copied | InPlace, meaning: ByteMeaning | None) -> None:
        self.network, self.meaning = network, meaning
        sides = source.examples if isinstance(source, InPlace) else source
        self.inputs, self.targets = _rows_of(sides.inputs), _rows_of(sides.targets)

    def inputs_of(self, rows: Tensor, lengths: Tensor, batch: int, into: Tensor) -> None:
        """The inputs of rows (clients, batch) into the network's first buffer."""
        image, table = self.inputs.numbers.dim() == 4, None if self.meaning is None else self.meaning.values
        self._gather(self.inputs, rows, lengths, batch, into, self.network.buffers[0], table, image)

    def targets_of(
        self,
        rows: Tensor,
        lengths: Tensor,
        batch: int,
        into: Tensor,
        counts: Tensor | None,
        reduction: LossReduction = "mean",
    ) -> None:
        """The targets of rows (clients, batch); of labels, also by how many their loss is divided, `counts`
        (clients,)."""
        from ...kernels.triton.engine.batches import count_labels

        shape = self.network.shape
        numbers = shape.rows if counts is not None else shape.rows * shape.channels
        self._gather(self.targets, rows, lengths, batch, into, Shape(1, numbers, numbers), None, False)
        if counts is not None:
            count_labels(into, counts, lengths, shape.rows, reduction)

    @staticmethod
    def _gather(
        store: _Rows, rows: Tensor, lengths: Tensor, batch: int, into: Tensor, shape: Shape, table: Tensor | None,
        image: bool,
    ) -> None:  # fmt: skip
        from ...kernels.triton.engine.batches import gather, gather_sparse

        if store.starts is not None and store.columns is not None:
            gather_sparse(store.starts, store.columns, store.numbers, rows, into, lengths, shape.stride, batch)
        else:
            gather(store.numbers, table, rows, into, lengths, shape, batch, image)


def _rows_of(side: object) -> _Rows:
    if isinstance(side, (Sparse, Csr)):
        return _Rows(side.values, side.starts, side.columns)
    if isinstance(side, (Pixels, Bytes)):
        return _Rows(side.bytes.contiguous())
    if isinstance(side, Numbers):
        side = side.numbers
    assert isinstance(side, Tensor)
    return _Rows(side.contiguous())


class ByteMeaning(NamedTuple):
    """What bytes stand for, on a device: as a table (channels, 256), and as scale and shift (channels,)."""

    values: Tensor
    scale: Tensor
    shift: Tensor


def meaning_of_bytes(inputs: Inputs, device: torch.device) -> ByteMeaning | None:
    """None, if the inputs are no bytes."""
    if not isinstance(inputs, Pixels):
        return None
    return ByteMeaning(*(upload(each, device) for each in (inputs.values_of_bytes(), *inputs.scale_and_shift())))


def check_examples(examples: Examples, network: Network) -> None:
    """Kernels read what they are told to: tokens and labels must exist, and targets be as many as the outputs."""
    inputs, targets, shape = examples.inputs, examples.targets, network.shape
    labels = network.loss == "cross_entropy"
    if labels and (not isinstance(targets, Tensor) or targets.is_floating_point()):
        raise Unsupported("targets: cross entropy takes int64 labels")
    wanted = shape.rows if labels else shape.rows * shape.channels
    found = targets.width if isinstance(targets, Sparse) else targets[0].numel() if len(targets) else wanted
    if found != wanted:
        raise Unsupported(f"targets: the loss takes {wanted} numbers for an example, the data have {found}")
    if labels and isinstance(targets, Tensor):
        _check_range("targets", targets[targets != IGNORED], shape.channels)
    words = [step.layer.words for step in network.steps if isinstance(step.layer, Embedding)]
    if words and isinstance(inputs, Tensor):
        _check_range("inputs", inputs, min(words))


def _check_range(name: str, numbers: Tensor, end: int) -> None:
    if numbers.numel() and not 0 <= int(numbers.min()) <= int(numbers.max()) < end:
        raise ValueError(f"{name}: must lie in [0, {end}), got {int(numbers.min())} to {int(numbers.max())}")
