"""Local training as a host asks for it, round after round: some clients of a federation, from a model, in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..clients import Client
from ..data import Federation
from ..losses import Loss
from ..packing import Packing
from ..plan.round import LocalWork
from ..record.evaluate import Evaluator, evaluation_visit
from ..train import DeltaPolicy, Outcome, RoundWork, make, measure
from ..train.predict import Metric


@dataclass(frozen=True)
class RoundSettings:
    """What a host may say anew in every round: its number, counted from 0, and what replaces the settings of a
    `LocalTraining` (None: nothing does). `prox` is FedProx's mu."""

    round: int = 0
    lr: float | None = None
    prox: float | None = None
    epochs: float | None = None
    batch_size: int | None = None


class LocalTraining:
    """The clients of `fed` and how they train: any cohort of them in one call of an executor.

    `module` is read, never written; its trainable parameters are the model, laid out by `packing`. `client` is an
    optimizer of ``ff.clients``. Clients train for `epochs` (default 1; fractions too) or for `steps`, on batches of
    `batch_size`. `executor`, `threads`: as of ``ff.Simulation``. `seed` and a client's place in the federation key the
    order of its examples, so that a round is the same whoever else takes part, and the same as that of an
    ``ff.Simulation`` with this seed. `metric`, of a client's outputs and targets, is what `evaluate` measures (default:
    the loss, and the metric that goes with it).
    """

    def __init__(
        self,
        module: nn.Module,
        fed: Federation,
        *,
        client: Client,
        loss: Loss = "cross_entropy",
        batch_size: int = 20,
        epochs: float | None = None,
        steps: int | Sequence[int] | None = None,
        executor: str = "auto",
        threads: int | None = None,
        seed: int = 0,
        metric: Metric | None = None,
    ) -> None:
        if not isinstance(client, Client):
            raise TypeError(f"client: must be an optimizer of fastfed.clients, got {client!r}")
        epochs = 1.0 if epochs is None and steps is None else epochs
        self._local = LocalWork(epochs=epochs, steps=steps, batch_size=batch_size)
        self._local.check(len(fed))
        self.fed, self.client, self.seed = fed, client, seed
        self.packing = Packing.of(module)
        self.executor = make(executor, module, loss, fed.examples, threads=threads)
        predict = self.executor.predict if self.executor.predicts_itself else None
        self._evaluator = Evaluator(module, loss, predict=predict, threads=threads, uncounted=fed.uncounted)
        self._metric = metric

    def __len__(self) -> int:
        return len(self.fed)

    def train(
        self,
        start: Tensor,
        cohort: Tensor,
        settings: RoundSettings | None = None,
        *,
        start_index: Tensor | None = None,
        keep_deltas: bool = False,
    ) -> Outcome:
        """Trains the clients at these places (n,) int64 of the federation from the packed model `start` (d,), or from
        one of several (models, d), which `start_index` (n,) chooses. Their deltas are averaged by numbers of examples;
        `keep_deltas` returns every one, too: (n, d)."""
        settings = settings or RoundSettings()
        self._check_cohort(cohort)
        visit = self.fed.visit(cohort)
        local = self._local_in(settings)
        client = self.client if settings.prox is None else replace(self.client, prox=settings.prox)
        own_store = visit.examples is not self.fed.examples
        work = RoundWork(
            start=start,
            rows=visit.rows,
            offsets=visit.offsets,
            ids=cohort,
            steps=local.steps_of(cohort, visit.offsets.diff(), local.epochs, local.batch_size),
            batch_size=local.batch_size,
            optimizers=(client,),
            seed=self.seed,
            round=settings.round,
            start_index=start_index,
            lr=None if settings.lr is None else torch.full((len(cohort),), settings.lr, dtype=torch.float64),
            policy=DeltaPolicy("examples"),
            keep_deltas=keep_deltas,
            examples=visit.examples if own_store else None,
        )
        return self.executor.run(work)

    def evaluate(self, x: Tensor, cohort: Tensor) -> list[dict[str, float]]:
        """What the packed model `x` (d,) is worth to each of these clients (n,) int64, on their test examples where the
        data has any, else on their training examples: `examples`, how many, and what is measured, by name; only
        `examples` for a client without any."""
        self._check_cohort(cohort)
        visit = evaluation_visit(self.fed, cohort)
        counts = visit.offsets.diff().tolist()
        if self._metric is not None:
            found = measure(self.executor, x, visit.examples, visit.rows, visit.offsets, self._metric)
        else:
            chosen = visit.rows.split(counts)
            found = [self._evaluator.evaluate(x, visit.examples, rows) if len(rows) else {} for rows in chosen]
        return [{"examples": float(count), **each} for count, each in zip(counts, found, strict=True)]

    def _local_in(self, settings: RoundSettings) -> LocalWork:
        epochs, steps = self._local.epochs, self._local.steps
        if settings.epochs is not None:
            epochs, steps = settings.epochs, None
        return LocalWork(epochs=epochs, steps=steps, batch_size=settings.batch_size or self._local.batch_size)

    def _check_cohort(self, cohort: Tensor) -> None:
        if not isinstance(cohort, Tensor) or cohort.dtype is not torch.int64 or cohort.dim() != 1 or not len(cohort):
            raise TypeError(f"cohort: must be (n,) int64, the places of at least one client, got {cohort!r}")
        if not 0 <= int(cohort.min()) <= int(cohort.max()) < len(self.fed):
            raise ValueError(
                f"cohort: must lie in [0, {len(self.fed)}), got {int(cohort.min())} to {int(cohort.max())}"
            )
