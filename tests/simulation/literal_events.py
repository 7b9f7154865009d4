"""Asynchronous federated learning as an event loop reads: a sorted list of who ends when, and a list of every model
there ever was. Knows nothing of FastFed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from .literal import Array, Batch, Rule, Server, Snapshot, Start
from .literal_async import Clients

Starters = Callable[[float, list[int], int], list[int]]  # (now, who is idle, how many start) -> who starts


class Flight(NamedTuple):
    """A client at work: when it ends, who it is, and how many server steps there had been when it started."""

    due: float
    client: int
    version: int


class Filled(NamedTuple):
    """A server step: its clock, the (client, age) of its updates, and the versions of those at work after it, whose
    updates will not be too old; how many were refused for their age, told to stop, and started so far."""

    clock: float
    updates: list[tuple[int, int]]
    at_work: set[int]
    stale: int
    discarded: int
    started: int


@dataclass
class Loop:
    """`concurrency` clients at work at any time, a step after every `buffer` updates. At one moment, updates come
    first, by client, until the buffer is full; then free places are taken. A client whose update waits is not idle.

    `waves`: clients start only when nobody is at work and no update waits, and a step stops all others.
    """

    seconds: Sequence[float]
    concurrency: int
    buffer: int
    starters: Starters
    max_age: int | None = None
    waves: bool = False
    now: float = 0.0
    version: int = 0
    stale: int = 0
    discarded: int = 0
    started: int = 0
    flying: list[Flight] = field(default_factory=list)
    waiting: list[tuple[int, int]] = field(default_factory=list)

    def fill(self, until: float = float("inf")) -> bool:
        """Goes on until the buffer is full; False if the clock would pass `until` first."""
        while True:
            while self.flying and self.flying[0].due <= self.now:
                _, client, version = self.flying.pop(0)
                if self.max_age is not None and self.version - version > self.max_age:
                    self.stale += 1
                    continue
                self.waiting.append((client, self.version - version))
                if len(self.waiting) == self.buffer:
                    return True
            self._start()
            if self.flying[0].due > until:
                return False
            self.now = self.flying[0].due

    def _start(self) -> None:
        if self.waves and (self.flying or self.waiting):
            return
        busy = {flight.client for flight in self.flying} | {client for client, _ in self.waiting}
        idle = [client for client in range(len(self.seconds)) if client not in busy]
        places = min(self.concurrency - len(self.flying), len(idle))
        started = self.starters(self.now, idle, places)
        assert len(started) == places
        assert set(started) <= set(idle)
        self.flying += [Flight(self.now + self.seconds[client], client, self.version) for client in started]
        self.flying.sort()
        self.started += len(started)

    def commit(self) -> Filled:
        """The server steps with what waits."""
        updates, self.waiting = self.waiting, []
        self.version += 1
        if self.waves:
            self.discarded += len(self.flying)
            self.flying = []
        oldest = 0 if self.max_age is None else self.version - self.max_age
        at_work = {flight.version for flight in self.flying if flight.version >= oldest}
        return Filled(self.now, updates, at_work, self.stale, self.discarded, self.started)


def everyone_idle(now: float, idle: list[int], places: int) -> list[int]:
    """For loops in which nobody has to be chosen."""
    assert len(idle) == places
    return idle


@dataclass
class Buffered:
    """Training along a course of events: (1/m) sum (1 + age)^-a w_i D_i, or by examples; D_i from the model at the
    client's start. `blend` gives a client's own rule and w_i."""

    clients: Clients
    server: Server
    batches: Callable[[int, int], list[Batch]]
    staleness: float = 0.0
    weights: str = "uniform"
    divide_by_steps: bool = False
    blend: Callable[[int], tuple[Callable[[Start], Rule] | None, float]] = lambda client: (None, 1.0)

    def run(self, x: Array, course: Sequence[Filled]) -> list[Snapshot]:
        """x, moments and the models that are still in use, as "past<version>", after every step."""
        models = [x]
        self.server.begin(x)
        snapshots = []
        for t, step in enumerate(course):
            sent, counts = [], []
            for client, age in step.updates:
                rule, weight = self.blend(client)
                batches = self.batches(t, client)
                trained = self.clients.train(models[t - age], client, batches, rule)
                if trained.counts:
                    delta = trained.delta / len(batches) if self.divide_by_steps else trained.delta
                    sent.append(weight * (1 + age) ** -self.staleness * delta)
                    counts.append(len(self.clients.examples[client][1]) if self.weights == "examples" else 1)
            parts = [count / sum(counts) * delta for count, delta in zip(counts, sent, strict=True)]
            aggregate = np.sum(parts, axis=0, dtype=x.dtype) if parts else None
            models.append(models[-1] if aggregate is None else self.server.step(models[-1], aggregate, 1.0))
            past = {f"past{version}": models[version] for version in step.at_work if version <= t}
            snapshots.append({"x": models[-1], **self.server.state, **past})
        return snapshots
