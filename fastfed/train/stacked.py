"""Losses and gradients of many clients' models at once: one module under torch.func.vmap over stacked parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from ..data import Examples
from ..losses import Loss, LossReduction, find_padded_loss, mean_of_real
from ..packing import Packing
from .batches import meet_one_example
from .contrast import contrastive_losses
from .dropout import Dropout
from .model import LocalModel
from .padded_norm import Watch, padded
from .trial import MORE, Trial, try_forward
from .work import RoundWork


class StackedBatch(NamedTuple):
    """A padded batch for every client: all tensors with the clients in front.

    `inputs` and `targets` (clients, n, ...); `real` (clients, n) bool tells examples from padding; `uniforms` hold the
    numbers of every dropout call; `anchors` the features (clients, n, r) under every client's start model and its
    previous one, which stands for the former where there is none. Empty: no contrast.
    """

    inputs: Tensor
    targets: Tensor
    real: Tensor
    uniforms: tuple[Tensor, ...]
    anchors: tuple[Tensor, ...] = ()


class Comparison(NamedTuple):
    """How features are compared: a contrast's numbers, and the full name of the head."""

    mu: float
    temperature: float
    head: str


class StackedModel:
    """A private copy of a module and a built-in loss, differentiated for many parameter vectors at once."""

    def __init__(self, module: nn.Module, loss: Loss, device: torch.device, reduction: LossReduction = "mean") -> None:
        self.model, self.loss, self.device = LocalModel(module, device), find_padded_loss(loss, reduction), device
        self._watch = Watch()
        self.model.module = padded(self.model.module, self._watch)
        self._constants: dict[torch.dtype, dict[str, Tensor]] = {}
        self._trials: dict[torch.dtype, Trial] = {}

    def views(self, x: Tensor) -> dict[str, Tensor]:
        """The parameters by name as views of the packed `x` (d,) or (clients, d), tied ones once."""
        packing = self.packing(x.dtype)
        views = packing.views(x)
        return {slot.name: views[slot.name] for slot in packing.slots}

    def packing(self, dtype: torch.dtype) -> Packing:
        return self.model.packing_as(dtype)

    def differentiate(
        self,
        x: Tensor,
        batch: StackedBatch,
        grad: Tensor,
        comparison: Comparison | None = None,
        statistics: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The losses (clients,) of the models `x` (clients, d), with the contrast of a `comparison` where one is
        given; their gradients go into `grad` (clients, d). Also what becomes of the batch norms' `statistics`
        (clients, s), if there are any."""
        layout = self.model.statistics
        seen = {} if layout is None or statistics is None else layout.views(statistics)
        of_client = grad_and_value(partial(self._loss, comparison), has_aux=True)
        gradients, (losses, found) = vmap(of_client)(self.views(x), seen, *batch)
        for name, view in self.views(grad).items():
            view.copy_(gradients[name])
        return losses, torch.cat([found[name] for name in seen], dim=-1) if seen else None

    @torch.no_grad()
    def features(self, x: Tensor, inputs: Tensor, head: str) -> Tensor:
        """What goes into the layer `head` of the models `x` (clients, d), or of one model (d,) for all, with dropout
        off: (clients, n, r) for inputs (clients, n, ...)."""

        def of_client(parameters: Mapping[str, Tensor], own: Tensor) -> Tensor:
            with Dropout(None):
                return self.model.split(self._tensors(parameters), own, head)[1]

        found: Tensor = vmap(of_client, in_dims=(0 if x.dim() == 2 else None, 0))(self.views(x), inputs)
        return found

    def _loss(
        self,
        comparison: Comparison | None,
        parameters: Mapping[str, Tensor],
        statistics: Mapping[str, Tensor],
        inputs: Tensor,
        targets: Tensor,
        real: Tensor,
        uniforms: tuple[Tensor, ...],
        anchors: tuple[Tensor, ...],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One client's loss, and what its batch norms have found."""
        tensors = {**self._tensors(parameters), **statistics}
        with self._watched(real if statistics else None) as found:
            with Dropout(lambda call, input: uniforms[call]):
                if comparison is None:
                    return self.loss(self.model(tensors, inputs), targets, real), {**statistics, **found}
                outputs, features = self.model.split(tensors, inputs, comparison.head)
            loss = self.loss(outputs, targets, real)
            of_start, of_previous = anchors
            terms = contrastive_losses(features, of_start, of_previous, comparison.temperature)
            return loss + (comparison.mu * mean_of_real(terms, real)).to(loss.dtype), {**statistics, **found}

    @contextmanager
    def _watched(self, real: Tensor | None) -> Iterator[dict[str, Tensor]]:
        """Batch norms look at the `real` (n,) examples of a batch, and leave what they find in the dictionary."""
        self._watch.real, self._watch.found = real, {}
        try:
            yield self._watch.found
        finally:
            self._watch.real, self._watch.found = None, {}

    def _tensors(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All that the module computes with."""
        dtype = next(iter(parameters.values())).dtype
        if dtype not in self._constants:
            self._constants[dtype] = self.model.constants(dtype)
        return {**self._constants[dtype], **parameters}

    def trial(self, work: RoundWork, examples: Examples) -> Trial:
        """What a small forward pass tells of the module; made once, with the first examples of the work."""
        dtype = work.start.dtype
        if dtype not in self._trials:
            rows = work.rows[torch.arange(MORE) % len(work.rows)]
            self._trials[dtype] = self._try(work.start_of(0).to(self.device), examples, rows)
        return self._trials[dtype]

    def check_batches(self, work: RoundWork, steps: Tensor, examples: Examples) -> None:
        """Refuses, as torch does, a batch that shows a batch norm one value per channel."""
        self.trial(work, examples)
        if self._watch.is_single and bool((alone := meet_one_example(work, steps)).any()):
            position = int(alone.nonzero()[0])
            raise RuntimeError(
                f"client {work.ids[position].item()} (position {position}): a batch of one example shows a batch norm "
                "only one value per channel; use another batch_size"
            )

    def _try(self, x: Tensor, examples: Examples, rows: Tensor) -> Trial:
        inputs, targets = (tensor.to(self.device) for tensor in examples.batch(rows, x.dtype))
        leaves = {name: view.detach().requires_grad_() for name, view in self.views(x).items()}
        trial = try_forward(lambda n: self.model(self._tensors(leaves), inputs[:n]))
        real = torch.ones((1, MORE), dtype=torch.bool, device=self.device)
        uniforms = tuple(x.new_ones((1, *shape.at(MORE))) for shape in trial.dropouts)
        batch = StackedBatch(inputs[None], targets[None], real, uniforms)
        try:
            self.differentiate(x[None], batch, torch.zeros_like(x)[None])
        except Exception as error:
            raise ValueError(
                f"module: torch.func.vmap, on which executor 'batched' is built, cannot run it ({error}); use "
                "executor='eager'"
            ) from error
        return trial
