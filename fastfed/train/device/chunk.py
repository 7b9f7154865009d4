"""Chunks of clients that train side by side on a device, layer by layer.

Under rules that look at one element at a time (`FusedChunk`) the kernels that make gradients also apply the rule, so
that gradients never reach memory; other rules, and whoever measures gradients, get them in one buffer (`KeptChunk`).
What a chunk needs to know of its clients' steps is uploaded before the first one: nothing in between waits for the
device, or is done client by client.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...clients import Client
from ...data import Pixels
from ...data.resident import Resident, picked, upload
from ...kernels import Stream
from ...purposes import Purpose
from ..batches import rows_of_clients
from ..dropout import ANOTHER
from ..work import RoundWork
from .coefficients import batch_begins, batch_lengths
from .inputs import Gathering
from .orders import KernelBatches

if TYPE_CHECKING:
    from ...kernels.triton.engine.layers import Draws, Layers
    from ...kernels.triton.engine.losses import Tally
    from .engine import Device


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
        from ...kernels.triton.engine.losses import Tally

        self.engine, self.work, self.arena = engine, work, engine.arena
        self.optimizer, self.clients, self.steps = optimizer, clients, steps
        self.device, self.batch, self.longest = engine.device, batch, int(steps.max())
        self.start = self._starts()
        self.x = self._models()
        self.correction = None
        if work.corrections is not None:
            self.correction = self.arena.put("correction", self._in_engine(work.corrections, clients))
        self.preconditioner = None if work.preconditioner is None else self._in_engine(work.preconditioner)
        source, rows = store.portion(rows_of_clients(work, clients))
        self.stays = store is engine.resident and not store.streamed  # the next chunk reads the examples there, too
        self.gathering = Gathering(engine.network, source, engine.meaning)
        self.batches = KernelBatches(work, clients, self.device, rows=rows, widths=[self.batch] * self.longest)
        self.known, self.rows = range(0), torch.empty(0)
        self.lengths = self.arena.put("lengths", batch_lengths(work, clients, self.longest).int())
        self._ids = self.arena.put("ids", work.stream_ids[clients])
        self._clock = self.arena.put("clock", _clock(self.longest, work.round))
        self._look = None if engine.images is None else _Look(self, engine.images)
        self._keys = tuple(_key(work.seed, Purpose.DROPOUT + i) for i in range(engine.program.dropouts))
        self.losses = self.arena.room("losses", (len(clients), 3), torch.float64).fill_(torch.nan)
        self.losses[:, 2] = 0
        self._tally: type[Tally] = Tally

    def _starts(self) -> Tensor:
        """The models that clients start from: (d,), or (chunk, d)."""
        work, clients = self.work, self.clients
        rows = None
        if work.start.dim() == 2:
            rows = torch.zeros_like(clients) if work.start_index is None else work.start_index[clients]
        return self.arena.put("start", self._in_engine(work.start, rows))

    def _models(self) -> Tensor:
        """The clients' own models (chunk, d), at their start."""
        return self.arena.room("x", (len(self.clients), self.start.shape[-1])).copy_(self.start)

    def _in_engine(self, vectors: Tensor, rows: Tensor | None = None) -> Tensor:
        """Packed vectors, or these rows of them, on the device in the engine's layout."""
        there = upload(vectors, self.device) if rows is None else picked(vectors, rows, self.device)
        return self.engine.program.to_engine(there).contiguous()

    @cached_property
    def layers(self) -> Layers:
        """The buffers of the layers, and the passes over them."""
        from ...kernels.triton.engine.layers import Layers

        engine = self.engine
        return Layers(engine.network, len(self.clients), self.batch, self.arena.room, engine.reduction)

    @cached_property
    def targets(self) -> Tensor:
        """A step's labels (chunk, batch * rows) int32, or other targets (chunk, batch * rows, channels)."""
        shape, clients = self.engine.network.shape, len(self.clients)
        if self.engine.network.loss == "cross_entropy":
            return self.arena.room("targets", (clients, self.batch * shape.rows), torch.int32)
        return self.arena.room("targets", (clients, self.batch * shape.rows, shape.channels))

    @cached_property
    def counts(self) -> Tensor | None:
        """How many labels of a step count, by the reduction (chunk,); None where targets are no labels."""
        labels = self.engine.network.loss == "cross_entropy"
        return self.arena.room("counts", (len(self.clients),)) if labels else None

    def draws(self, step: int, training: bool = True, another: bool = False) -> Draws:
        """The random numbers of a step; `another`: those of a second look at its batch."""
        from ...kernels.triton.engine.layers import Draws

        clock = self._other_clock if another else self._clock
        return Draws(self._ids, clock[step], self._keys if training else ())

    @cached_property
    def _other_clock(self) -> Tensor:
        clock = self._clock.clone()
        clock[:, 0] += ANOTHER
        return clock

    def tally(self, step: int) -> Tally:
        """Where the losses of a step are entered."""
        return self._tally(self.losses, self._clock[step])

    def load(self, step: int, into: Tensor) -> None:
        """Gathers a step's inputs into a buffer, and its targets."""
        if step not in self.known:
            self.known, self.rows = self.batches.table(step)
        rows, lengths = self.rows[step - self.known.start], self.lengths[step]
        if self._look is None:
            self.gathering.inputs_of(rows, lengths, self.batch, into)
        else:
            self._look.inputs_of(step, rows, lengths, into)
        self.gathering.targets_of(rows, lengths, self.batch, self.targets, self.counts, self.engine.reduction)

    def train(self) -> dict[str, Tensor]:
        """All local steps; the scalars by name, (chunk,) float64."""
        self._train()
        return self.scalars()

    def _train(self) -> None:
        for step in range(self.longest):
            self.step(step)
        self.finish()

    def scalars(self) -> dict[str, Tensor]:
        """What is told of each client, by name: (chunk,) float64."""
        first, last, total = self.losses.unbind(1)
        return {"first_loss": first, "last_loss": last, "mean_loss": total / upload(self.steps, self.device)}

    def step(self, step: int) -> None:
        """One local step (from 0)."""
        raise NotImplementedError

    def finish(self) -> None:
        """What is left to do after the last step."""


class _Look:
    """How a chunk's clients see images that are augmented."""

    def __init__(self, chunk: Chunk, images: Pixels) -> None:
        from ...kernels.triton.engine.views import FOUND, Images

        assert images.augment is not None
        self.chunk = chunk
        begins = batch_begins(chunk.work, chunk.clients, chunk.longest)
        self.begins = chunk.arena.put("begins", begins.contiguous())
        self.key = _key(chunk.work.seed, Purpose.AUGMENT)
        _, height, width = images.shape
        meaning = None if images.augment.standardise else chunk.gathering.meaning
        self.images = Images(
            chunk.gathering.inputs.numbers, height, width, images.augment.flip, meaning and meaning.values
        )
        room, views = chunk.arena.room, (len(chunk.clients), chunk.batch)
        self.found, self.roots = room("views", (*views, FOUND), torch.int64), room("deviations", views)

    def inputs_of(self, step: int, rows: Tensor, lengths: Tensor, into: Tensor) -> None:
        """The inputs of a step's rows (clients, batch) into the network's first buffer."""
        from ...kernels.triton.engine.views import Draw, gather_seen

        chunk = self.chunk
        draw = Draw(self.begins[step], chunk._ids, chunk._clock[step], *self.key)
        shape = chunk.engine.network.buffers[0]
        gather_seen(self.images, draw, rows, into, lengths, shape, chunk.batch, self.found, self.roots)


def _clock(steps: int, round: int) -> Tensor:
    """What a step must know of the time: its number (from 0) and the round's, (steps, 2) int64."""
    return torch.stack([torch.arange(steps), torch.full((steps,), round)], 1)


def _key(seed: int, purpose: int) -> tuple[int, int]:
    words = Stream(seed, purpose).words()
    return words.key0, words.key1
