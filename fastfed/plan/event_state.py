"""What the loop of the event clock works on: the names of its counts, and its arrays; in C++ csrc/engine/events.h."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# How `run` ends: `until` comes first, the buffer is full, the budget is spent, random numbers are wanted.
CUT, FULL, UNFINISHED, UNDRAWN = range(4)

# What a queue counts: the first ones make up its state, the others follow from it.
VERSION, EVENTS, DROPPED, LOST, STALE, DISCARDED, STARTS, WAVES = range(8)
SAVED = 8
IN_FLIGHT, BUFFERED, READY, OPENED, CLOSED, WANTED, DRAWN = range(SAVED, SAVED + 7)

GROUP = 64  # clients counted together by the tree of those ready: one line of the cache holds their status


class State(NamedTuple):
    """What the compiled loop works on: settings first, then what changes. N clients. csrc/bind/events.cpp reads the
    fields in this order."""

    seconds: Floats  # (N,) how long each takes; where epochs are drawn, with one epoch
    further: Floats  # (N,) how long every further epoch takes; (0,) where none are drawn
    most_epochs: int  # of those that are drawn, at least 1
    begin: Floats  # (N,) when its first window opens, in [0, period); (0,) where all are always available
    order: NDArray[np.int32]  # the clients by the beginning of their windows, like `begin`
    length: float
    period: float
    concurrency: int
    buffer: int
    max_age: int  # negative: any
    waves: bool
    dropout: float

    now: Floats  # (1,)
    counts: Ints  # by the names above
    status: NDArray[np.uint8]  # (N,)
    draws: NDArray[np.float32]  # (starts, 4) random numbers of the starts of portion counts[DRAWN]
    epoch_draws: NDArray[np.float32]  # (starts,) the same of how many epochs; (0,) where none are drawn
    epochs: NDArray[np.int64]  # (N,) what each has drawn that is in flight or in the buffer; (0,) where none are drawn
    tree: NDArray[np.int32]  # a Fenwick tree over groups of clients: how many are ready
    due: Floats  # (concurrency,) a binary heap with the next two: when, ...
    client: Ints  # ... who, ...
    started: Ints  # ... and from which version (or negative: it will not report)
    arrived: Ints  # (buffer,) who has reported, ...
    arrived_version: Ints  # ... from which version
