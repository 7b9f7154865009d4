"""A round of clients whose examples are made when they are visited, in portions: only one is held at a time, so that
memory does not grow with the cohort. A portion is some neighbouring lanes of `native`; the bits are those of the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..data.dataset import Visit
from . import lane_tree
from .batches import steps_taken
from .policy import divided, policy_weights, rest
from .total import Total
from .work import SCALARS, Outcome, RoundWork, empty_scalars

if TYPE_CHECKING:
    from .native import Native

PORTION_BYTES = 16 << 20  # of examples, about: what a processor's caches hold, or nearly


class Portions:
    """The lanes of a round, dealt to portions. `work` has no examples yet; `bytes_each` of them is what one takes."""

    def __init__(self, native: Native, work: RoundWork, bytes_each: int) -> None:
        self.native, self.work = native, work
        self.lanes, order = native.deal(work)
        at_most = self.lanes // (native.threads or torch.get_num_threads())  # each has a lane for every thread
        wanted = -(-int(work.counts.sum()) * bytes_each // PORTION_BYTES)
        self.parts = lane_tree.cuts(self.lanes, max(1, min(wanted, at_most)))
        self._lane_of = torch.empty_like(order)
        self._lane_of[order] = torch.arange(len(order)) % self.lanes

    def run(self, visit: Callable[[Tensor], Visit]) -> Outcome:
        """Trains the round; `visit` makes the examples of the clients at these positions (m,)."""
        work, sums = self.work, dict[lane_tree.Node, Tensor]()
        scalars, refused = empty_scalars(len(work)), torch.zeros(len(work), dtype=torch.bool)
        for part in self.parts:
            here = ((self._lane_of >= part.start) & (self._lane_of < part.stop)).nonzero().flatten()
            nodes = lane_tree.roots(self.lanes, part)
            if not nodes:
                continue
            visited = visit(here)
            places = self._places(here, visited)
            work.rows[places] = visited.rows
            trained = self.native.run_lanes(replace(work, examples=visited.examples), part, len(nodes))
            work.rows[places] = 0  # the next portion need not have as many examples
            sums |= zip(nodes, trained.delta.view(len(nodes), -1), strict=True)
            refused[here] = trained.refused[here]
            for name in SCALARS:
                scalars[name][here] = trained.scalars[name][here]
        total = lane_tree.folded(self.lanes, sums).add_(0.0)  # -0 is where a portion had nothing
        return Outcome(
            Total(divided(total, rest(work, policy_weights(work, steps_taken(work)), refused))), scalars, refused
        )

    def _places(self, here: Tensor, visit: Visit) -> Tensor:
        """Where the examples of the clients at these positions are in the round's rows, in the visit's order."""
        begin = self.work.offsets[here] - visit.offsets[:-1]
        return begin.repeat_interleave(self.work.counts[here]).add_(torch.arange(len(visit.rows)))
