"""Clients whose gradients are kept: for rules that go by norms, and for who measures gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...data.resident import upload
from ...program.lower import with_contrast
from ..bounds import BoundCounts
from ..contrast import contrastive_losses
from ..cosine import LeastCosine
from ..optimizer import LocalOptimizer, StepContext
from .chunk import Chunk
from .coefficients import epochs_of

if TYPE_CHECKING:
    from ...kernels.triton.engine.losses import Tally


class KeptChunk(Chunk):
    """Every step's gradients are kept in one buffer (chunk, d), which the client kernels then read: for rules that go
    by norms, and for who measures gradients."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        work = self.work
        self.grad = torch.zeros_like(self.x)
        own = getattr(self.optimizer, "lr", None)
        around = StepContext(
            packing=self.engine.packing,
            anchor=self.start,
            lr=own if work.lr is None else upload(work.lr[self.clients], self.device),
            correction=self.correction,
            preconditioner=self.preconditioner,
            round=work.round,
        )
        self.rule = LocalOptimizer(self.optimizer, self.x, around)
        self.before = self.x.clone() if self.rule.same_batch else None
        self.bounds = BoundCounts.beside(self.rule)
        self.cosine = LeastCosine(self.x, work.cosine_includes_step) if work.measure_cosine else None
        self.anchors = None if work.contrast is None else _Anchors(self)
        self.epochs = upload(epochs_of(work, self.clients, self.longest), self.device)
        self.size = torch.full((len(self.clients),), torch.nan, dtype=torch.float64, device=self.device)

    def step(self, step: int) -> None:
        active = self.lengths[step] > 0
        self.load(step, self.layers.values[0])
        if self.anchors is not None:
            self.anchors.look(step)
        losses = self._differentiate(step, self.x, self.grad, self.tally(step))
        if self.cosine is not None:
            self.cosine.add(self.grad, active)
        previous = None
        if self.before is not None:
            previous = torch.zeros_like(self.grad)
            self._differentiate(step, self.before, previous, None, another=True)
            previous = self.rule.corrected(previous, self.before)
            self.before.copy_(self.x)
        grown = None if self.bounds is None else self.bounds.growth(step + 1)
        self.rule.step(
            step + 1,
            self.x,
            self.grad,
            loss=losses,
            epoch=self.epochs[step] + 1,
            previous_grad=previous,
            finished=~active,
        )
        if self.bounds is not None:
            self.bounds.count(grown, active)
        self.size = torch.where(active, self.rule.step_size(step + 1), self.size)

    def _differentiate(self, step: int, x: Tensor, grad: Tensor, tally: Tally | None, another: bool = False) -> Tensor:
        """The losses (chunk,) of the models x on the loaded batches; their gradients go into `grad`."""
        from ...kernels.triton.engine.rule import Rule, Sink

        lengths, draws, network = self.lengths[step], self.draws(step, another=another), self.engine.network
        self.layers.forward(x, lengths, draws)
        losses = self.layers.loss(self.targets, self.counts, lengths, tally).clone()
        if self.anchors is not None:
            terms = self.anchors.attract(lengths)
            losses += terms
            network = with_contrast(network)
            if tally is not None:
                self._enter(terms, step)
        self.layers.backward(x, lengths, draws, Sink(grad.shape[1], grad=grad), Rule(), network=network)
        return losses

    def _enter(self, terms: Tensor, step: int) -> None:
        """What a contrast adds to the losses of a step is entered behind them."""
        entered = torch.where(self.lengths[step] > 0, terms, 0.0)[:, None]
        self.losses[:, int(step > 0) :] += entered  # the first loss is that of the first step

    def scalars(self) -> dict[str, Tensor]:
        cosine = {} if self.cosine is None else {"min_cosine": self.cosine.least}
        bounds = {} if self.bounds is None else self.bounds.scalars()
        return {**super().scalars(), "step_size": self.size, **bounds, **cosine}


class _Anchors:
    """The models that those of a chunk's clients are compared with: their start models, and their own last."""

    def __init__(self, chunk: KeptChunk) -> None:
        contrast = chunk.work.contrast
        assert contrast is not None
        self.chunk, self.contrast = chunk, contrast
        rows = contrast.rows_of(chunk.clients)
        seen = (rows >= 0).nonzero().flatten()
        self.seen = upload(rows >= 0, chunk.device)
        self.start = chunk.start.expand(len(rows), -1)
        self.previous = self.start.clone()
        if len(seen):
            self.previous[upload(seen, chunk.device)] = chunk._in_engine(contrast.previous, rows[seen])
        self.of_start = self.of_previous = torch.empty(0)

    def look(self, step: int) -> None:
        """The features of the loaded batch under both, with dropout off."""
        chunk = self.chunk
        draws, lengths = chunk.draws(step, training=False), chunk.lengths[step]
        found = []
        for x in (self.start, self.previous):
            chunk.layers.forward(x, lengths, draws, until=-1)
            found.append(self._features().clone())
        self.of_start = found[0]
        self.of_previous = torch.where(self.seen[:, None, None], found[1], found[0])  # the same to the last bit

    def _features(self) -> Tensor:
        """What goes into the head, (chunk, batch, numbers): a view."""
        chunk, network = self.chunk, self.chunk.engine.network
        return chunk.layers.values[network.features].view(-1, chunk.batch, network.feature_shape.numbers)

    def attract(self, lengths: Tensor) -> Tensor:
        """The terms (chunk,) that the contrast adds to the losses; their gradients are put where features' go."""
        chunk, contrast, network = self.chunk, self.contrast, self.chunk.engine.network
        shape = network.feature_shape
        inside = torch.arange(shape.numbers, device=chunk.device) % shape.stride < shape.channels
        real = torch.arange(chunk.batch, device=chunk.device) < lengths[:, None]
        used = real[..., None] & inside
        mine, of_start, of_previous = (
            torch.where(used, f, 0.0) for f in (self._features(), self.of_start, self.of_previous)
        )
        mine.requires_grad_()
        with torch.enable_grad():
            terms = contrastive_losses(mine, of_start, of_previous, contrast.temperature)
            means = contrast.mu * torch.where(real, terms, 0.0).sum(1) / lengths.clamp(min=1)
            (gradient,) = torch.autograd.grad(means.sum(), mine)
        chunk.layers.grads[network.features].copy_(gradient.flatten(1))
        return means.detach()
