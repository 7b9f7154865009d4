"""When clients take part, where rounds are not synchronous: client-centric ages, or a simulated clock.

Settings are frozen; what they remember during a run lives in their planner. A round is one step of the server: it takes
the updates of the clients in its buffer, each trained from the model that its client started from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, Protocol

from .fleet import Fleet
from .plan.availability import Availability
from .plan.client_centric import CentricPlanner
from .plan.clock import EventPlanner, make_queue
from .plan.round import Planner, PlanTemplate, nearest_whole
from .plan.sampled import MOST_KEYS, Sampled
from .plan.shares import Shares


class Timing(Protocol):
    """Settings that make a planner. `buffer`: how many updates the server waits for. `sets_epochs`: it decides how long
    clients train. `has_clock`: rows have a simulated time."""

    @property
    def buffer(self) -> int: ...

    @property
    def sets_epochs(self) -> bool: ...

    has_clock: bool

    def begin(self, template: PlanTemplate, bytes_moved: int) -> Planner:
        """The planner of a run in which a client's round moves that many bytes."""


def _whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}: must be a whole number >= {least}, got {value!r}")


def _check_epochs(epochs: float | None, randomness: float | None) -> None:
    """The most epochs that are drawn must be a whole number."""
    if (epochs is None) != (randomness is None):
        raise ValueError(f"randomness: belongs to epochs, got {randomness!r} and {epochs!r}")
    if epochs is not None and randomness is not None:
        most = epochs * randomness
        if not 1 - 1e-9 <= most < math.inf or abs(most - round(most)) > 1e-9:
            raise ValueError(
                f"randomness: epochs * randomness must be a whole number >= 1, got {epochs!r} * {randomness!r}"
            )


def _most_epochs(epochs: float | None, randomness: float | None) -> int | None:
    """Clients train for 1 to so many epochs, all as likely; None: as the simulation says."""
    return None if epochs is None or randomness is None else nearest_whole(epochs * randomness)


# ---- client-centric -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClientCentric:
    """CC: every `buffer` updates the server steps; each comes from a client that started from one of the newest
    `max_delay` + 1 models, all as likely, and trained for 1 to `epochs` * `randomness` epochs, all as likely, which are
    drawn for every client, or by `epochs_per` "round" for all clients of a round at once.

    `epochs` None: as long as the simulation's own `epochs` or `steps` say. Who takes part is drawn uniformly, or as
    `shares`, `availability` and `replacement` of ``ff.plan.Sampled`` say; where fewer are available, the server steps
    with those (with `replacement` they are drawn as often as it needs).
    """

    buffer: int = 5
    max_delay: int = 5
    epochs: float | None = 3
    randomness: float | None = 2
    epochs_per: Literal["client", "round"] = "client"
    shares: Shares = None
    availability: Availability = None
    replacement: bool = False

    has_clock = False

    def __post_init__(self) -> None:
        _whole("buffer", self.buffer, 1)
        _whole("max_delay", self.max_delay, 0)
        for name in ("shares", "availability"):
            object.__setattr__(self, name, getattr(self._who, name))
        _check_epochs(self.epochs, self.randomness)
        if self.epochs_per not in ("client", "round"):
            raise ValueError(f"epochs_per: must be 'client' or 'round', got {self.epochs_per!r}")
        if self.epochs is None and self.epochs_per != "client":
            raise ValueError(
                "epochs_per: would be ignored, as the timing draws no epochs; give it epochs, or leave it out"
            )

    @property
    def sets_epochs(self) -> bool:
        return self.epochs is not None

    @property
    def _who(self) -> Sampled:
        return Sampled(self.buffer, self.shares, self.availability, self.replacement)

    def begin(self, template: PlanTemplate, bytes_moved: int) -> Planner:
        clients = template.sizes.numel()
        if not self.replacement and self.buffer > clients:
            raise ValueError(f"buffer: must be at most the number of clients, {clients}, got {self.buffer}")
        if self.replacement and self.buffer * clients >= MOST_KEYS:
            raise ValueError(f"buffer: times the number of clients, {clients}, must be below 2**32, got {self.buffer}")
        self._who.check(clients)
        alike = self.epochs_per == "round"
        return CentricPlanner(template, self._who, self.max_delay, _most_epochs(self.epochs, self.randomness), alike)


# ---- a simulated clock ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EventDriven:
    """Asynchronous rounds: `concurrency` clients train at any time; every `buffer` updates the server steps, and a
    client that starts afterwards has the new model.

    An update that is `age` server steps old counts (1 + age) ** -`staleness`; one older than `max_age` is refused.
    `fleet` says how long clients take. FedBuff, and with a buffer of 1 FedAsync.

    With `epochs` and `randomness`, a client that starts draws how long it trains: 1 to `epochs` * `randomness` epochs,
    all as likely, and its time follows. None: as long as the simulation's own `epochs` or `steps` say.
    """

    concurrency: int
    buffer: int = 1
    staleness: float = 0.0
    max_age: int | None = None
    fleet: Fleet = field(default_factory=Fleet)
    epochs: float | None = None
    randomness: float | None = None

    has_clock = True

    def __post_init__(self) -> None:
        _check_epochs(self.epochs, self.randomness)
        _whole("concurrency", self.concurrency, 1)
        _whole("buffer", self.buffer, 1)
        if not 0 <= self.staleness < math.inf:
            raise ValueError(f"staleness: must be a finite number >= 0, got {self.staleness!r}")
        if self.max_age is not None:
            _whole("max_age", self.max_age, 0)

    @property
    def sets_epochs(self) -> bool:
        return self.epochs is not None

    def begin(self, template: PlanTemplate, bytes_moved: int) -> Planner:
        queue = make_queue(
            template,
            self.fleet,
            bytes_moved,
            most_epochs=_most_epochs(self.epochs, self.randomness),
            concurrency=self.concurrency,
            buffer=self.buffer,
            max_age=self.max_age,
        )
        return EventPlanner(template, queue, self.staleness)


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

    def begin(self, template: PlanTemplate, bytes_moved: int) -> Planner:
        queue = make_queue(template, self.fleet, bytes_moved, concurrency=self.size, buffer=self.buffer, waves=True)
        return EventPlanner(template, queue, staleness=0.0, stops_the_late=True)
