"""FedAda2's blended optimisation (Alg. 5) as its pseudo-code reads. Knows nothing of FastFed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .literal import Array, Batch, Rule, Server, Snapshot, Start, norm
from .literal_async import Clients


class Choice(NamedTuple):
    """What a client of the round drew: its optimizer O, the local batches of K(O) steps, and w(O)."""

    client: int
    rule: Callable[[Start], Rule]
    batches: list[Batch]
    weight: float


@dataclass
class Blend:
    """`weights` "uniform" is the paper's; `divide_by_steps` and `delta_clip` come before w(O)."""

    clients: Clients
    server: Server
    weights: str = "uniform"
    divide_by_steps: bool = False
    delta_clip: float | None = None
    transmit: bool = False
    factor: Callable[[int], float] = lambda round: 1.0

    def run(self, x: Array, rounds: Sequence[Sequence[Choice]]) -> list[Snapshot]:
        """x and the server's moments after every round."""
        self.server.begin(x)
        snapshots = []
        for t, cohort in enumerate(rounds):
            v = self.server.state["v"] if self.transmit else None
            sent, counts = [], []
            for client, rule, batches, weight in cohort:
                trained = self.clients.train(x, client, batches, rule, self.factor(t), v)
                if trained.counts:
                    sent.append(weight * self._limited(trained.delta, len(batches)))
                    counts.append(len(self.clients.examples[client][1]) if self.weights == "examples" else 1)
            if sent:
                parts = [count / sum(counts) * delta for count, delta in zip(counts, sent, strict=True)]
                x = self.server.step(x, np.sum(parts, axis=0, dtype=x.dtype), 1.0)
            snapshots.append({"x": x, **self.server.state})
        return snapshots

    def _limited(self, delta: Array, steps: int) -> Array:
        delta = delta / steps if self.divide_by_steps else delta
        if self.delta_clip is not None and norm(delta) > self.delta_clip:
            delta = delta * (self.delta_clip / norm(delta))
        return delta
