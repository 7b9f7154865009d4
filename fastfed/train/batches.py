"""Which examples a client sees at which local step: the same for every executor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..kernels import Stream, permutation
from ..purposes import Purpose
from .work import RoundWork


def steps_taken(work: RoundWork) -> Tensor:
    """How many local steps each client really takes: (clients,) int64.

    None without examples; with positions, no more than there are batches.
    """
    taken = torch.where(work.counts > 0, work.steps, 0)
    if work.positions is None:
        return taken
    return torch.minimum(taken, (work.positions + work.batch_size - 1) // work.batch_size)


class Batches:
    """The batches of the client at `position`, one per local step (counted from 0).

    Its epochs, each a random order of its n examples, follow one another as one stream: stream position p is entry
    ``p % n`` of epoch ``p // n``, and a batch is a range of positions.
    """

    def __init__(self, work: RoundWork, position: int) -> None:
        begin, end = int(work.offsets[position]), int(work.offsets[position + 1])
        self.rows = work.rows[begin:end]
        self.size = work.batch_size
        self.positions = None if work.positions is None else int(work.positions[position])
        self._key = (work.seed, Purpose.SHUFFLE, work.round, int(work.ids[position]))
        self._epoch, self._shuffled = -1, self.rows

    def epoch(self, step: int) -> int:
        """The epoch (counted from 0) in which a step's batch begins."""
        return self._span(step)[0] // len(self.rows)

    def at(self, step: int) -> Tensor:
        """The example rows of a step's batch: (n,) int64, n at most the batch size."""
        n = len(self.rows)
        begin, end = self._span(step)
        parts = []
        for epoch in range(begin // n, (end - 1) // n + 1):
            first = epoch * n
            parts.append(self._order(epoch)[max(begin - first, 0) : end - first])
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _span(self, step: int) -> tuple[int, int]:
        """The stream positions [begin, end) of a step's batch."""
        n, size = len(self.rows), self.size
        if self.positions is not None:
            return step * size, min((step + 1) * size, self.positions)
        epoch, batch = divmod(step, -(-n // size))
        return epoch * n + batch * size, epoch * n + min((batch + 1) * size, n)

    def _order(self, epoch: int) -> Tensor:
        """The client's rows in the order of an epoch; the last one asked for is kept."""
        if epoch != self._epoch:
            order = permutation(len(self.rows), Stream(*self._key, step=epoch))
            self._epoch, self._shuffled = epoch, self.rows[order]
        return self._shuffled


def padded(batches: Sequence[Batches], active: Sequence[bool], step: int) -> tuple[Tensor, Tensor]:
    """The batches of several clients at one step, padded to the longest: rows (clients, n) int64, and `real` (clients,
    n) bool. Padding repeats a row of the same batch; a client that is not active has padding only."""
    rows = [client.at(step) if goes else client.rows[:1] for client, goes in zip(batches, active, strict=True)]
    lengths = torch.tensor([len(own) if goes else 0 for own, goes in zip(rows, active, strict=True)])
    width = int(lengths.max())
    filled = torch.stack([torch.cat([own, own[:1].expand(width - len(own))]) for own in rows])
    return filled, torch.arange(width) < lengths[:, None]
