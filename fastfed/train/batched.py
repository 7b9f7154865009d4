"""The executor for GPUs: many clients at once as stacked parameters (chunk, d), differentiated by torch.func.vmap.

The same code runs on CPU tensors, which is how it is tested.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from .. import kernels
from ..clients import Client
from ..data import Examples
from ..losses import Loss
from .batches import Batches, padded, steps_taken
from .cosine import LeastCosine
from .dropout import stream_of
from .model import fitting_examples
from .optimizer import LocalOptimizer, Surroundings
from .policy import DeltaSum
from .split import Split
from .stacked import Comparison, StackedBatch, StackedModel
from .threads import one_thread_per_operation
from .trial import Trial
from .work import Outcome, RoundWork, empty_scalars

MEMORY = 1 << 30  # bytes that a chunk of clients may take, by estimate


class Batched:
    """Trains chunks of clients side by side, as many as fit into `memory` bytes, on one of the built-in losses."""

    name = "batched"
    why = "clients train side by side as stacked tensors"

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        examples: Examples,
        *,
        threads: int | None = None,
        device: torch.device | str = "cpu",
        memory: int = MEMORY,
        split: Split | None = None,
    ) -> None:
        if threads is not None:
            raise ValueError(f"threads: executor 'batched' has no use for them, got {threads!r}")
        if isinstance(memory, bool) or not isinstance(memory, int) or memory < 1:
            raise ValueError(f"memory: must be a whole number of bytes >= 1, got {memory!r}")
        self.examples, self.device, self.memory = examples, torch.device(device), memory
        self.model = StackedModel(module, loss, self.device)
        if split is not None and len(examples):
            self.model.model.head(split.head, examples)

    def run(self, work: RoundWork) -> Outcome:
        """The round's weighted sum of deltas, and its scalars."""
        examples = fitting_examples(work, self.model.packing(work.start.dtype), self.examples)
        steps = steps_taken(work)
        total, scalars = DeltaSum(work, steps, self.device), empty_scalars(len(work))
        with one_thread_per_operation():
            for optimizer, clients in _groups(work, steps):
                for chunk in clients.split(self._clients_at_once(work, optimizer, clients)):
                    training = _Chunk(self.model, examples, work, optimizer, chunk, steps[chunk])
                    for name, values in training.train().items():
                        scalars[name][chunk] = values.cpu()
                    total.add(chunk, training.x.sub_(training.start))
        return total.outcome(scalars)

    def _clients_at_once(self, work: RoundWork, optimizer: Client, clients: Tensor) -> int:
        """How many of these clients, all of one optimizer, fit into the memory."""
        x = work.starts_of(clients[:1]).to(self.device)
        state = LocalOptimizer(optimizer, x, Surroundings(self.model.packing(x.dtype), x)).state
        kept = sum(t.numel() * t.element_size() for name, t in state.items() if name != "cover")
        vectors = 4  # the model, its gradient as vmap returns it and as packed, its delta
        vectors += (work.start.dim() == 2) + (work.corrections is not None) + (work.contrast is not None)
        vectors += 4 * getattr(optimizer, "same_batch", False) + 5 * work.measure_cosine
        examples = work.counts[clients] if work.positions is None else work.positions[clients]
        batch = min(work.batch_size, int(examples.max()))
        activations = 2 * self.model.trial(work, self.examples).bytes_of(batch)  # and their gradients
        return max(1, self.memory // (vectors * x.numel() * x.element_size() + kept + activations))


def _groups(work: RoundWork, steps: Tensor) -> Iterator[tuple[Client, Tensor]]:
    """The positions of the clients that train, per optimizer; the longest first, so that a chunk ends together."""
    rule = torch.zeros_like(steps) if work.rule is None else work.rule
    for number, optimizer in enumerate(work.clients):
        clients = ((rule == number) & (steps > 0)).nonzero().flatten()
        if len(clients):
            yield optimizer, clients[steps[clients].argsort(descending=True, stable=True)]


class _Chunk:
    """The local training of the clients at some positions of the work, all with one optimizer."""

    def __init__(
        self,
        model: StackedModel,
        examples: Examples,
        work: RoundWork,
        optimizer: Client,
        clients: Tensor,
        steps: Tensor,
    ) -> None:
        self.model, self.examples, self.work, self.clients, self.steps = model, examples, work, clients, steps
        self.trial: Trial = model.trial(work, examples)
        self.batches = [Batches(work, position) for position in clients.tolist()]
        self.x = work.starts_of(clients).to(model.device)
        self.start = work.start.to(model.device) if work.start.dim() == 1 else self.x.clone()
        self.grad = torch.zeros_like(self.x)
        self.optimizer = LocalOptimizer(optimizer, self.x, self._surroundings(optimizer))
        self.before = self.x.clone() if self.optimizer.same_batch else None
        self.cosine = LeastCosine(self.x, work.cosine_includes_step) if work.measure_cosine else None
        self.anchors = None if work.contrast is None else _Anchors(model, examples, work, clients, self.start)

    def _surroundings(self, optimizer: Client) -> Surroundings:
        work, device = self.work, self.model.device
        own = getattr(optimizer, "lr", None)
        return Surroundings(
            packing=self.model.packing(work.start.dtype),
            anchor=self.start,
            lr=own if work.lr is None else work.lr[self.clients].to(device),
            correction=None if work.corrections is None else work.corrections[self.clients].to(device),
            preconditioner=None if work.preconditioner is None else work.preconditioner.to(device),
        )

    def train(self) -> dict[str, Tensor]:
        """All local steps; the scalars by name, (chunk,) float64."""
        device = self.model.device
        first, last, size = (self.x.new_full((len(self.clients),), torch.nan, dtype=torch.float64) for _ in range(3))
        total = torch.zeros_like(first)
        for step in range(int(self.steps.max())):
            active = self.steps > step
            try:
                losses = self._step(step, active).double()
            except Exception as error:
                raise RuntimeError(f"{self._names(active)}, local step {step + 1}: {error}") from error
            active = active.to(device)
            first = losses if step == 0 else first
            last = torch.where(active, losses, last)
            total += torch.where(active, losses, 0)
            taken = torch.as_tensor(self.optimizer.step_size(step + 1), dtype=torch.float64, device=device)
            size = torch.where(active, taken, size)
        scalars = {"first_loss": first, "last_loss": last, "mean_loss": total / self.steps.to(device)}
        if self.cosine is not None:
            scalars["min_cosine"] = self.cosine.least
        return {**scalars, "step_size": size}

    def _names(self, active: Tensor) -> str:
        """The clients that an error in a step may concern."""
        positions = self.clients[active]
        ids = self.work.ids[positions].tolist()
        some = [f"{client} (position {position})" for client, position in zip(ids, positions.tolist(), strict=True)]
        return "client " + ", ".join(some[:3]) + (f" or {len(some) - 3} more" if len(some) > 3 else "")

    def _step(self, step: int, active: Tensor) -> Tensor:
        """Local step `step` (from 0) of the clients that are `active` (chunk,); the losses of their batches."""
        batch = self._batch(step, active)
        comparison = None if self.anchors is None else self.anchors.comparison
        losses = self.model.differentiate(self.x, batch, self.grad, comparison)
        goes = active.to(self.model.device)
        if self.cosine is not None:
            self.cosine.add(self.grad, goes)
        previous_grad = None
        if self.before is not None:
            previous_grad = torch.zeros_like(self.grad)
            self.model.differentiate(self.before, batch, previous_grad, comparison)
            previous_grad = self.optimizer.corrected(previous_grad, self.before)
            self.before.copy_(self.x)
        epochs = [own.epoch(step) + 1 for own in self.batches]
        self.optimizer.step(
            step + 1,
            self.x,
            self.grad,
            loss=losses,
            epoch=torch.tensor(epochs, device=self.model.device),
            previous_grad=previous_grad,
            finished=~goes,
        )
        return losses

    def _batch(self, step: int, active: Tensor) -> StackedBatch:
        device, chunk = self.model.device, len(self.clients)
        rows, real = padded(self.batches, active.tolist(), step)
        width = rows.shape[1]
        dense = self.examples.batch(rows.flatten(), self.x.dtype)
        inputs, targets = (tensor.to(device).unflatten(0, (chunk, width)) for tensor in dense)
        anchors = () if self.anchors is None else self.anchors.features(inputs)
        return StackedBatch(inputs, targets, real.to(device), self._uniforms(step, width), anchors)

    def _uniforms(self, step: int, examples: int) -> tuple[Tensor, ...]:
        """The numbers of every dropout call; of a padded batch, the first are those of the batch itself."""
        work, drawn = self.work, []
        for call, shape in enumerate(self.trial.dropouts):
            stream = stream_of(call, seed=work.seed, round=work.round, step=step)
            numbers = kernels.uniform(
                shape.numel(examples), stream, clients=work.ids[self.clients], device=self.model.device
            )
            drawn.append(numbers.view(len(self.clients), *shape.at(examples)))
        return tuple(drawn)


class _Anchors:
    """The models that those of some clients are compared with: `start` (d,) or (clients, d), and their own last."""

    def __init__(
        self, model: StackedModel, examples: Examples, work: RoundWork, clients: Tensor, start: Tensor
    ) -> None:
        contrast = work.contrast
        assert contrast is not None
        head = model.model.head(contrast.head, examples)
        self.comparison = Comparison(contrast.mu, contrast.temperature, head)
        self.model, self.start = model, start
        rows = contrast.rows_of(clients)
        self.seen = (rows >= 0).to(start.device)
        self.previous = start.repeat(len(clients), 1) if start.dim() == 1 else start.clone()
        self.previous[self.seen] = contrast.previous[rows[rows >= 0]].to(start.device)

    def features(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Under both, with dropout off, for inputs (clients, n, ...): (clients, n, r) each."""
        of_start, of_previous = (
            self.model.features(x, inputs, self.comparison.head) for x in (self.start, self.previous)
        )
        return of_start, torch.where(self.seen[:, None, None], of_previous, of_start)  # the same to the last bit
