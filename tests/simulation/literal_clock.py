"""The clock of asynchronous rounds in plain words: sets, sorted lists, and a look at everybody at every moment."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fastfed.kernels import Stream, uniform
from fastfed.plan.events import EventQueue
from fastfed.purposes import Purpose

Settings = dict[str, Any]


def doubles(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def windows(begins: list[float], length: float, period: float) -> tuple[Tensor, float, float]:
    return doubles(*begins), length, period


@lru_cache
def draws_of(seed: int, portion: int, starts: int) -> list[float]:
    """Four random numbers for each start."""
    return uniform(4 * starts, Stream(seed, Purpose.EVENTS, round=portion)).tolist()


class Literal:
    """What `EventQueue` does, with the same arguments and the same random numbers."""

    def __init__(
        self,
        seconds: Tensor,
        *,
        concurrency: int,
        buffer: int,
        seed: int,
        max_age: int | None = None,
        waves: bool = False,
        dropout: float = 0.0,
        windows: tuple[Tensor, float, float] | None = None,
    ) -> None:
        self.seconds = seconds.tolist()
        self.concurrency, self.buffer, self.seed = concurrency, buffer, seed
        self.max_age = math.inf if max_age is None else max_age
        self.in_waves, self.dropout = waves, dropout
        self.begins, self.length, self.period = (
            ([], 0.0, 0.0) if windows is None else (windows[0].tolist(), *windows[1:])
        )
        self.now = 0.0
        self.version = self.events = self.starts = self.waves = 0
        self.dropped = self.lost = self.stale = self.discarded = 0
        self.flying: list[tuple[float, int, int, str]] = []  # when, who, from which version, and how it ends
        self.waiting: list[tuple[int, int]] = []  # who, from which version
        self.moments: list[float] = []

    def advance(self, until: float = math.inf) -> bool:
        while not self.is_full():
            due = sorted(one for one in self.flying if one[0] <= self.now)
            if self.now > until:
                return False
            if due:
                self.end(due[0])
                continue
            self.fill()
            moment = min([when for when, *_ in self.flying] + self.openings_worth_waiting_for())
            if moment > until:
                return False
            self.now = moment
            self.moments.append(moment)
        return True

    def is_full(self) -> bool:
        over = self.in_waves and bool(self.waiting) and not self.flying
        return len(self.waiting) >= self.buffer or over

    def end(self, one: tuple[float, int, int, str]) -> None:
        self.flying.remove(one)
        _, client, version, fate = one
        self.events += 1
        if fate == "dropped":
            self.dropped += 1
        elif fate == "lost":
            self.lost += 1
        elif self.version - version > self.max_age:
            self.stale += 1
        else:
            self.waiting.append((client, version))

    def fill(self) -> None:
        if not self.in_waves:
            while len(self.flying) < self.concurrency and self.ready():
                self.start(*divmod(self.starts, 4096), of=4096)
        elif not self.flying and not self.waiting and self.ready():
            for place in range(min(self.concurrency, len(self.ready()))):
                self.start(self.waves, place, of=self.concurrency)
            self.waves += 1

    def start(self, portion: int, place: int, of: int) -> None:
        drawn = draws_of(self.seed, portion, of)[4 * place :][:4]
        ready = self.ready()
        client = ready[int((drawn[0] + drawn[1] / 2**24) * len(ready))]
        when, fate = self.now + self.seconds[client], "reported"
        if drawn[2] + drawn[3] / 2**24 < self.dropout:
            fate = "dropped"
        closing = self.closing(client)
        if closing is not None and closing < when:
            when, fate = closing, "lost"
        self.flying.append((when, client, self.version, fate))
        self.starts += 1

    def ready(self) -> list[int]:
        busy = {client for _, client, _, _ in self.flying} | {client for client, _ in self.waiting}
        return [
            c for c in range(len(self.seconds)) if c not in busy and (not self.begins or self.closing(c) is not None)
        ]

    def openings(self, client: int) -> list[float]:
        period = int(self.now / self.period)
        return [self.begins[client] + k * self.period for k in range(period - 2, period + 3)]

    def closing(self, client: int) -> float | None:
        """When the window closes that is open now, if one is."""
        if not self.begins:
            return None
        open_now = [opening for opening in self.openings(client) if opening <= self.now < opening + self.length]
        return open_now[0] + self.length if open_now else None

    def openings_worth_waiting_for(self) -> list[float]:
        waits = not self.flying and not self.waiting if self.in_waves else len(self.flying) < self.concurrency
        if not self.begins or not waits:
            return []
        return [opening for c in range(len(self.seconds)) for opening in self.openings(c) if opening > self.now]

    def commit(self) -> None:
        self.waiting = []
        self.version += 1
        if self.in_waves:
            self.discarded += len(self.flying)
            self.flying = []

    @property
    def in_flight(self) -> int:
        return len(self.flying)

    @property
    def arrived(self) -> tuple[Tensor, Tensor]:
        pairs = torch.tensor(self.waiting, dtype=torch.int64).view(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    def versions_in_use(self) -> Tensor:
        """Of those who will report and be accepted, if nothing else happens until then."""
        flying = {v for *_, v, fate in self.flying if fate == "reported" and self.version - v <= self.max_age}
        return torch.tensor(sorted(flying | {version for _, version in self.waiting} | {self.version}))


COUNTS = ("now", "version", "events", "starts", "dropped", "lost", "stale", "discarded", "in_flight")


def seen(queue: EventQueue | Literal) -> dict[str, Any]:
    """Everything that a queue shows."""
    shown = {name: getattr(queue, name) for name in COUNTS}
    clients, versions = queue.arrived
    return shown | {
        "arrived": clients.tolist(),
        "versions": versions.tolist(),
        "in_use": queue.versions_in_use().tolist(),
    }


def course(queue: EventQueue, updates: int) -> Tensor:
    """Who reports, in order."""
    clients: list[int] = []
    while len(clients) < updates:
        queue.advance()
        clients += queue.arrived[0].tolist()
        queue.commit()
    return torch.tensor(clients)


SPEEDS = doubles(3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8)
SOME = doubles(*(0.1 + 1.7 * (i * 7 % 11) for i in range(23)))
