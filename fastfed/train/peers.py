"""Who else trains clients of a round: nobody, or the other ranks of a run (``sharded.py``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

Reduce = Callable[[Tensor], Tensor]  # rows (k, d) -> one vector (d,)


@dataclass(frozen=True)
class Dealt:
    """Who trains whom: `rank_of` (clients,) int64, by position in the cohort. `parts` is the executor's own: what it
    gives to each rank. `failure` is what kept this rank from having its clients' examples: instead of training them it
    tells the others, who will hear of the round's errors anyhow."""

    rank_of: Tensor
    parts: Any
    failure: Exception | None = None

    def to(self, rank: int) -> Tensor:
        """The positions of the clients that a rank trains: (m,) int64, rising."""
        return (self.rank_of == rank).nonzero().flatten()


def untouched_zeros(like: Tensor, *shape: int) -> Tensor:
    """Zeros of the dtype and device of `like`. On the CPU they take no room until somebody writes to them, which those
    of torch do at once."""
    if like.device.type != "cpu" or not like.dtype.is_floating_point or like.element_size() < 4:
        return like.new_zeros(shape)
    return torch.from_numpy(np.zeros(shape, dtype=np.float32 if like.element_size() == 4 else np.float64))


class Alone:
    """One process trains all clients of a round: what several would have to ask each other is here."""

    def here(self, clients: int) -> Tensor:
        """The positions of the clients that are trained here, of so many in the cohort: (m,) int64, rising."""
        return torch.arange(clients)

    def reduced(self, rows: Tensor, counts: Tensor, reduce: Reduce, *, by_column: bool = True) -> Tensor:
        """The vector (d,) that `reduce` makes of a row for each of the clients in `counts` (n,) bool, in their order;
        `rows` (k, d) are those of clients that are trained here. `by_column`: it looks at one column at a time."""
        return reduce(rows)

    def whole(self, rows: Tensor) -> Tensor:
        """A row for each client of the cohort, (n, ...), from the rows (m, ...) of those that are trained here."""
        return rows


ALONE = Alone()
