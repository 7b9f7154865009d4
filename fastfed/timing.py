"""When clients take part, where rounds are not synchronous: client-centric ages, or a simulated clock.

Settings are frozen; what they remember during a run lives in their planner. A round is one step of the server: it takes
the updates of the clients in its buffer, each trained from the model that its client started from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from .clients import Blend
from .fleet import Fleet
from .kernels import Stream
from .plan.participation import Uniform, uniforms
from .plan.round import Memoryless, Orders, Planner, RoundPlan, Tuning
from .purposes import Purpose

if TYPE_CHECKING:
    from .plan.events import EventQueue


class Timing(Protocol):
    """Settings that make a planner. `buffer`: how many updates the server waits for. `sets_epochs`: it decides how long
    clients train. `has_clock`: rows have a simulated time."""

    @property
    def buffer(self) -> int: ...

    @property
    def sets_epochs(self) -> bool: ...

    has_clock: bool

    def begin(self, orders: Orders, bytes_moved: int) -> Planner:
        """The planner of a run in which a client's round moves that many bytes."""


def _whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}: must be a whole number >= {least}, got {value!r}")


# ---- client-centric -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClientCentric:
    """CC: every `buffer` updates the server steps; each comes from a client that started from one of the newest
    `max_delay` + 1 models, all as likely, and trained for 1 to `epochs` * `randomness` epochs, all as likely.

    `epochs` None: as long as the simulation's own `epochs` or `steps` say.
    """

    buffer: int = 5
    max_delay: int = 5
    epochs: float | None = 3
    randomness: float | None = 2

    has_clock = False

    def __post_init__(self) -> None:
        _whole("buffer", self.buffer, 1)
        _whole("max_delay", self.max_delay, 0)
        if (self.epochs is None) != (self.randomness is None):
            raise ValueError(f"randomness: belongs to epochs, got {self.randomness!r} and {self.epochs!r}")
        if self.epochs is not None and self.randomness is not None:
            most = self.epochs * self.randomness
            if not 1 - 1e-9 <= most < math.inf or abs(most - round(most)) > 1e-9:
                raise ValueError(
                    f"randomness: epochs * randomness must be a whole number >= 1, got {self.epochs!r} * "
                    f"{self.randomness!r}"
                )

    @property
    def sets_epochs(self) -> bool:
        return self.epochs is not None

    def begin(self, orders: Orders, bytes_moved: int) -> Planner:
        Uniform(self.buffer).check(orders.sizes.numel())
        return _CentricPlanner(self, orders)


@dataclass
class _CentricPlanner(Memoryless):
    settings: ClientCentric
    orders: Orders
    version: int = 0

    def plan(self, round: int, tuning: Tuning, until: float = math.inf) -> RoundPlan:
        seed, by = self.orders.seed, self.settings
        cohort = Uniform(by.buffer).cohort(round, self.orders.sizes.numel(), seed)
        age = _drawn(len(cohort), min(by.max_delay, round) + 1, Stream(seed, Purpose.STALENESS, round))
        epochs = None
        if by.epochs is not None and by.randomness is not None:
            most = int(by.epochs * by.randomness + 0.5)
            epochs = 1 + _drawn(len(cohort), most, Stream(seed, Purpose.EPOCHS, round))
        return self.orders.plan(round, cohort, tuning, epochs=epochs, age=age, columns=_ages(age))

    def commit(self) -> None:
        self.version += 1

    def versions(self) -> Sequence[int] | None:
        """Those that the next round may draw, all but the newest."""
        return range(max(0, self.version - self.settings.max_delay), self.version)

    def tensors(self) -> dict[str, Tensor]:
        return {"version": torch.tensor([self.version])}

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.version = int(tensors["version"])


def _drawn(n: int, below: int, stream: Stream) -> Tensor:
    """`n` whole numbers below a bound, all as likely: int64."""
    return (uniforms(n, stream) * below).long()


def _ages(age: Tensor) -> dict[str, object]:
    """What the history tells of the ages (n,): mean, largest, and how many updates of each age, [age, number]."""
    ages, number = age.unique(return_counts=True)
    if len(age) == 0:
        return {"age_mean": None, "age_max": None, "ages": []}
    pairs = [list(pair) for pair in zip(ages.tolist(), number.tolist(), strict=True)]
    return {"age_mean": float(age.double().mean()), "age_max": int(age.max()), "ages": pairs}


# ---- a simulated clock ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EventDriven:
    """Asynchronous rounds: `concurrency` clients train at any time; every `buffer` updates the server steps, and a
    client that starts afterwards has the new model.

    An update that is `age` server steps old counts (1 + age) ** -`staleness`; one older than `max_age` is refused.
    `fleet` says how long clients take. FedBuff, and with a buffer of 1 FedAsync.
    """

    concurrency: int
    buffer: int = 1
    staleness: float = 0.0
    max_age: int | None = None
    fleet: Fleet = field(default_factory=Fleet)

    has_clock = True
    sets_epochs = False

    def __post_init__(self) -> None:
        _whole("concurrency", self.concurrency, 1)
        _whole("buffer", self.buffer, 1)
        if not 0 <= self.staleness < math.inf:
            raise ValueError(f"staleness: must be a finite number >= 0, got {self.staleness!r}")
        if self.max_age is not None:
            _whole("max_age", self.max_age, 0)

    def begin(self, orders: Orders, bytes_moved: int) -> Planner:
        queue = _queue(
            orders, self.fleet, bytes_moved, concurrency=self.concurrency, buffer=self.buffer, max_age=self.max_age
        )
        return EventPlanner(orders, queue, self.staleness)


@dataclass(frozen=True)
class Waves:
    """Synchronous rounds on the same clock: `size` clients start together, and the server steps once `wanted` of them
    (default: all that do not drop out) have reported; whoever is later is told to stop."""

    size: int
    wanted: int | None = None
    fleet: Fleet = field(default_factory=Fleet)

    has_clock = True
    sets_epochs = False

    def __post_init__(self) -> None:
        _whole("size", self.size, 1)
        if self.wanted is not None:
            _whole("wanted", self.wanted, 1)
            if self.wanted > self.size:
                raise ValueError(f"wanted: must be at most size, {self.size}, got {self.wanted}")

    @property
    def buffer(self) -> int:
        return self.size if self.wanted is None else self.wanted

    def begin(self, orders: Orders, bytes_moved: int) -> Planner:
        queue = _queue(orders, self.fleet, bytes_moved, concurrency=self.size, buffer=self.buffer, waves=True)
        return EventPlanner(orders, queue, staleness=0.0, stops_the_late=True)


def _queue(orders: Orders, fleet: Fleet, bytes_moved: int, **options: int | bool | None) -> EventQueue:
    from .plan.events import EventQueue  # here: it compiles its loop, which others need not wait for

    clients = orders.sizes.numel()
    fleet.check(clients)
    if isinstance(orders.client, Blend) and any(
        p.steps is not None or p.epochs is not None for p in orders.client.parts
    ):
        raise ValueError("client: a simulated clock must know a client's steps beforehand; the parts may not set them")
    local = orders.local
    steps = local.steps_of(torch.arange(clients), orders.sizes, local.epochs, local.batch_size)
    steps = torch.where(orders.sizes > 0, steps, 1)  # who has no examples finds that out
    return EventQueue(
        fleet.seconds(steps, bytes_moved, orders.seed),
        dropout=fleet.dropout,
        windows=_windows(fleet, clients, orders.seed),
        seed=orders.seed,
        **options,  # type: ignore[arg-type]
    )


def _windows(fleet: Fleet, clients: int, seed: int) -> tuple[Tensor, float, float] | None:
    begins = fleet.begins(clients, seed)
    if begins is None or fleet.windows is None:
        return None
    return begins, fleet.windows.length, fleet.windows.period


class EventPlanner:
    """Rounds as an `EventQueue` fills its buffer."""

    def __init__(self, orders: Orders, queue: EventQueue, staleness: float, stops_the_late: bool = False) -> None:
        self.orders, self.queue, self.staleness, self.stops_the_late = orders, queue, staleness, stops_the_late
        self._accounted = (0, 0)  # starts and stale updates of the rounds so far, whose bytes have been counted

    def plan(self, round: int, tuning: Tuning, until: float = math.inf) -> RoundPlan | None:
        return self.arrived(round, tuning) if self.queue.advance(until) else None

    def arrived(self, round: int, tuning: Tuning) -> RoundPlan:
        """The round of those whose updates are in the buffer now, full or not."""
        clients, versions = self.queue.arrived
        cohort, order = clients.sort()
        age = self.queue.version - versions[order]
        scale = None if self.staleness == 0 else (1.0 + age.double()) ** -self.staleness
        queue = self.queue
        columns = {
            "clock": queue.now,
            **_ages(age),
            "dropped": queue.dropped,
            "lost": queue.lost,
            "stale": queue.stale,
            "discarded": queue.discarded + (queue.in_flight if self.stops_the_late else 0),
        }
        plan = self.orders.plan(round, cohort, tuning, age=age, scale=scale, columns=columns)
        starts, stale = self._accounted
        return replace(plan, downloads=queue.starts - starts, late_uploads=queue.stale - stale)

    def commit(self) -> None:
        self.queue.commit()
        self._accounted = (self.queue.starts, self.queue.stale)

    def versions(self) -> Sequence[int] | None:
        return [version for version in self.queue.versions_in_use().tolist() if version < self.queue.version]

    def tensors(self) -> dict[str, Tensor]:
        return {**self.queue.tensors(), "accounted": torch.tensor(self._accounted)}

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.queue.load({name: tensor for name, tensor in tensors.items() if name != "accounted"})
        starts, stale = tensors["accounted"].tolist()
        self._accounted = (starts, stale)
