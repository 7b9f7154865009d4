"""What becomes of deltas on their way up, as the pseudo-code of differential privacy and of compression with error
feedback reads. Knows nothing of FastFed; random numbers are handed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .literal import Array, Batch, Server, Shapes, Snapshot, norm, split
from .literal_async import Clients

# ---- what the server reads of a compressed vector -------------------------------------------------------------------


def top_k(vector: Array, fraction: float) -> Array:
    """The largest ones, the first of equal ones, and 0 elsewhere."""
    k = max(1, math.ceil(fraction * len(vector) - 1e-9))
    largest = sorted(range(len(vector)), key=lambda j: (-abs(vector[j]), j))[:k]
    read = np.zeros_like(vector)
    for j in largest:
        read[j] = vector[j]
    return read


def signs(vector: Array, shapes: Shapes) -> Array:
    """Tensor by tensor its mean magnitude, with the sign of each number; 0 counts as positive."""
    parts = [np.where(part < 0, -1, 1) * np.mean(np.abs(part)) for part in split(vector, shapes)]
    return np.concatenate([part.reshape(-1) for part in parts]).astype(vector.dtype)


def eight_bits(vector: Array, shapes: Shapes, uniforms: Array) -> Array:
    """Tensor by tensor a multiple of max |v| / 127: the one above with the probability of the fraction, else below."""
    parts = []
    for part, draws in zip(split(vector, shapes), split(uniforms, shapes), strict=True):
        scale = np.max(np.abs(part)) / 127
        levels = part / scale if scale > 0 else np.zeros_like(part)
        below = np.floor(levels)
        parts.append(np.clip(below + (draws < levels - below), -127, 127) * scale)
    return np.concatenate([part.reshape(-1) for part in parts]).astype(vector.dtype)


Compression = Callable[[int, int, Array], Array]  # (round, client, vector) -> what the server reads


# ---- private sums ---------------------------------------------------------------------------------------------------


@dataclass
class Private:
    """Each delta clipped to norm `clip`, the sum over `expected` = q N clients, and N(0, (sigma clip / expected)^2) on
    every coordinate. `normals` are standard normal numbers (d,) by round.

    With a `quantile` the bound follows it: clip *= exp(-rate (b - quantile)), where b is the noisy share of clients
    with norm <= clip, computed from sum_i (b_i - 1/2) and N(0, count_std^2) (`count_normal`, by round). The deltas'
    sigma is then (noise^-2 - (2 count_std)^-2)^-1/2, so that both together cost what `noise` alone does.
    """

    clip: float | None
    noise: float
    expected: float
    normals: Callable[[int], Array]
    quantile: float | None = None
    rate: float = 0.2
    count_std: float = math.nan
    count_normal: Callable[[int], float] = lambda round: math.nan

    @property
    def std(self) -> float:
        if self.noise == 0 or self.clip is None:
            return 0.0
        sigma = self.noise
        if self.quantile is not None:
            sigma = (self.noise**-2 - (2 * self.count_std) ** -2) ** -0.5
        return sigma * self.clip / self.expected

    def mean(self, deltas: Sequence[Array], x: Array, round: int) -> Array:
        total = np.sum([clipped(delta, self.clip) for delta in deltas] or [np.zeros_like(x)], axis=0, dtype=x.dtype)
        return total / self.expected + (self.std * self.normals(round)).astype(x.dtype)

    def adapt(self, deltas: Sequence[Array], round: int) -> None:
        if self.quantile is None or self.clip is None:
            return
        below = sum((1 if norm(delta) <= self.clip else 0) - 0.5 for delta in deltas)
        share = (below + self.count_std * self.count_normal(round)) / self.expected + 0.5
        self.clip *= math.exp(-self.rate * (share - self.quantile))


def clipped(delta: Array, bound: float | None) -> Array:
    return delta if bound is None or norm(delta) <= bound else delta * (bound / norm(delta))


# ---- rounds ---------------------------------------------------------------------------------------------------------


@dataclass
class Uplink:
    """Rounds whose deltas are divided by their steps (or not), compressed (or not; with `feedback` together with what
    earlier messages of the client left out), clipped, averaged or privately summed. `senders` counts by round."""

    clients: Clients
    server: Server
    batches: Callable[[int, int], list[Batch]]
    weights: str = "uniform"
    divide_by_steps: bool = False
    delta_clip: float | None = None
    compression: Compression | None = None
    feedback: bool = True
    private: Private | None = None

    def run(self, x: Array, cohorts: Sequence[Sequence[int]]) -> tuple[list[Snapshot], list[int]]:
        """x, the server's moments, "clip" and the clients' errors "e<client>" after every round; and the senders."""
        self.server.begin(x)
        errors: dict[int, Array] = {}
        snapshots, senders = [], []
        for t, cohort in enumerate(cohorts):
            sent = {}
            for client in cohort:
                batches = self.batches(t, client)
                trained = self.clients.train(x, client, batches)
                if trained.counts:
                    delta = trained.delta / len(batches) if self.divide_by_steps else trained.delta
                    sent[client] = self._received(t, client, delta, errors)
            if sent or (self.private is not None and self.private.noise > 0):
                x = self.server.step(x, self._aggregate(t, sent, x), 1.0)
            if self.private is not None:
                self.private.adapt(list(sent.values()), t)
            bound = None if self.private is None else self.private.clip
            numbers = {} if bound is None else {"clip": np.array([bound])}
            kept = {f"e{client}": error for client, error in errors.items()}
            snapshots.append({"x": x, **self.server.state, **kept, **numbers})
            senders.append(len(sent))
        return snapshots, senders

    def _received(self, round: int, client: int, delta: Array, errors: dict[int, Array]) -> Array:
        if self.compression is None:
            return delta
        wanted = delta + errors.get(client, np.zeros_like(delta)) if self.feedback else delta
        read = self.compression(round, client, wanted)
        if self.feedback:
            errors[client] = wanted - read
        return read

    def _aggregate(self, round: int, sent: dict[int, Array], x: Array) -> Array:
        if self.private is not None:
            return self.private.mean(list(sent.values()), x, round)
        counts = {client: len(self.clients.examples[client][1]) if self.weights == "examples" else 1 for client in sent}
        parts = [counts[c] / sum(counts.values()) * clipped(sent[c], self.delta_clip) for c in sent]
        return np.sum(parts, axis=0, dtype=x.dtype)
