"""When clients take part, where rounds are not synchronous: client-centric ages, or a simulated clock.

Settings are frozen; what they remember during a run lives in their planner. A round is one step of the server: it takes
the updates of the clients in its buffer, each trained from the model that its client started from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, Protocol

from .fleet import Fleet
from .plan.client_centric import CentricPlanner
from .plan.clock import EventPlanner, make_queue
from .plan.participation import Uniform
from .plan.round import Planner, PlanTemplate, nearest_whole


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


# ---- client-centric -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClientCentric:
    """CC: every `buffer` updates the server steps; each comes from a client that started from one of the newest
    `max_delay` + 1 models, all as likely, and trained for 1 to `epochs` * `randomness` epochs, all as likely, which are
    drawn for every client, or by `epochs_per` "round" for all clients of a round at once.

    `epochs` None: as long as the simulation's own `epochs` or `steps` say.
    """

    buffer: int = 5
    max_delay: int = 5
    epochs: float | None = 3
    randomness: float | None = 2
    epochs_per: Literal["client", "round"] = "client"

    has_clock = False

    def __post_init__(self) -> None:
        _whole("buffer", self.buffer, 1)
        _whole("max_delay", self.max_delay, 0)
        if (self.epochs is None) != (self.randomness is None):
            raise ValueError(f"randomness: belongs to epochs, got {self.randomness!r} and {self.epochs!r}")
        if self.epochs_per not in ("client", "round"):
            raise ValueError(f"epochs_per: must be 'client' or 'round', got {self.epochs_per!r}")
        if self.epochs is None and self.epochs_per != "client":
            raise ValueError(
                "epochs_per: would be ignored, as the timing draws no epochs; give it epochs, or leave it out"
            )
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

    @property
    def _most_epochs(self) -> int | None:
        if self.epochs is None or self.randomness is None:
            return None
        return nearest_whole(self.epochs * self.randomness)

    def begin(self, template: PlanTemplate, bytes_moved: int) -> Planner:
        Uniform(self.buffer).check(template.sizes.numel())
        alike = self.epochs_per == "round"
        return CentricPlanner(template, self.buffer, self.max_delay, self._most_epochs, alike)


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

    def begin(self, template: PlanTemplate, bytes_moved: int) -> Planner:
        queue = make_queue(
            template, self.fleet, bytes_moved, concurrency=self.concurrency, buffer=self.buffer, max_age=self.max_age
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
