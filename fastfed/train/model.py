"""A module whose parameters come from packed vectors: what `eager` and `batched` differentiate."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..data import Examples
from ..norms import Statistics
from ..packing import Packing
from .dropout import Dropout, refuse_other_dropouts
from .split import check_split, features_of, head_of, watched
from .work import RoundWork


class LocalModel:
    """A private copy of a module in training mode; the caller's module is never touched.

    Calls are not thread-safe: torch swaps the copy's parameters for the time of a call.
    """

    def __init__(self, module: nn.Module, device: torch.device | str = "cpu") -> None:
        refuse_other_dropouts(module)
        self.packing, self.statistics = Packing.of(module, batch_norm=True), Statistics.of(module)
        self.module = copy.deepcopy(module).to(device).train()
        self._heads: dict[str | None, str] = {}  # full names by what was asked for, once they are checked

    def packing_as(self, dtype: torch.dtype) -> Packing:
        """The same layout over vectors of another floating-point type."""
        return replace(self.packing, dtype=dtype)

    def constants(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """A fresh copy of the tensors that are not trained (frozen parameters, buffers), floating-point ones in
        `dtype`."""
        frozen = {name: p.detach() for name, p in self.module.named_parameters() if not p.requires_grad}
        tensors = {**frozen, **dict(self.module.named_buffers())}
        return {name: t.to(dtype if t.is_floating_point() else t.dtype, copy=True) for name, t in tensors.items()}

    def __call__(self, tensors: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """The outputs for a batch of inputs, with these parameters and constants by name."""
        outputs: Tensor = functional_call(self.module, dict(tensors), (inputs,))
        return outputs

    def split(self, tensors: Mapping[str, Tensor], inputs: Tensor, head: str) -> tuple[Tensor, Tensor]:
        """The outputs for a batch of n inputs, and what went into the layer `head`, as features (n, r)."""
        with watched(self.module.get_submodule(head)) as calls:
            outputs = self(tensors, inputs)
        return outputs, features_of(calls, head, len(inputs))

    def head(self, asked: str | None, examples: Examples) -> str:
        """The full name of the head (see `head_of`), tried on a few examples the first time."""
        if asked not in self._heads:
            name = head_of(self.module, asked)
            self._try_head(name, examples)
            self._heads[asked] = name
        return self._heads[asked]

    def _try_head(self, head: str, examples: Examples) -> None:
        x = self.packing.pack(self.module)
        views = self.packing.views(x)
        leaves = {slot.name: views[slot.name].detach().requires_grad_() for slot in self.packing.slots}
        inputs, _ = examples.batch(torch.arange(min(2, len(examples))), x.dtype)
        with Dropout(None), watched(self.module.get_submodule(head)) as calls:
            outputs = self({**self.constants(x.dtype), **leaves}, inputs.to(x.device))
        features = features_of(calls, head, len(inputs))
        check_split(calls[0], features, outputs, head)


def fitting_examples(work: RoundWork, packing: Packing, own: Examples) -> Examples:
    """The store that the work reads, its own or else the executor's; the work's vectors and rows belong to it and to
    this packed module."""
    if work.start.shape[-1] != packing.size:
        raise ValueError(f"start: has d = {work.start.shape[-1]}, the packed module {packing.size}")
    examples = own if work.examples is None else work.examples
    if examples is not own and examples.form != own.form:
        raise ValueError(f"examples: must have the form of the executor's, {own.form}, got {examples.form}")
    if work.rows.numel() and int(work.rows.max()) >= len(examples):
        raise ValueError(f"rows: must lie in [0, {len(examples)}), got {int(work.rows.max())}")
    return examples
