"""The executor for GPUs: many clients at once as stacked parameters (chunk, d), differentiated by torch.func.vmap.

Nothing in a round is done client by client, and nothing waits for the device before the round's numbers are fetched,
all at once. The same code runs on CPU tensors, which is how it is tested.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from .. import kernels
from ..clients import Algorithm, Client
from ..data import Examples
from ..data.augment import Views
from ..data.resident import Resident, free_memory, passing, picked, resident, upload
from ..losses import Loss, LossReduction
from .algorithm import LocalAlgorithm, local_optimizer
from .batches import ChunkBatches, batch_widths, rows_of_clients, steps_taken, views_at
from .bounds import BoundCounts
from .cosine import LeastCosine
from .dropout import ANOTHER, stream_of
from .model import fitting_examples
from .optimizer import StepContext
from .policy import DeltaSum, Portion
from .predict import TorchPredict
from .split import Split
from .stacked import Comparison, StackedBatch, StackedModel
from .threads import check_memory, one_thread_per_operation
from .trial import Trial
from .work import Outcome, RoundWork, empty_scalars

MEMORY = 1 << 30  # bytes that a chunk of clients may take, by estimate, on the CPU ...
MEMORY_SHARE = 0.5  # ... and of what is free on a card once the examples are there


class Batched:
    """Trains chunks of clients side by side, as many as fit into `memory` bytes, on one of the built-in losses.

    `memory` is by default 1 GiB on the CPU, half of what is free on a CUDA device. Chunks have as many clients as the
    largest power of two that fits, so that a little more or less of it divides a round in the same way. Deltas are
    added one by one, whatever the chunks. Their own bits are torch's: on the CPU its operations on stacked tensors give
    a client the same bits in every chunk of a multiple of 32, in smaller ones they may differ in the last place.
    """

    name = "batched"
    why = "clients train side by side as stacked tensors"
    predicts_itself = False

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        examples: Examples,
        *,
        threads: int | None = None,
        device: torch.device | str = "cpu",
        memory: int | None = None,
        split: Split | None = None,
        reduction: LossReduction = "mean",
    ) -> None:
        check_memory(self.name, threads, memory)
        self.device, self.resident = torch.device(device), resident(examples, device)
        self.memory = _default_memory(self.device) if memory is None else memory
        self.streamed_bytes = self.resident.streamed_bytes  # that an example takes at least when it is copied
        self.model = StackedModel(module, loss, self.device, reduction)
        self.predict = TorchPredict(module, self.device, examples.form)
        if split is not None and len(examples):
            self.model.model.head(split.head, examples)
        if self.device.type != "cpu":
            self.why = f"{Batched.why}; {self.resident.why}"

    @property
    def examples(self) -> Examples:
        return self.resident.examples

    def run(self, work: RoundWork) -> Outcome:
        """The round's weighted sum of deltas, and its scalars."""
        with one_thread_per_operation():
            total = DeltaSum(work, steps_taken(work), self.device)
            scalars = {name: upload(values, self.device) for name, values in empty_scalars(len(work)).items()}
            for portion in self.portions(work, self.units(work)):
                portion.enter(total, scalars)
            return total.outcome(scalars)

    def units(self, work: RoundWork) -> list[Tensor]:
        """The chunks of clients that train side by side, in the order in which their deltas are added: positions (k,)
        int64 each, all with one optimizer."""
        store = self._store(work)
        return [
            chunk
            for optimizer, clients in _groups(work, steps_taken(work))
            for chunk in _chunks(clients, self._clients_at_once(work, optimizer, clients, store))
        ]

    def portions(self, work: RoundWork, units: Sequence[Tensor]) -> Iterator[Portion]:
        """Trains some of the `units`."""
        store, steps = self._store(work), steps_taken(work)
        with one_thread_per_operation():
            for optimizer, clients in _groups(work, steps) if units else ():
                self.model.check_batches(work, steps, store.examples)
                widths = batch_widths(work, clients)
                for chunk in units:
                    if bool(torch.isin(chunk[:1], clients)):
                        training = _Chunk(self.model, store, work, optimizer, chunk, steps[chunk], widths)
                        scalars = training.train()
                        besides = training.final()
                        delta = training.x.sub_(training.start)
                        yield Portion(chunk, delta, training.statistics, scalars, besides)

    def _store(self, work: RoundWork) -> Resident:
        examples = fitting_examples(work, self.model.packing(work.start.dtype), self.examples)
        return self.resident if examples is self.examples else passing(examples, self.device)

    def _clients_at_once(self, work: RoundWork, optimizer: Client, clients: Tensor, store: Resident) -> int:
        """How many of these clients, all of one optimizer, fit into the memory: at least one."""
        x = work.starts_of(clients[:1]).to(self.device)
        vector = torch.zeros_like(x[0])  # stands for whatever clients of an algorithm begin with
        context = StepContext(self.model.packing(x.dtype), x, getattr(optimizer, "lr", None), kept=x, common=vector)
        state = local_optimizer(optimizer, x, context).state
        kept = sum(t.numel() * t.element_size() for name, t in state.items() if name != "cover")
        vectors = 4  # the model, its gradient as vmap returns it and as packed, its delta
        vectors += (work.start.dim() == 2) + (work.corrections is not None) + (work.contrast is not None)
        vectors += 4 * getattr(optimizer, "same_batch", False) + 5 * work.measure_cosine
        vectors += 4 * isinstance(optimizer, Algorithm) + 2 * (work.kept is not None) + (work.common is not None)
        examples = work.counts[clients] if work.seen is None else work.seen[clients]
        batch = min(work.batch_size, int(examples.max()))
        activations = 2 * self.model.trial(work, store.examples).bytes_of(batch)  # and their gradients
        portion = int(work.counts[clients].max()) * max(self.streamed_bytes, store.streamed_bytes)
        return max(1, self.memory // (vectors * x.numel() * x.element_size() + kept + activations + portion))


def _default_memory(device: torch.device) -> int:
    free = free_memory(device)
    return MEMORY if free is None else max(1, int(MEMORY_SHARE * free))


def _groups(work: RoundWork, steps: Tensor) -> Iterator[tuple[Client, Tensor]]:
    """The positions of the clients that train, per optimizer; the longest first, so that a chunk ends together."""
    rule = torch.zeros_like(steps) if work.optimizer_index is None else work.optimizer_index
    for number, optimizer in enumerate(work.optimizers):
        clients = ((rule == number) & (steps > 0)).nonzero().flatten()
        if len(clients):
            yield optimizer, clients[steps[clients].argsort(descending=True, stable=True)]


def _chunks(clients: Tensor, fit: int) -> Sequence[Tensor]:
    """`clients` (n,) cut into chunks of the largest power of two up to `fit`, the last one shorter.

    A single client left over joins the chunk before it: alone, torch may compute it in another way.
    """
    size = 1 << (fit.bit_length() - 1)
    cuts = list(range(size, len(clients), size))
    if size > 1 and cuts and len(clients) - cuts[-1] == 1:
        cuts.pop()
    return clients.tensor_split(cuts)


class _Chunk:
    """The local training of the clients at some positions of the work, all with one optimizer; their batches are padded
    to `widths`, step by step."""

    def __init__(
        self,
        model: StackedModel,
        store: Resident,
        work: RoundWork,
        optimizer: Client,
        clients: Tensor,
        steps: Tensor,
        widths: Sequence[int],
    ) -> None:
        device = model.device
        self.model, self.work, self.clients, self.steps = model, work, clients, steps
        self.trial: Trial = model.trial(work, store.examples)
        self.taken, self.ids = upload(steps, device), upload(work.stream_ids[clients], device)
        self.images = store.examples.augmented
        self.gatherer, rows = store.portion(rows_of_clients(work, clients))
        self.batches = ChunkBatches(work, clients, device, rows=rows, widths=widths)
        self.x = self._starts()
        self.start = upload(work.start, device) if work.start.dim() == 1 else self.x.clone()
        self.grad = torch.zeros_like(self.x)
        self.statistics = self._first_statistics()
        self.optimizer = local_optimizer(optimizer, self.x, self._context(optimizer))
        self.before = self.x.clone() if self.optimizer.same_batch else None
        self.bounds = BoundCounts.beside(self.optimizer)
        self.cosine = LeastCosine(self.x, work.cosine_includes_step) if work.measure_cosine else None
        self.anchors = None if work.contrast is None else _Anchors(model, store.examples, work, clients, self.start)

    def _starts(self) -> Tensor:
        """The start models (chunk, d), a copy that is made on the device."""
        work, device = self.work, self.model.device
        if work.start.dim() == 1:
            return upload(work.start, device).repeat(len(self.clients), 1)
        which = torch.zeros_like(self.clients) if work.start_index is None else work.start_index[self.clients]
        return picked(work.start, which, device)

    def _first_statistics(self) -> Tensor | None:
        """What the batch norms start from, (chunk, s); None if there are none."""
        layout = self.model.model.statistics
        if layout is None:
            return None
        given = layout.checked(self.work.statistics)
        if given.dim() == 1:
            return upload(given, self.model.device).repeat(len(self.clients), 1)
        return picked(given, self.clients, self.model.device)

    def _context(self, optimizer: Client) -> StepContext:
        work, device = self.work, self.model.device
        own = getattr(optimizer, "lr", None)
        return StepContext(
            packing=self.model.packing(work.start.dtype),
            anchor=self.start,
            lr=own if work.lr is None else upload(work.lr[self.clients], device),
            correction=None if work.corrections is None else picked(work.corrections, self.clients, device),
            preconditioner=None if work.preconditioner is None else upload(work.preconditioner, device),
            round=work.round,
            steps=self.taken,
            kept=None if work.kept is None else picked(work.kept, self.clients, device),
            common=None if work.common is None else upload(work.common, device),
        )

    def final(self) -> dict[str, Tensor]:
        """What algorithms in Python end with besides the models, by name, (chunk, d)."""
        return self.optimizer.final(self.x) if isinstance(self.optimizer, LocalAlgorithm) else {}

    def train(self) -> dict[str, Tensor]:
        """All local steps; the scalars by name, (chunk,) float64, on the device."""
        first, last, size = (self.x.new_full((len(self.clients),), torch.nan, dtype=torch.float64) for _ in range(3))
        total = torch.zeros_like(first)
        for step in range(int(self.steps.max())):
            active = self.taken > step
            try:
                losses = self._step(step, active).double()
            except Exception as error:
                raise RuntimeError(f"{self._names(step)}, local step {step + 1}: {error}") from error
            first = losses if step == 0 else first
            last = torch.where(active, losses, last)
            total += torch.where(active, losses, 0)
            size = torch.where(active, self.optimizer.step_size(step + 1), size)
        scalars = {"first_loss": first, "last_loss": last, "mean_loss": total / self.taken}
        if self.cosine is not None:
            scalars["min_cosine"] = self.cosine.least
        if self.bounds is not None:
            scalars |= self.bounds.scalars()
        return {**scalars, "step_size": size}

    def _names(self, step: int) -> str:
        """The clients that an error in a step may concern."""
        positions = self.clients[self.steps > step]
        ids = self.work.ids[positions].tolist()
        some = [f"{client} (position {position})" for client, position in zip(ids, positions.tolist(), strict=True)]
        return "client " + ", ".join(some[:3]) + (f" or {len(some) - 3} more" if len(some) > 3 else "")

    def _step(self, step: int, active: Tensor) -> Tensor:
        """Local step `step` (from 0) of the clients that are `active` (chunk,); the losses of their batches."""
        batch = self._batch(step)
        comparison = None if self.anchors is None else self.anchors.comparison
        losses, found = self.model.differentiate(self.x, batch, self.grad, comparison, self.statistics)
        if self.cosine is not None:
            self.cosine.add(self.grad, active)
        previous_grad, before = None, self.statistics
        if self.before is not None:
            previous_grad = torch.zeros_like(self.grad)
            again = batch._replace(uniforms=self._uniforms(step + ANOTHER, batch.real.shape[1]))
            self.model.differentiate(self.before, again, previous_grad, comparison, self.statistics)
            previous_grad = self.optimizer.corrected(previous_grad, self.before)
            self.before.copy_(self.x)
        grown = None if self.bounds is None else self.bounds.growth(step + 1)
        self.optimizer.step(
            step + 1,
            self.x,
            self.grad,
            loss=losses,
            epoch=self.batches.epochs(step) + 1,
            previous_grad=previous_grad,
            finished=~active,
        )
        if self.bounds is not None:
            self.bounds.count(grown, active)
        if found is not None and before is not None:
            self.statistics = torch.where(active[:, None], found, before)
        return losses

    def _batch(self, step: int) -> StackedBatch:
        rows, real = self.batches.rows(step)
        inputs, targets = self.gatherer.gather(rows, self.x.dtype, self._views(step))
        anchors = () if self.anchors is None else self.anchors.features(inputs)
        return StackedBatch(inputs, targets, real, self._uniforms(step, rows.shape[1]), anchors)

    def _views(self, step: int) -> Views | None:
        """How the images of a step's batches are seen; None if they are not augmented."""
        if self.images is None:
            return None
        return views_at(self.work, self.images, self.ids[:, None], self.batches.positions(step))

    def _uniforms(self, step: int, examples: int) -> tuple[Tensor, ...]:
        """The numbers of every dropout call; of a padded batch, the first are those of the batch itself."""
        work, drawn = self.work, []
        for call, shape in enumerate(self.trial.dropouts):
            stream = stream_of(call, seed=work.seed, round=work.round, step=step)
            numbers = kernels.uniform(shape.numel(examples), stream, clients=self.ids, device=self.model.device)
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
        seen = (rows >= 0).nonzero().flatten()
        self.seen = upload(rows >= 0, start.device)
        self.previous = start.repeat(len(clients), 1) if start.dim() == 1 else start.clone()
        if len(seen):
            self.previous[upload(seen, start.device)] = picked(contrast.previous, rows[seen], start.device)

    def features(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Under both, with dropout off, for inputs (clients, n, ...): (clients, n, r) each."""
        of_start, of_previous = (
            self.model.features(x, inputs, self.comparison.head) for x in (self.start, self.previous)
        )
        return of_start, torch.where(self.seen[:, None, None], of_previous, of_start)  # the same to the last bit
