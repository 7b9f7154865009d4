"""Chunks of clients that train side by side on a device, layer by layer.

Under rules that look at one element at a time (`FusedChunk`) the kernels that make gradients also apply the rule, so
that gradients never reach memory; other rules, and whoever measures gradients, get them in one buffer (`KeptChunk`).
What a chunk needs to know of its clients' steps is uploaded before the first one: nothing in between waits for the
device, or is done client by client.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..clients import Client
from ..data import Inputs, Pixels, Sparse
from ..data.resident import Resident, picked, upload
from ..kernels import CLIENT_RULES, Stream, client_state
from ..kernels.layers import Dense
from ..kernels.phases import ClientCall
from ..program.lower import with_contrast
from ..purposes import Purpose
from .batches import ChunkBatches, rows_of_clients
from .contrast import contrastive_losses
from .cosine import LeastCosine
from .device_inputs import Gathering
from .fused import batch_lengths, coefficients, epochs_of, learning_rates, numbers_of
from .optimizer import LocalOptimizer, Surroundings
from .work import RoundWork

if TYPE_CHECKING:
    from ..kernels.triton.engine.layers import Draws, Layers
    from ..kernels.triton.engine.losses import Tally
    from ..kernels.triton.engine.rule import Rule, Sink
    from .device import Device


class Chunk:
    """What the local training of some clients of a work shares, whatever becomes of their gradients.

    Models `x` (chunk, d) in the engine's layout, the models they `start` from, (d,) if all from one; the `squares`
    (chunk,) float64 of the norms of what they have moved by, where training finds them by the way.
    """

    squares: Tensor | None = None

    def __init__(
        self,
        engine: Device,
        batch: int,
        store: Resident,
        work: RoundWork,
        optimizer: Client,
        clients: Tensor,
        steps: Tensor,
    ) -> None:
        from ..kernels.triton.engine.losses import Tally

        self.engine, self.work = engine, work
        self.optimizer, self.clients, self.steps = optimizer, clients, steps
        self.device, self.batch, self.longest = engine.device, batch, int(steps.max())
        self.start = self._starts()
        self.x = self._models()
        self.correction = None if work.corrections is None else self._in_engine(work.corrections, clients)
        self.preconditioner = None if work.preconditioner is None else self._in_engine(work.preconditioner)
        source, rows = store.portion(rows_of_clients(work, clients))
        self.gathering = Gathering(engine.network, source, engine.meaning)
        self.batches = ChunkBatches(work, clients, self.device, rows=rows, widths=[self.batch] * self.longest)
        self.known, self.rows = range(0), torch.empty(0)
        self.lengths = upload(batch_lengths(work, clients, self.longest).int(), self.device)
        self._ids = upload(work.ids[clients], self.device)
        self._steps = torch.arange(self.longest, device=self.device)
        self._keys = tuple(_key(work.seed, Purpose.DROPOUT + i) for i in range(engine.program.dropouts))
        self.losses = torch.full((len(clients), 3), torch.nan, dtype=torch.float64, device=self.device)
        self.losses[:, 2] = 0
        self._tally: type[Tally] = Tally

    def _starts(self) -> Tensor:
        """The models that clients start from: (d,), or (chunk, d)."""
        work, clients = self.work, self.clients
        if work.start.dim() == 1:
            return self._in_engine(work.start)
        return self._in_engine(work.start, torch.zeros_like(clients) if work.model is None else work.model[clients])

    def _models(self) -> Tensor:
        """The clients' own models (chunk, d), at their start."""
        return self.start.repeat(len(self.clients), 1) if self.start.dim() == 1 else self.start.clone()

    def _in_engine(self, vectors: Tensor, rows: Tensor | None = None) -> Tensor:
        """Packed vectors, or these rows of them, on the device in the engine's layout."""
        there = upload(vectors, self.device) if rows is None else picked(vectors, rows, self.device)
        return self.engine.program.to_engine(there).contiguous()

    @cached_property
    def layers(self) -> Layers:
        """The buffers of the layers, and the passes over them."""
        return self.engine.layers_for(len(self.clients), self.batch)

    @cached_property
    def targets(self) -> Tensor:
        """A step's labels (chunk, batch * rows) int32, or other targets (chunk, batch * rows, width)."""
        shape, clients = self.engine.network.shape, len(self.clients)
        if self.engine.network.loss == "cross_entropy":
            return torch.empty((clients, self.batch * shape.rows), dtype=torch.int32, device=self.device)
        return torch.empty((clients, self.batch * shape.rows, shape.width), device=self.device)

    @cached_property
    def counts(self) -> Tensor | None:
        """How many labels of a step count (chunk,); None where targets are no labels."""
        labels = self.engine.network.loss == "cross_entropy"
        return torch.empty(len(self.clients), device=self.device) if labels else None

    def draws(self, step: int, training: bool = True) -> Draws:
        """The random numbers of a step."""
        from ..kernels.triton.engine.layers import Draws

        return Draws(self._ids, self._steps[step : step + 1], self.work.round, self._keys if training else ())

    def tally(self, step: int) -> Tally:
        """Where the losses of a step are entered."""
        return self._tally(self.losses, self._steps[step : step + 1])

    def load(self, step: int, into: Tensor) -> None:
        """Gathers a step's inputs into a buffer, and its targets."""
        if step not in self.known:
            self.known, self.rows = self.batches.table(step)
        rows, lengths = self.rows[step - self.known.start], self.lengths[step]
        self.gathering.inputs_of(rows, lengths, self.batch, into)
        self.gathering.targets_of(rows, lengths, self.batch, self.targets, self.counts)

    def train(self) -> dict[str, Tensor]:
        """All local steps; the scalars by name, (chunk,) float64."""
        for step in range(self.longest):
            self.step(step)
        self.finish()
        return self.scalars()

    def scalars(self) -> dict[str, Tensor]:
        """What is told of each client, by name: (chunk,) float64."""
        first, last, total = self.losses.unbind(1)
        return {"first_loss": first, "last_loss": last, "mean_loss": total / upload(self.steps, self.device)}

    def step(self, step: int) -> None:
        """One local step (from 0)."""
        raise NotImplementedError

    def finish(self) -> None:
        """What is left to do after the last step."""


def _key(seed: int, purpose: int) -> tuple[int, int]:
    words = Stream(seed, purpose).words()
    return words.key0, words.key1


# ---- gradients kept -------------------------------------------------------------------------------------------------


class KeptChunk(Chunk):
    """Every step's gradients are kept in one buffer (chunk, d), which the client kernels then read: for rules that go
    by norms, and for who measures gradients."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        work = self.work
        self.grad = torch.zeros_like(self.x)
        own = getattr(self.optimizer, "lr", None)
        around = Surroundings(
            packing=self.engine.packing,
            anchor=self.start,
            lr=own if work.lr is None else upload(work.lr[self.clients], self.device),
            correction=self.correction,
            preconditioner=self.preconditioner,
        )
        self.rule = LocalOptimizer(self.optimizer, self.x, around)
        self.before = self.x.clone() if self.rule.same_batch else None
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
            self._differentiate(step, self.before, previous, None)
            previous = self.rule.corrected(previous, self.before)
            self.before.copy_(self.x)
        self.rule.step(
            step + 1,
            self.x,
            self.grad,
            loss=losses,
            epoch=self.epochs[step] + 1,
            previous_grad=previous,
            finished=~active,
        )
        self.size = torch.where(active, self.rule.step_size(step + 1), self.size)

    def _differentiate(self, step: int, x: Tensor, grad: Tensor, tally: Tally | None) -> Tensor:
        """The mean losses (chunk,) of the models x on the loaded batches; their gradients go into `grad`."""
        from ..kernels.triton.engine.rule import Rule, Sink

        lengths, draws, network = self.lengths[step], self.draws(step), self.engine.network
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
        active = self.lengths[step] > 0
        entries = terms[:, None] * torch.tensor([float(step == 0), 1.0, 1.0], dtype=torch.float64, device=self.device)
        self.losses += torch.where(active[:, None], entries, 0.0)

    def scalars(self) -> dict[str, Tensor]:
        cosine = {} if self.cosine is None else {"min_cosine": self.cosine.least}
        return {**super().scalars(), "step_size": self.size, **cosine}


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
        inside = torch.arange(shape.numbers, device=chunk.device) % shape.stride < shape.width
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


# ---- rules applied where gradients are made -------------------------------------------------------------------------


class FusedChunk(Chunk):
    """The kernels that make gradients apply the rule: no gradient reaches memory.

    A dense first layer is updated a step later, where its weights are read anyway: two passes over them a step instead
    of three. Models are not copied from the start model: until a parameter's first update it is read there.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        optimizer, work = self.optimizer, self.work
        entry = CLIENT_RULES[optimizer.rule]
        self.coef = upload(coefficients(work, optimizer, self.clients, self.longest), self.device)
        made = optimizer.state_options()
        if entry.cover is not None:
            made["packing"] = self.engine.packing
        if self.preconditioner is not None and entry.has_second_moment:
            made["v0"] = self.preconditioner
        self.state = client_state(optimizer.rule, self.x, **made)
        self.cover = _Cover(self) if entry.cover is not None else None
        self.rule = self._rule(entry.formula)
        self.nobody = torch.zeros_like(self.lengths[0])

    def _models(self) -> Tensor:
        """Room for the clients' models; what lies between their tensors, which nothing else writes, as at the start."""
        x = torch.empty((len(self.clients), self.start.shape[-1]), device=self.device)
        slots = self.engine.packing.slots
        for slot, end in zip(slots, [*(slot.offset for slot in slots[1:]), x.shape[1]], strict=True):
            first = slot.offset + slot.numel
            if first < end:
                x[:, first:end] = self.start[..., first:end]
        return x

    def read(self, step: int) -> Tensor:
        """The models that a step reads, where the first one (0) is that from which clients start: (chunk, d)."""
        return self.start.expand(len(self.clients), -1) if step <= 0 else self.x

    @staticmethod
    def _rule(formula: str) -> Rule:
        from ..kernels.triton.bound import rules
        from ..kernels.triton.engine.rule import Rule

        return Rule(getattr(rules, f"direction_{formula}"))

    @cached_property
    def inputs(self) -> list[Tensor]:
        """The buffers of inputs that steps take in turns: two, if a step also reads those of the step before."""
        first = self.layers.values[0]
        return [first] if self.lazy is None else [first, torch.empty_like(first)]

    @cached_property
    def lazy(self) -> Dense | None:
        """The first layer, if its update can wait for the next step: SM3's would raise maxima that belong to another
        step."""
        from ..kernels.triton.engine import products

        first = self.engine.network.steps[0]
        if not isinstance(first.layer, Dense) or first.inputs != (0,) or self.cover is not None:
            return None
        return first.layer if products.one_tile(first.layer, self.batch) else None

    def sink(self, step: int) -> Sink:
        """Where the gradients of a step go."""
        from ..kernels.triton.engine.rule import Sink

        n, state, d = numbers_of(self.optimizer), self.state, self.x.shape[1]
        anchor = self.start if self.optimizer.prox > 0 else None
        return Sink(
            size=d,
            x=self.x,
            m=state.get("m"),
            v=state.get("v"),
            nu=state.get("nu"),
            coef=self.coef[step],
            anchor=anchor,
            anchor_stride=d if anchor is not None and anchor.dim() == 2 else 0,
            correction=self.correction,
            correction_stride=0 if self.correction is None else d,
            weight_decay=n.weight_decay,
            prox=n.prox,
            beta1=n.beta1,
            gain1=n.gain1,
            beta2=n.beta2,
            gain2=n.gain2,
            eps=n.eps,
            root_eps=n.root_eps,
            **({} if self.cover is None else self.cover.parts()),
        )

    def step(self, step: int) -> None:
        layers, lengths, draws, sink = self.layers, self.lengths[step], self.draws(step), self.sink(step)
        layers.values[0] = self.inputs[step % len(self.inputs)]
        self.load(step, layers.values[0])
        skip = int(self.lazy is not None)
        if self.lazy is not None:
            self._first_layer(self.lazy, step, sink)
        layers.forward(self.read(step), lengths, draws, skip=skip)
        layers.loss(self.targets, self.counts, lengths, self.tally(step))
        if self.cover is not None:
            self.cover.open()
        layers.backward(self.read(step), lengths, draws, sink, self.rule, until=skip)
        if self.cover is not None:
            self.cover.close(self.coef[step])

    def _first_layer(self, layer: Dense, step: int, sink: Sink) -> None:
        """The first layer's update by the step before, and its forward pass of this one."""
        from ..kernels.triton.engine import products

        layers, output = self.layers, self.engine.network.steps[0].output
        before = self.inputs[(step + 1) % 2]
        last_lengths, last_sink = (self.lengths[step - 1], self.sink(step - 1)) if step else (self.nobody, sink)
        args = (self.read(step - 1), layers.values[0], before, layers.grads[output], layers.values[output])
        products.update_forward(layer, self.batch, *args, self.lengths[step], last_lengths, last_sink, self.rule)

    def finish(self) -> None:
        from ..kernels.triton.engine import products

        last = self.longest - 1
        if self.lazy is not None:
            d_made = self.layers.grads[self.engine.network.steps[0].output]
            args = (self.read(last), self.inputs[last % 2], d_made, self.lengths[last], self.sink(last), self.rule)
            products.update(self.lazy, self.batch, *args)

    def scalars(self) -> dict[str, Tensor]:
        rates = learning_rates(self.work, self.optimizer, self.clients, self.longest)
        taken = upload(rates.gather(0, (self.steps - 1)[None])[0], self.device)
        return {**super().scalars(), "step_size": taken}


def _channels(inputs: Inputs) -> int:
    """Of images; 1 of everything else."""
    numbers = inputs.bytes if isinstance(inputs, Pixels) else inputs
    return numbers.shape[1] if isinstance(numbers, Tensor) and numbers.dim() == 4 else 1


class ClientChunk(FusedChunk):
    """One client per program, all steps in one launch: for models of a single dense layer that fit."""

    @staticmethod
    def why_not(engine: Device, optimizer: Client, batch: int) -> str | None:
        """Why a model, optimizer and batch cannot be trained so; None if they can."""
        from ..kernels.triton.engine import client

        network, inputs = engine.network, engine.examples.inputs
        layer = network.steps[0].layer
        reasons = {
            "the model has more than one layer": len(network.steps) != 1,
            "its layer is not dense": not isinstance(layer, Dense),
            "its loss is not cross entropy": network.loss != "cross_entropy",
            "its inputs are sparse": isinstance(inputs, Sparse),
            "its images have channels, which the store keeps in another order than the weights": _channels(inputs) > 1,
            "SM3 raises maxima between steps": CLIENT_RULES[optimizer.rule].cover is not None,
            "it has more classes, or a larger batch, than one tile": isinstance(layer, Dense)
            and not client.fits(layer, batch),
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def train(self) -> dict[str, Tensor]:
        from ..kernels.triton.engine import client

        layer = self.engine.network.steps[0].layer
        assert isinstance(layer, Dense)
        known, rows = self.batches.table(0)
        if known.stop < self.longest:
            rows = torch.cat([rows, *self._later_rows(known.stop)])
        rounds = client.Rounds(rows, self.lengths, upload(self.steps, self.device), self.coef)
        inputs = self.gathering.inputs.numbers
        meaning = self.engine.meaning
        scale, shift = (None, None) if meaning is None else (meaning.scale, meaning.shift)
        store = client.Examples(inputs, scale, shift, self.gathering.targets.numbers)
        self.squares = torch.empty(len(self.clients), dtype=torch.float64, device=self.device)
        results = client.Results(self.losses, self.squares)
        pixels = inputs.shape[2] * inputs.shape[3] if inputs.dim() == 4 else layer.inputs
        sink = self.sink(0)
        client.train(layer, self.batch, pixels, self.x, self.start, store, rounds, results, sink, self.rule)
        return self.scalars()

    def _later_rows(self, step: int) -> Iterator[Tensor]:
        """Of the steps from `step` on, as many at once as are known at once."""
        while step < self.longest:
            known, rows = self.batches.table(step)
            yield rows
            step = known.stop


class _Cover:
    """SM3's second moments at work: the maxima that a step raises, and which become mu at its end."""

    def __init__(self, chunk: FusedChunk) -> None:
        from ..kernels.triton import cover_step

        rule = CLIENT_RULES[chunk.optimizer.rule]
        self.call = ClientCall(rule, numbers_of(chunk.optimizer), chunk.x, chunk.x, chunk.state)
        self.cover = cover_step.open_cover(self.call)

    def open(self) -> None:
        self.cover.maxima.zero_()

    def close(self, coef: Tensor) -> None:
        self.cover.settle(self.call, coef)

    def parts(self) -> dict[str, Any]:
        """Of a sink."""
        tables = self.cover.tables
        return {
            "mu": self.call.state["mu"],
            "maxima": self.cover.maxima,
            "axes": tables.axes,
            "mu_size": tables.mu_size,
        }
