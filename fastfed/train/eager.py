"""The executor for any module and any loss: plain autograd, client by client. It is the oracle for the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..data import Examples
from ..data.augment import Views
from ..losses import Loss, LossFunction, LossReduction, find_loss
from ..packing import Packing
from .algorithm import LocalAlgorithm, local_optimizer
from .batches import Batches, steps_taken, views_at
from .bounds import BoundCounts
from .contrast import Contrast, contrastive_losses
from .cosine import LeastCosine
from .dropout import ANOTHER, Dropout, Uniforms, client_uniforms, torch_random_state_guarded
from .model import LocalModel, fitting_examples
from .optimizer import StepContext
from .policy import DeltaSum, Portion
from .predict import TorchPredict
from .split import Split
from .threads import check_threads, in_order, one_thread_per_operation
from .work import Outcome, RoundWork, empty_scalars


class Eager:
    """Trains clients one by one with autograd, `threads` of them side by side (default: as many as torch has).

    Every torch operation runs in one thread, so the number of threads does not change a bit of the result.
    """

    name = "eager"
    why = "plain autograd runs any module with any loss"
    predicts_itself = False

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        examples: Examples,
        *,
        threads: int | None = None,
        device: torch.device | str = "cpu",
        split: Split | None = None,
        reduction: LossReduction = "mean",
    ) -> None:
        check_threads(threads)
        self.loss, self.examples, self.device = find_loss(loss, reduction), examples, torch.device(device)
        self.threads = torch.get_num_threads() if threads is None else threads
        self.packing = Packing.of(module, batch_norm=True)
        self.predict = TorchPredict(module, self.device, examples.form)
        self.models: SimpleQueue[LocalModel] = SimpleQueue()  # one per thread
        for _ in range(self.threads):
            model = LocalModel(module, self.device)
            if split is not None and len(examples):
                model.head(split.head, examples)
            self.models.put(model)

    def run(self, work: RoundWork) -> Outcome:
        """The round's weighted sum of deltas, and its scalars."""
        total, scalars = DeltaSum(work, steps_taken(work), self.device), empty_scalars(len(work))
        for portion in self.portions(work, self.units(work)):
            portion.enter(total, scalars)
        return total.outcome(scalars)

    def units(self, work: RoundWork) -> list[Tensor]:
        """The clients that train, one by one, in the order in which their deltas are added: (1,) int64 each."""
        return list(steps_taken(work).nonzero().flatten()[:, None])

    def portions(self, work: RoundWork, units: Sequence[Tensor]) -> Iterator[Portion]:
        """Trains some of the `units`."""
        examples = fitting_examples(work, self.packing, self.examples)
        steps, busy = steps_taken(work), [int(unit) for unit in units]
        with torch_random_state_guarded(self.device), one_thread_per_operation():
            trained = in_order(
                lambda position: self._train(work, examples, position, int(steps[position])), busy, self.threads
            )
            for unit, (delta, scalars, statistics, besides) in zip(units, trained, strict=True):
                found = None if statistics is None else statistics[None]
                yield Portion(unit, delta[None], found, scalars, {name: one[None] for name, one in besides.items()})

    def _train(self, work: RoundWork, examples: Examples, position: int, steps: int) -> Trained:
        model = self.models.get()
        try:
            client = _Client(model, self.loss, examples, work, position, steps, self.device)
            return client.train()
        finally:
            self.models.put(model)


class Trained(NamedTuple):
    """A client's D_i (d,), its scalars by name, its batch norms' statistics (s,), if it has any, and what an algorithm
    in Python ends with besides, by name, (d,)."""

    delta: Tensor
    scalars: dict[str, float]
    statistics: Tensor | None
    besides: dict[str, Tensor]


@dataclass(frozen=True)
class _Term:
    """What a contrast adds to the loss of a batch: `anchors` are the features (n, r) under the client's start model and
    its previous one, None for a client without one."""

    contrast: Contrast
    head: str
    anchors: tuple[Tensor, Tensor] | None

    def of(self, features: Tensor, anchors: tuple[Tensor, Tensor]) -> Tensor:
        """For the features (n, r) of the local model."""
        terms = contrastive_losses(features, *anchors, self.contrast.temperature)
        return self.contrast.mu * terms.mean()


class _Anchors:
    """The two models that a client's own is compared with, where it has them."""

    def __init__(self, model: LocalModel, work: RoundWork, position: int, examples: Examples, start: Tensor) -> None:
        assert work.contrast is not None
        self.model, self.contrast = model, work.contrast
        self.head = model.head(work.contrast.head, examples)
        previous = work.contrast.previous_of(position)
        vectors = () if previous is None else (start, previous.to(start.device))
        constants, packing = model.constants(start.dtype), model.packing_as(start.dtype)
        views = [packing.views(vector) for vector in vectors]
        self.tensors = [{**constants, **{slot.name: each[slot.name] for slot in packing.slots}} for each in views]

    @torch.no_grad()
    def term(self, inputs: Tensor) -> _Term:
        """The term of a batch."""
        if not self.tensors:
            return _Term(self.contrast, self.head, None)
        with Dropout(None):
            of_start, of_previous = (self.model.split(tensors, inputs, self.head)[1] for tensors in self.tensors)
        return _Term(self.contrast, self.head, (of_start, of_previous))


class _Point:
    """A model `x` (d,) and the gradient `grad` (d,) there, both packed: autograd works on views of the two."""

    def __init__(self, model: LocalModel, loss: LossFunction, constants: Mapping[str, Tensor], x: Tensor) -> None:
        self.model, self.loss = model, loss
        self.x, self.grad = x, torch.zeros_like(x)
        packing = model.packing_as(x.dtype)
        views, grads = packing.views(self.x), packing.views(self.grad)
        self.tensors = dict(constants)
        for slot in packing.slots:
            leaf = views[slot.name].detach().requires_grad_()
            leaf.grad = grads[slot.name]  # what backward adds to
            self.tensors[slot.name] = leaf

    def differentiate(self, inputs: Tensor, targets: Tensor, uniforms: Uniforms, term: _Term | None) -> Tensor:
        """The loss () of a batch; leaves its gradient in `grad`."""
        self.grad.zero_()
        with Dropout(uniforms):
            loss = self._loss(inputs, targets, term)
        loss.backward()
        return loss.detach()

    def _loss(self, inputs: Tensor, targets: Tensor, term: _Term | None) -> Tensor:
        if term is None or term.anchors is None:
            loss = self._checked(self.loss(self.model(self.tensors, inputs), targets))
            return loss if term is None else loss + term.contrast.unseen_loss
        outputs, features = self.model.split(self.tensors, inputs, term.head)
        return self._checked(self.loss(outputs, targets)) + term.of(features, term.anchors)

    @staticmethod
    def _checked(loss: Tensor) -> Tensor:
        if loss.shape != ():
            raise ValueError(f"loss: must be a single number, got shape {tuple(loss.shape)}")
        return loss


class _Client:
    """The local training of the client at one position of the work."""

    def __init__(
        self,
        model: LocalModel,
        loss: LossFunction,
        examples: Examples,
        work: RoundWork,
        position: int,
        steps: int,
        device: torch.device,
    ) -> None:
        self.work, self.examples, self.steps, self.device = work, examples, steps, device
        self.model, self.loss = model, loss
        self.position, self.key = position, int(work.stream_ids[position])
        self.batches = Batches(work, position)
        self.start = work.start_of(position).to(device)
        constants, layout = model.constants(work.start.dtype), model.statistics
        self.statistics = None if layout is None else layout.start_of(work.statistics, position).to(device)
        seen = {} if layout is None or self.statistics is None else layout.views(self.statistics)  # torch updates them
        self.here = _Point(model, loss, {**constants, **seen}, self.start.clone())
        self.optimizer = local_optimizer(
            work.optimizer_of(position), self.here.x, self._context(model), self._gradient_at
        )
        self.batch: tuple[Tensor, Tensor, Uniforms, _Term | None] | None = None  # of the step that is being taken
        same_batch = self.optimizer.same_batch
        self.constants = constants
        self.before = _Point(model, loss, constants, self.start.clone()) if same_batch else None
        self.bounds = BoundCounts.beside(self.optimizer)
        self.cosine = LeastCosine(self.start, work.cosine_includes_step) if work.measure_cosine else None
        self.anchors = None if work.contrast is None else _Anchors(model, work, position, examples, self.start)

    def _context(self, model: LocalModel) -> StepContext:
        work, i = self.work, self.position
        own = getattr(work.optimizer_of(i), "lr", None)
        return StepContext(
            packing=model.packing_as(work.start.dtype),
            anchor=self.start,
            lr=own if work.lr is None else float(work.lr[i]),
            correction=None if work.corrections is None else work.corrections[i].to(self.device),
            preconditioner=None if work.preconditioner is None else work.preconditioner.to(self.device),
            round=work.round,
            steps=self.steps,
            kept=None if work.kept is None else work.kept[i].to(self.device),
            common=None if work.common is None else work.common.to(self.device),
        )

    def train(self) -> Trained:
        losses: list[Tensor] = []
        for step in range(self.steps):
            with self._named(f", local step {step + 1}"):
                losses.append(self._step(step))
        besides: dict[str, Tensor] = {}
        if isinstance(self.optimizer, LocalAlgorithm):
            with self._named(""):
                besides = self.optimizer.final(self.here.x)
        return Trained(self.here.x.sub_(self.start), self._scalars(losses), self.statistics, besides)

    @contextmanager
    def _named(self, when: str) -> Iterator[None]:
        """An error says whose it is."""
        try:
            yield
        except Exception as error:
            client = self.work.ids[self.position].item()
            raise RuntimeError(f"client {client} (position {self.position}){when}: {error}") from error

    def _scalars(self, losses: list[Tensor]) -> dict[str, float]:
        """The client's scalars by name; what of them is on a device is fetched in one piece."""
        size = self.optimizer.step_size(len(losses))
        there = {"step_size": size} if isinstance(size, Tensor) else {}
        if self.cosine is not None:
            there["min_cosine"] = self.cosine.least
        if self.bounds is not None:
            there |= {name: count.squeeze() for name, count in self.bounds.scalars().items()}
        fetched = torch.stack([number.double() for number in (*losses, *there.values())]).tolist()
        of_batches, others = fetched[: len(losses)], fetched[len(losses) :]
        return {
            "first_loss": of_batches[0],
            "last_loss": of_batches[-1],
            "mean_loss": sum(of_batches) / len(of_batches),
            "step_size": size,
            **dict(zip(there, others, strict=True)),
        }

    def _views(self, step: int) -> Views | None:
        """How the images of a step's batch are seen; None if they are not augmented."""
        images = self.examples.augmented
        if images is None:
            return None
        return views_at(self.work, images, self.work.stream_ids[self.position], self.batches.positions(step))

    def _uniforms(self, step: int) -> Uniforms:
        """The numbers of the dropouts of a forward pass."""
        return client_uniforms(seed=self.work.seed, round=self.work.round, client=self.key, step=step)

    def _gradient_at(self, x: Tensor) -> Tensor:
        """The gradient (d,) of the step's batch at another model, with dropouts of its own."""
        assert self.batch is not None
        inputs, targets, uniforms, term = self.batch
        elsewhere = _Point(self.model, self.loss, self.constants, x.detach().clone())
        elsewhere.differentiate(inputs, targets, uniforms, term)
        return elsewhere.grad

    def _step(self, step: int) -> Tensor:
        """Local step `step` (from 0); the loss () of its batch."""
        inputs, targets = self.examples.batch(self.batches.at(step), self.start.dtype, self._views(step))
        inputs, targets = inputs.to(self.device), targets.to(self.device)
        term = None if self.anchors is None else self.anchors.term(inputs)
        self.batch = (inputs, targets, self._uniforms(step + ANOTHER), term)
        loss = self.here.differentiate(inputs, targets, self._uniforms(step), term)
        if self.cosine is not None:
            self.cosine.add(self.here.grad)
        previous_grad = None
        if self.before is not None:
            self.before.differentiate(inputs, targets, self._uniforms(step + ANOTHER), term)
            previous_grad = self.optimizer.corrected(self.before.grad, self.before.x)
            self.before.x.copy_(self.here.x)
        grown = None if self.bounds is None else self.bounds.growth(step + 1)
        self.optimizer.step(
            step + 1,
            self.here.x,
            self.here.grad,
            loss=float(loss) if loss.is_cpu else loss,  # as a rule nobody reads it, and a device would have to wait
            epoch=self.batches.epoch(step) + 1,
            previous_grad=previous_grad,
        )
        if self.bounds is not None:
            self.bounds.count(grown)
        return loss
