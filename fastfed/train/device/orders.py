"""The batches of many clients, found by kernels."""

from __future__ import annotations

from torch import Tensor

from ...data.resident import upload
from ..batches import ChunkBatches


class KernelBatches(ChunkBatches):
    """`ChunkBatches` in a few launches: no sort, and no table of random numbers."""

    def table(self, step: int) -> tuple[range, Tensor]:
        from ...kernels.triton.engine.orders import Spans, rows_of_steps

        if step not in self._window:
            self._open_window(step)
        steps, there = range(step, self._window.stop), self._there
        rows = self._shuffled.new_empty((len(steps), len(there.counts), len(self._places)))
        spans = Spans(there.counts, there.taken, there.seen, self._base, self._shift)
        rows_of_steps(rows, self._shuffled, spans, step, there.size)
        return steps, rows

    def _shuffle_alike(self, orders: Tensor) -> None:
        from ...kernels.triton.engine.orders import LONGEST, shuffle

        width = int(orders[2].max())
        if width > LONGEST:
            super()._shuffle_alike(orders)
        else:
            there = upload(orders.contiguous(), self.device)
            shuffle(self._shuffled, self.source, there, width, self._stream.words())
