"""FATHOM as its pseudo-code reads, from lists of all gradients. Knows nothing of FastFed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from .literal import SGD, Array, Batch, Snapshot, norm
from .literal_async import Clients


@dataclass
class Fathom:
    """lr, E and B as they stand, and their hypergradients' settings; `bounds` are the largest lr, E and B that a round
    uses. `form`: the listing of the "paper", or the "authors"' code."""

    lr: float
    epochs: float
    batch_size: float
    gamma_lr: float = 0.01
    gamma_epochs: float = 0.01
    gamma_batch: float = 0.1
    alpha: float = 0.5
    form: str = "authors"
    rounding: Callable[[float], int] = math.ceil
    bounds: tuple[float, float, float] = (math.inf, math.inf, math.inf)
    weights: str = "examples"
    after: bool = True  # cosines with the step's own gradient in the sum
    least: list[float] = field(default_factory=list)  # every client's least cosine, for those who want to look

    def run(
        self,
        clients: Clients,
        x: Array,
        cohorts: Sequence[Sequence[int]],
        batches: Callable[[int, int, int, int], list[Batch]],
    ) -> list[Snapshot]:
        """x, the smoothed delta, and what the next round uses; `batches` by (round, client, B, K)."""
        smoothed = np.zeros_like(x)
        snapshots = []
        for t, cohort in enumerate(cohorts):
            lr, epochs, batch_size = self.used
            trained, size = {}, max(1, round(batch_size))
            for i in cohort:
                n = len(clients.examples[i][1])
                steps = max(1, self.rounding(n * epochs / size)) if n else 0
                own = clients.train(x, i, batches(t, i, size, steps), partial(SGD, lr=lr))
                if own.counts:
                    trained[i] = own
            if trained:
                raw = {i: len(clients.examples[i][1]) if self.weights == "examples" else 1 for i in trained}
                p = {i: weight / sum(raw.values()) for i, weight in raw.items()}
                delta = np.sum([p[i] * trained[i].delta for i in trained], axis=0, dtype=x.dtype)
                least = {i: least_cosine(trained[i].gradients, self.after) for i in trained}
                self.least += least.values()
                opposes = -cosine(delta, smoothed)
                drifts = -sum(p[i] * least[i] for i in trained) * (lr if self.form == "paper" else 1.0)
                smoothed = self.alpha * smoothed + (1 - self.alpha) * delta
                self._move(opposes, drifts)
                x = x + delta
            numbers = {"lr": self.lr, "E": self.epochs, "B": self.batch_size}
            snapshots.append({"x": x, "smoothed": smoothed, **{name: np.array([n]) for name, n in numbers.items()}})
        return snapshots

    @property
    def used(self) -> tuple[float, float, float]:
        """By the next round."""
        lr, epochs, batch_size = self.bounds
        return min(lr, self.lr), min(epochs, self.epochs), min(batch_size, self.batch_size)

    def _move(self, opposes: float, drifts: float) -> None:
        self.lr *= math.exp(-self.gamma_lr * opposes)
        self.epochs *= math.exp(-self.gamma_epochs * (opposes + drifts))
        self.batch_size *= math.exp(self.gamma_batch * drifts)


def cosine(a: Array, b: Array) -> float:
    """0 with a zero vector."""
    if norm(a) == 0 or norm(b) == 0:
        return 0.0
    return float(np.sum(a.astype(np.float64) * b.astype(np.float64))) / (norm(a) * norm(b))


def least_cosine(gradients: list[Array], after: bool) -> float:
    """`after` every step, the first included: min over K >= 0 of cos(g_0 + ... + g_K, g_K). Else min over K >= 1 of
    cos(g_0 + ... + g_{K-1}, g_K); a single gradient has nothing before it: 0."""
    if after:
        return min(cosine(np.sum(gradients[: k + 1], axis=0), gradients[k]) for k in range(len(gradients)))
    return min((cosine(np.sum(gradients[:k], axis=0), gradients[k]) for k in range(1, len(gradients))), default=0.0)
