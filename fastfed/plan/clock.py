"""Rounds on a simulated clock: who starts when is an `EventQueue`'s, what they are told is every planner's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..clients import Blend
from ..fleet import Fleet
from .round import PlanTemplate, RoundPlan, Tuning, age_columns

if TYPE_CHECKING:
    from .events import EventQueue


class EventPlanner:
    """Rounds as an `EventQueue` fills its buffer."""

    def __init__(
        self, template: PlanTemplate, queue: EventQueue, staleness: float, stops_the_late: bool = False
    ) -> None:
        self.template, self.queue, self.staleness, self.stops_the_late = template, queue, staleness, stops_the_late
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
            **age_columns(age),
            "dropped": queue.dropped,
            "lost": queue.lost,
            "stale": queue.stale,
            "discarded": queue.discarded + (queue.in_flight if self.stops_the_late else 0),
        }
        epochs = None if queue.epochs is None else queue.epochs[order]
        plan = self.template.plan(round, cohort, tuning, epochs=epochs, age=age, scale=scale, columns=columns)
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


def make_queue(
    template: PlanTemplate,
    fleet: Fleet,
    bytes_moved: int,
    *,
    most_epochs: int | None = None,
    **options: int | bool | None,
) -> EventQueue:
    """The queue of a run in which a client's round moves that many bytes, and in which clients draw 1 to `most_epochs`
    epochs (None: they train as the template says); `options` are its own."""
    from .events import EventQueue  # here: it compiles its loop, which others need not wait for

    clients = template.sizes.numel()
    fleet.check(clients)
    if isinstance(template.client, Blend) and any(
        p.steps is not None or p.epochs is not None for p in template.client.parts
    ):
        raise ValueError("client: a simulated clock must know a client's steps beforehand; the parts may not set them")
    local = template.local
    epochs = local.epochs if most_epochs is None else 1.0
    steps = local.steps_of(torch.arange(clients), template.sizes, epochs, local.batch_size)
    steps = torch.where(template.sizes > 0, steps, 1)  # who has no examples finds that out
    further = None
    if most_epochs is not None:
        further = (fleet.training_seconds(steps, template.seed), most_epochs)
    return EventQueue(
        fleet.seconds(steps, bytes_moved, template.seed),
        epochs=further,
        dropout=fleet.dropout,
        windows=_windows(fleet, clients, template.seed),
        seed=template.seed,
        **options,  # type: ignore[arg-type]
    )


def _windows(fleet: Fleet, clients: int, seed: int) -> tuple[Tensor, float, float] | None:
    begins = fleet.begins(clients, seed)
    if begins is None or fleet.windows is None:
        return None
    return begins, fleet.windows.length, fleet.windows.period
