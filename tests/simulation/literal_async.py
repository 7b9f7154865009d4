"""Rounds whose clients start from past models, as the pseudo-code of client-centric and buffered asynchronous training
reads: a plain list of all models there ever were, a sorted list of who arrives when. Knows nothing of FastFed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .literal import Array, Batch, Network, Rule, Server, Snapshot, Start, Step, norm


@dataclass
class Clients:
    """Every client's examples, and the optimizer that each client makes anew for a round."""

    network: Network
    examples: list[tuple[Array, Array]]
    rule: Callable[[Start], Rule]

    def train(
        self,
        x: Array,
        client: int,
        batches: Sequence[Batch],
        rule: Callable[[Start], Rule] | None = None,
        factor: float = 1.0,
        v: Array | None = None,
    ) -> Trained:
        """From model x over these batches, perhaps with another rule, a factor of its learning rate, the server's v."""
        features, labels = self.examples[client]
        own = (rule or self.rule)(Start(x, factor, v, self.network.shapes))
        local, gradients = x, []
        for k, (epoch, rows) in enumerate(batches, start=1):

            def gradient(there: Array, rows: Array = rows) -> tuple[float, Array]:
                return self.network.loss_and_gradient(there, features[rows].astype(x.dtype), labels[rows])

            loss, g = gradient(local)
            gradients.append(g)
            local = own.step(Step(k, epoch, local, g, loss, gradient, 1.0))
        return Trained(local - x, gradients)


class Trained(NamedTuple):
    """D_i = x_K - x, and the gradient of every local step."""

    delta: Array
    gradients: list[Array]

    @property
    def counts(self) -> bool:
        """Whether the client took a step and its delta is finite."""
        return len(self.gradients) > 0 and math.isfinite(norm(self.delta))


def mean(vectors: Sequence[Array]) -> Array:
    return np.sum(vectors, axis=0, dtype=vectors[0].dtype) / len(vectors)


# ---- client-centric -------------------------------------------------------------------------------------------------


class Arrival(NamedTuple):
    """An update in the server's buffer: whose, how many server steps ago it started, and its local batches."""

    client: int
    age: int
    batches: list[Batch]


def client_centric(
    clients: Clients, server: Server, x: Array, rounds: Sequence[Sequence[Arrival]], longest: int
) -> list[Snapshot]:
    """CC: the uniform mean of D_i / K_i, one server step per buffer; x, moments and the `longest` last models before x
    after every step."""
    models = [x]
    server.begin(x)
    snapshots = []
    for buffer in rounds:
        normalised = []
        for client, age, batches in buffer:
            trained = clients.train(models[len(models) - 1 - age], client, batches)
            if trained.counts:
                normalised.append(trained.delta / len(batches))
        models.append(server.step(models[-1], mean(normalised), 1.0) if normalised else models[-1])
        newest = len(models) - 1
        past = {f"past{v}": models[v] for v in range(max(0, newest - longest), newest)}
        snapshots.append({"x": models[-1], **server.state, **past})
    return snapshots
