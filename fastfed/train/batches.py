"""Which examples a client sees at which local step: the same for every executor."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..data.augment import Views
from ..data.resident import upload
from ..data.store import Pixels
from ..kernels import Stream, permutation, shuffles
from ..kernels.ops.random import words
from ..purposes import Purpose
from .work import RoundWork

ORDER_BYTES = 1 << 26  # that the shuffled rows of a chunk of clients may take


def steps_taken(work: RoundWork) -> Tensor:
    """How many local steps each client really takes: (clients,) int64.

    None without examples; with `seen`, no more than there are batches.
    """
    taken = torch.where(work.counts > 0, work.steps, 0)
    if work.seen is None:
        return taken
    return torch.minimum(taken, (work.seen + work.batch_size - 1) // work.batch_size)


def steps_for(epochs: float | Tensor, counts: Tensor, batch_size: int) -> Tensor:
    """How many local steps `epochs` are (fractions too; one number, or (n,)) to clients with `counts` (n,) int64 of
    examples, so that they see every example in every whole one: (n,) int64, at least 1 for who has any."""
    if not isinstance(counts, Tensor) or counts.dtype is not torch.int64 or counts.dim() != 1:
        kind = f"{counts.dtype} {tuple(counts.shape)}" if isinstance(counts, Tensor) else repr(counts)
        raise TypeError(f"counts: must be a one-dimensional int64 tensor, got {kind}")
    if not isinstance(epochs, (numbers.Real, Tensor)):
        raise TypeError(f"epochs: must be a number, or a tensor of one per client, got {epochs!r}")
    wanted = torch.as_tensor(epochs, dtype=torch.float64)
    if wanted.dim() and wanted.shape != counts.shape:
        raise ValueError(f"epochs: must be a number, or one for each of {len(counts)}, got shape {tuple(wanted.shape)}")
    if not bool(((wanted >= 0) & wanted.isfinite()).all()):
        raise ValueError(f"epochs: must be >= 0 and finite, got {epochs!r}")
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size: must be a whole number >= 1, got {batch_size!r}")
    whole = wanted.floor()
    steps = whole.long() * batches_for(counts, batch_size) + batches_for(counts * (wanted - whole), batch_size)
    return torch.where(counts > 0, steps.clamp(min=1), 0)


def batches_for(examples: Tensor, batch_size: int) -> Tensor:
    """How many batches hold these many examples (which may be fractions, rounded up past 1e-6 of a batch)."""
    return torch.ceil(examples.double() / batch_size - 1e-6).clamp(min=0).long()


def examples_seen(steps: Tensor, counts: Tensor, batch_size: int, seen: Tensor | None) -> Tensor:
    """How many examples clients look at in all the batches of `steps` (n,) local steps: (n,) int64. `counts` (n,) are
    their examples; `seen` (n,), where batches run on across epochs, is where they end."""
    if seen is not None:
        return torch.minimum(steps * batch_size, seen)
    batches = (counts + batch_size - 1) // batch_size  # of an epoch, whose last one may be short
    epochs = torch.where(batches > 0, steps // batches.clamp(min=1), 0)
    return epochs * counts + torch.minimum((steps - epochs * batches) * batch_size, counts)


def meet_one_example(work: RoundWork, steps: Tensor) -> Tensor:
    """Which clients take one of their `steps` (n,) on a batch of a single example: (n,) bool."""
    ends = work.counts if work.seen is None else work.seen
    batches = (ends + work.batch_size - 1) // work.batch_size  # until the first that may be short
    last = ends - (batches - 1) * work.batch_size
    return (steps > 0) & ((work.batch_size == 1) | ((last == 1) & (steps >= batches)))


def views_at(work: RoundWork, images: Pixels, ids: Tensor, positions: Tensor) -> Views:
    """How the images at these stream positions of clients are seen, whatever step or batch they fall into: int64 both,
    of shapes that go together; one after the other."""
    assert images.augment is not None
    drawn = words(positions, Stream(work.seed, Purpose.AUGMENT, work.round), clients=ids)
    return images.augment.views(tuple(word.flatten() for word in drawn), images.stored)


def drawn_at(work: RoundWork, ids: Tensor, positions: Tensor, counts: Tensor) -> Tensor:
    """Which of a client's `counts` examples is drawn at a stream position: int64 all, of shapes that go together."""
    return words(positions, Stream(work.seed, Purpose.DRAW, work.round), clients=ids)[0] * counts >> 32


class Batches:
    """The batches of the client at `position`, one per local step (counted from 0).

    Its epochs, each a random order of its n examples, follow one another as one stream: stream position p is entry
    ``p % n`` of epoch ``p // n``, and a batch is a range of positions. Where examples are drawn, each position has one
    of its own.
    """

    def __init__(self, work: RoundWork, position: int) -> None:
        begin, end = int(work.offsets[position]), int(work.offsets[position + 1])
        self.rows = work.rows[begin:end]
        self.size = work.batch_size
        self.seen = None if work.seen is None else int(work.seen[position])
        self._work = work
        self._key = (work.seed, Purpose.SHUFFLE, work.round, int(work.stream_ids[position]))
        self._epoch, self._shuffled = -1, self.rows

    def epoch(self, step: int) -> int:
        """The epoch (counted from 0) in which a step's batch begins."""
        return self._span(step)[0] // len(self.rows)

    def at(self, step: int) -> Tensor:
        """The example rows of a step's batch: (n,) int64, n at most the batch size."""
        n = len(self.rows)
        begin, end = self._span(step)
        if self._work.drawn:
            return self.rows[drawn_at(self._work, torch.tensor(self._key[-1]), self.positions(step), torch.tensor(n))]
        parts = []
        for epoch in range(begin // n, (end - 1) // n + 1):
            first = epoch * n
            parts.append(self._order(epoch)[max(begin - first, 0) : end - first])
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def positions(self, step: int) -> Tensor:
        """The stream positions of a step's batch: (n,) int64."""
        return torch.arange(*self._span(step))

    def _span(self, step: int) -> tuple[int, int]:
        """The stream positions [begin, end) of a step's batch."""
        n, size = len(self.rows), self.size
        if self.seen is not None:
            return step * size, min((step + 1) * size, self.seen)
        epoch, batch = divmod(step, -(-n // size))
        return epoch * n + batch * size, epoch * n + min((batch + 1) * size, n)

    def _order(self, epoch: int) -> Tensor:
        """The client's rows in the order of an epoch; the last one asked for is kept."""
        if epoch != self._epoch:
            order = permutation(len(self.rows), Stream(*self._key, step=epoch))
            self._epoch, self._shuffled = epoch, self.rows[order]
        return self._shuffled


class _Plans(NamedTuple):
    """What decides about the batches of many clients, (clients,) int64 each, on one device: how many examples they
    have (at least 1, to divide by), the steps they take, the examples they see (None: whole epochs); and the batch
    size."""

    counts: Tensor
    taken: Tensor
    seen: Tensor | None
    size: int

    def to(self, device: torch.device) -> _Plans:
        counts, taken, *seen = upload(torch.stack([each for each in self[:3] if each is not None]), device)
        return _Plans(counts, taken, seen[0] if seen else None, self.size)

    def spans(self, step: int | Tensor) -> tuple[Tensor, Tensor]:
        """Where the batches of a step begin in their clients' streams, and how long they are: 0 for a client that has
        finished. One step for all, or each client's own, (clients,)."""
        if self.seen is None:
            per_epoch = (self.counts + (self.size - 1)) // self.size
            epoch = step // per_epoch
            inside = (step - epoch * per_epoch) * self.size
            begin, left = epoch * self.counts + inside, self.counts - inside
        else:
            begin = torch.zeros_like(self.seen) + step * self.size
            left = self.seen - begin
        return begin, torch.where(self.taken > step, left.clamp(max=self.size), 0)


def _plans(work: RoundWork, clients: Tensor) -> _Plans:
    """Of the clients at these positions, on the CPU."""
    seen = None if work.seen is None else work.seen[clients]
    return _Plans(work.counts[clients].clamp(min=1), steps_taken(work)[clients], seen, work.batch_size)


def batch_widths(work: RoundWork, clients: Tensor) -> list[int]:
    """The longest batch at every step that any of the clients at these positions (n,) takes."""
    plans = _plans(work, clients)
    steps = int(plans.taken.max()) if len(clients) else 0
    return [int(plans.spans(step)[1].max()) for step in range(steps)]


def rows_of_clients(work: RoundWork, clients: Tensor) -> Tensor:
    """The example rows of the clients at these positions (n,), one client's after the other's: (examples,) int64."""
    if torch.equal(clients, torch.arange(len(work))):
        return work.rows
    counts = work.counts[clients]
    shift = work.offsets[clients] - (counts.cumsum(0) - counts)
    return work.rows[torch.arange(int(counts.sum())) + shift.repeat_interleave(counts)]


class ChunkBatches:
    """The batches of many clients at once, as `Batches` has them one by one, on a device: no Python per client, and
    nothing waits for the device.

    `clients` (chunk,) int64 are positions in the work. `rows` (examples,) int64 on the device say where the examples of
    these clients are, one client's after the other's (default: where the work says). `widths` are those of the padded
    batches, step by step (default: the longest of these clients'); where clients are divided into chunks, giving all
    chunks the same makes a client's numbers independent of its chunk. `memory` bounds the bytes of the shuffled rows
    that are kept: all epochs if they fit, else those of the next few steps.
    """

    def __init__(
        self,
        work: RoundWork,
        clients: Tensor,
        device: torch.device | str = "cpu",
        *,
        rows: Tensor | None = None,
        widths: Sequence[int] | None = None,
        memory: int = ORDER_BYTES,
    ) -> None:
        self.device, self.memory = torch.device(device), memory
        self.widths = batch_widths(work, clients) if widths is None else widths
        self.source = upload(rows_of_clients(work, clients), self.device) if rows is None else rows
        counts = work.counts[clients]
        self._ids, self._offsets = work.stream_ids[clients], counts.cumsum(0) - counts
        self._work, self._host = work, _plans(work, clients)
        self._there = self._host.to(self.device)
        self._stream = Stream(work.seed, Purpose.SHUFFLE, work.round)
        self._places = torch.arange(max(self.widths, default=0), device=self.device)
        self._window = range(0)  # the steps whose rows are in `_shuffled`

    def rows(self, step: int) -> tuple[Tensor, Tensor]:
        """The padded batches of a step: rows (chunk, width) int64, and `real` (chunk, width) bool.

        Padding repeats the first row of the same batch; a client that is not active has padding only.
        """
        if step not in self._window:
            self._open_window(step)
        begin, length = self._there.spans(step)
        places = self._places[: self.widths[step]]
        real = places < length[:, None]
        first = torch.where(length > 0, begin - self._shift, self._base)
        return self._shuffled[first[:, None] + torch.where(real, places, 0)], real

    def positions(self, step: int) -> Tensor:
        """The stream positions of the padded batches of a step, as `rows` has them: (chunk, width) int64."""
        begin, length = self._there.spans(step)
        places = self._places[: self.widths[step]]
        return begin[:, None] + torch.where(places < length[:, None], places, 0)

    def table(self, step: int) -> tuple[range, Tensor]:
        """The steps from `step` on whose rows are known at once, and those rows: (steps, chunk, width) int64, all as
        wide as the widest batch. Padding as in `rows`."""
        if step not in self._window:
            self._open_window(step)
        steps = range(step, self._window.stop)
        begin, length = self._there.spans(torch.arange(steps.start, steps.stop, device=self.device)[:, None])
        real = self._places < length[..., None]
        first = torch.where(length > 0, begin - self._shift, self._base)
        return steps, self._shuffled[first[..., None] + torch.where(real, self._places, 0)]

    def epochs(self, step: int) -> Tensor:
        """The epochs (counted from 0) in which the batches of a step begin: (chunk,) int64."""
        return self._there.spans(step)[0] // self._there.counts

    def _open_window(self, step: int) -> None:
        """Shuffles the rows of as many steps from `step` on as fit into the memory, at least of one."""
        last = max(len(self.widths), step + 1)
        while True:
            first, epochs = self._epochs_between(step, last)
            total = int((epochs * self._host.counts).sum())
            if (total + 1) * self.source.itemsize <= self.memory or last == step + 1:
                break
            last = step + (last - step) // 2
        self._window = range(step, last)
        self._shuffle(first, epochs, total)

    def _epochs_between(self, step: int, last: int) -> tuple[Tensor, Tensor]:
        """The first epoch that each client visits in the steps [step, last), and how many: (chunk,) int64 each."""
        host = self._host
        begin, length = host.spans(step)
        final, final_length = host.spans((host.taken - 1).clamp(min=step, max=last - 1))
        first = begin // host.counts
        epochs = (final + final_length - 1) // host.counts - first + 1
        return first, torch.where(length > 0, epochs, 0)

    def _shuffle(self, first: Tensor, epochs: Tensor, total: int) -> None:
        """Keeps the rows of `epochs` epochs of each client from its `first` on, as one vector.

        Epochs of a client follow each other without a gap, so a stream position lies at a fixed distance, `_shift`,
        from its place in the vector. Behind the `total` rows is a place for what nobody reads.
        """
        counts = self._host.counts
        base = (epochs * counts).cumsum(0) - epochs * counts
        self._base, self._shift = upload(torch.stack([base, first * counts - base]), self.device)
        self._shuffled = torch.empty(total + 1, dtype=torch.int64, device=self.device)
        self._shuffled[total:] = 0
        if self._work.drawn:
            return self._draw(first * counts, epochs * counts)
        owner = torch.arange(len(counts)).repeat_interleave(epochs)
        turn = torch.arange(len(owner)) - (epochs.cumsum(0) - epochs)[owner]
        tables = (self._ids[owner], first[owner] + turn, counts[owner], base[owner] + turn * counts[owner])
        orders = torch.stack([*tables, self._offsets[owner]])
        for alike in _of_like_size(counts[owner]):
            self._shuffle_alike(orders[:, alike])

    def _draw(self, first: Tensor, examples: Tensor) -> None:
        """Keeps the rows that are drawn at so many stream positions of each client from its `first` on."""
        owner = torch.arange(len(first)).repeat_interleave(examples)
        position = torch.arange(len(owner)) - (examples.cumsum(0) - examples)[owner] + first[owner]
        of_owner = torch.stack([self._ids[owner], position, self._host.counts[owner], self._offsets[owner]])
        ids, positions, counts, offsets = upload(of_owner, self.device)
        self._shuffled[: len(owner)] = self.source[offsets + drawn_at(self._work, ids, positions, counts)]

    def _shuffle_alike(self, orders: Tensor) -> None:
        """Enters a table of epochs, (5, n): whose, which, of how many rows, where they go and where they come from."""
        width = int(orders[2].max())
        ids, epochs, counts, slots, offsets = upload(orders.contiguous(), self.device)
        order = shuffles(counts, self._stream, clients=ids, steps=epochs, width=width, device=self.device)
        places = torch.arange(width, device=self.device)
        unread = self._shuffled.numel() - 1
        to = torch.where(places < counts[:, None], slots[:, None] + places, unread)
        self._shuffled[to] = self.source[(offsets[:, None] + order).clamp_(max=self.source.numel() - 1)]


def _of_like_size(counts: Tensor) -> Iterator[Tensor]:
    """Indices of counts (n,) that may share a table as wide as the largest: at most about twice what they need."""
    if not len(counts):
        return
    if len(counts) * int(counts.max()) <= 2 * int(counts.sum()):
        yield torch.arange(len(counts))
        return
    size = torch.frexp(counts.double()).exponent  # the number of bits
    for bits in size.unique().tolist():
        yield (size == bits).nonzero().flatten()
