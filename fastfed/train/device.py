"""The executor `device`: the local training of many clients as Triton kernels over (clients, d), layer by layer.

The program is the native engine's, lowered (``program/lower.py``). Under rules that look at one element at a time the
kernels that make gradients also apply the rule, so that gradients never reach memory; other rules, and whoever measures
gradients, get them in one buffer. The clients of a chunk train side by side; the bits of the result do not depend on
how many those are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .. import program
from ..clients import Client
from ..data import Examples, Sparse
from ..kernels import CLIENT_RULES, Stream, client_state
from ..kernels.layers import Dense
from ..kernels.registry import BACKENDS, interpreting
from ..losses import Loss
from ..packing import Packing
from ..program.lower import lower, with_contrast
from ..purposes import Purpose
from .batches import Batches, padded, steps_taken
from .contrast import contrastive_losses
from .cosine import LeastCosine
from .device_inputs import DeviceStore
from .fused import batch_lengths, coefficients, epochs_of, learning_rates, why_not_fused
from .model import fitting_examples
from .optimizer import LocalOptimizer, Surroundings
from .policy import DeltaSum
from .split import Split, head_of
from .work import Outcome, RoundWork, empty_scalars

if TYPE_CHECKING:
    from ..kernels.triton.engine.layers import Draws, Layers

MEMORY = 1 << 30  # bytes that a chunk of clients may take in the interpreter; a card is asked how much it has


class Device:
    """Runs rounds of a module that `fastfed.program` can trace on a CUDA device (or, for tests, on CPU tensors in
    Triton's interpreter), in float32. `memory`: bytes that the clients which train side by side may take."""

    name = "device"
    why = "every layer of the model has a device kernel"

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        examples: Examples,
        *,
        threads: int | None = None,
        device: torch.device | str = "cuda",
        memory: int | None = None,
        split: Split | None = None,
    ) -> None:
        if threads is not None:
            raise ValueError(f"threads: executor 'device' has no use for them, got {threads!r}")
        if memory is not None and (isinstance(memory, bool) or not isinstance(memory, int) or memory < 1):
            raise ValueError(f"memory: must be a whole number of bytes >= 1, got {memory!r}")
        self.device = torch.device(device)
        _check_device(self.device)
        self.program = _trace(module, examples, loss)
        self.network = lower(self.program)
        self.packing: Packing = self.program.engine_packing
        self.examples, self.memory = examples, memory
        self._module, self._heads = module, set[str | None]()
        if split is not None:
            self._check_head(split.head)
        self._stores: dict[int, DeviceStore] = {}
        self._layers: Layers | None = None

    def run(self, work: RoundWork) -> Outcome:
        """The round's weighted sum of deltas, and its scalars."""
        if work.start.dtype is not torch.float32:
            raise TypeError(f"start: the device engine computes in float32, got {work.start.dtype}")
        if work.contrast is not None:
            self._check_head(work.contrast.head)
        examples = fitting_examples(work, self.program.packing, self.examples)
        steps = steps_taken(work)
        batch = _longest_batch(work)
        total, scalars = DeltaSum(work, steps, self.device), empty_scalars(len(work))
        for optimizer, clients in groups(work, steps):
            for chunk in clients.split(self._clients_at_once(work, optimizer, batch)):
                layers = self._layers_for(len(chunk), batch)
                store = self._store(examples)
                fused = why_not_fused(optimizer, work, self.network, self.packing) is None and work.contrast is None
                kind = FusedChunk if fused else KeptChunk
                training = kind(self, layers, store, work, optimizer, chunk, steps[chunk])
                for name, values in training.train().items():
                    scalars[name][chunk] = values.cpu()
                total.add(chunk, self.program.from_engine(training.x.sub_(training.start)))
        return total.outcome(scalars)

    def _clients_at_once(self, work: RoundWork, optimizer: Client, batch: int) -> int:
        """How many clients fit into the memory."""
        state = 4 + len(CLIENT_RULES[optimizer.rule].vectors) + 2 * (work.contrast is not None)
        numbers = state * self.packing.size + 2 * batch * sum(shape.numbers for shape in self.network.buffers)
        return max(1, self._budget() // (4 * numbers))

    def _budget(self) -> int:
        if self.memory is not None:
            return self.memory
        if self.device.type != "cuda":
            return MEMORY
        free, _ = torch.cuda.mem_get_info(self.device)
        return free // 2

    def _layers_for(self, clients: int, batch: int) -> Layers:
        from ..kernels.triton.engine.layers import Layers

        kept = self._layers
        if kept is None or (kept.clients, kept.batch) != (clients, batch):
            self._layers = kept = Layers(self.network, clients, batch, self.device)
        return kept

    def _store(self, examples: Examples) -> DeviceStore:
        if id(examples) not in self._stores:
            self._stores = {id(examples): DeviceStore(examples, self.network, self.device)}
        return self._stores[id(examples)]

    def _check_head(self, asked: str | None) -> None:
        if asked not in self._heads:
            program.check_head(self.program, head_of(self._module, asked))
            self._heads.add(asked)


def _check_device(device: torch.device) -> None:
    reason = BACKENDS["triton"].why_not()
    if reason is not None:
        raise program.Unsupported(f"device: executor 'device' runs Triton kernels, and {reason}")
    wanted = "cpu" if interpreting() else "cuda"
    if device.type != wanted:
        where = "CPU tensors in Triton's interpreter" if interpreting() else "a CUDA device"
        raise program.Unsupported(f"device: executor 'device' runs on {where}, got {device}")


def _trace(module: nn.Module, examples: Examples, loss: Loss) -> program.Program:
    if not isinstance(loss, str):
        raise program.Unsupported("loss: the device engine knows losses by name; a callable runs on 'eager'")
    inputs = examples.inputs
    dense = torch.zeros(1, inputs.width) if isinstance(inputs, Sparse) else inputs  # sparse rows are gathered dense
    traced = program.trace(module, dense, loss)
    if traced.packing.dtype is not torch.float32:
        raise program.Unsupported(f"module: the device engine computes in float32, not {traced.packing.dtype}")
    return traced


def groups(work: RoundWork, steps: Tensor) -> Iterator[tuple[Client, Tensor]]:
    """The positions of the clients that train, per optimizer, in their order."""
    rule = torch.zeros_like(steps) if work.rule is None else work.rule
    for number, optimizer in enumerate(work.clients):
        clients = ((rule == number) & (steps > 0)).nonzero().flatten()
        if len(clients):
            yield optimizer, clients


def _longest_batch(work: RoundWork) -> int:
    """Of the whole cohort, so that a client's tiles do not depend on who trains beside it."""
    seen = work.counts if work.positions is None else torch.maximum(work.positions, work.counts)
    return max(1, min(work.batch_size, int(seen.max())))


class _Chunk:
    """What the local training of some clients of a work shares, whatever becomes of their gradients."""

    def __init__(
        self,
        engine: Device,
        layers: Layers,
        store: DeviceStore,
        work: RoundWork,
        optimizer: Client,
        clients: Tensor,
        steps: Tensor,
    ) -> None:
        self.engine, self.layers, self.store, self.work = engine, layers, store, work
        self.optimizer, self.clients, self.steps = optimizer, clients, steps
        self.device, self.batch = engine.device, layers.batch
        self.longest = int(steps.max())
        to_engine = engine.program.to_engine
        self.x = to_engine(work.starts_of(clients)).to(self.device).contiguous()
        shared = work.start.dim() == 1
        self.start = to_engine(work.start).to(self.device).contiguous() if shared else self.x.clone()
        self.correction = None
        if work.corrections is not None:
            self.correction = to_engine(work.corrections[clients]).to(self.device).contiguous()
        self.preconditioner = None
        if work.preconditioner is not None:
            self.preconditioner = to_engine(work.preconditioner).to(self.device).contiguous()
        self.lengths = batch_lengths(work, clients, self.longest).to(self.device, torch.int32)
        self.batches = [Batches(work, position) for position in clients.tolist()]
        self._ids = work.ids[clients].to(self.device)
        self._steps = torch.arange(self.longest, device=self.device)
        self._keys = tuple(_key(work.seed, Purpose.DROPOUT + i) for i in range(engine.program.dropouts))
        self.targets, self.counts = self._new_targets()
        self.tally = _Tally(len(clients), self.device)

    def _new_targets(self) -> tuple[Tensor, Tensor | None]:
        shape, clients = self.engine.network.shape, len(self.clients)
        if self.engine.network.loss == "cross_entropy":
            labels = torch.empty((clients, self.batch * shape.rows), dtype=torch.int32, device=self.device)
            return labels, torch.empty(clients, device=self.device)
        return torch.empty((clients, self.batch * shape.rows, shape.width), device=self.device), None

    def draws(self, step: int, training: bool = True) -> Draws:
        """The random numbers of a step."""
        from ..kernels.triton.engine.layers import Draws

        keys = self._keys if training else ()
        return Draws(self._ids, self._steps[step : step + 1], self.work.round, keys)

    def load(self, step: int, into: Tensor) -> None:
        """Gathers a step's inputs into a buffer, and its targets."""
        active = (self.steps > step).tolist()
        rows = padded(self.batches, active, step)[0].to(self.device)
        lengths = self.lengths[step]
        self.store.load(rows, lengths, self.batch, into)
        self.store.load_targets(rows, lengths, self.batch, self.targets, self.counts)

    def train(self) -> dict[str, Tensor]:
        """All local steps; the scalars by name, (chunk,) float64."""
        for step in range(self.longest):
            losses = self.step(step)
            self.tally.add(losses, self.lengths[step] > 0, step)
        scalars = self.tally.scalars(self.steps.to(self.device))
        return scalars | self.finish()

    def step(self, step: int) -> Tensor:
        """One local step (from 0); the losses of its batches (chunk,) float64, meaningless where clients finished."""
        raise NotImplementedError

    def finish(self) -> dict[str, Tensor]:
        """What is left to do after the last step, and further scalars."""
        raise NotImplementedError


def _key(seed: int, purpose: int) -> tuple[int, int]:
    words = Stream(seed, purpose).words()
    return words.key0, words.key1


class _Tally:
    """First, last and mean losses of clients, on the device."""

    def __init__(self, clients: int, device: torch.device) -> None:
        self.first, self.last = (
            torch.full((clients,), torch.nan, dtype=torch.float64, device=device) for _ in range(2)
        )
        self.total = torch.zeros(clients, dtype=torch.float64, device=device)

    def add(self, losses: Tensor, active: Tensor, step: int) -> None:
        """The losses of the `active` clients at a step."""
        if step == 0:
            self.first = torch.where(active, losses, self.first)
        self.last = torch.where(active, losses, self.last)
        self.total += torch.where(active, losses, 0.0)

    def scalars(self, steps: Tensor) -> dict[str, Tensor]:
        return {"first_loss": self.first, "last_loss": self.last, "mean_loss": self.total / steps}


class KeptChunk(_Chunk):
    """Local training in which every step's gradients are kept in one buffer (chunk, d), which the client kernels then
    read: for rules that go by norms, and for who measures gradients."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        work = self.work
        self.grad = torch.zeros_like(self.x)
        own = getattr(self.optimizer, "lr", None)
        around = Surroundings(
            packing=self.engine.packing,
            anchor=self.start,
            lr=own if work.lr is None else work.lr[self.clients].to(self.device),
            correction=self.correction,
            preconditioner=self.preconditioner,
        )
        self.rule = LocalOptimizer(self.optimizer, self.x, around)
        self.before = self.x.clone() if self.rule.same_batch else None
        self.cosine = LeastCosine(self.x, work.cosine_includes_step) if work.measure_cosine else None
        self.anchors = None if work.contrast is None else _Anchors(self)
        self.epochs = epochs_of(work, self.clients, self.longest).to(self.device)
        self.size = torch.full((len(self.clients),), torch.nan, dtype=torch.float64, device=self.device)

    def step(self, step: int) -> Tensor:
        active = self.lengths[step] > 0
        self.load(step, self.layers.values[0])
        if self.anchors is not None:
            self.anchors.look(step)
        losses = self._differentiate(step, self.x, self.grad)
        if self.cosine is not None:
            self.cosine.add(self.grad, active)
        previous = None
        if self.before is not None:
            previous = torch.zeros_like(self.grad)
            self._differentiate(step, self.before, previous)
            previous = self.rule.corrected(previous, self.before)
            self.before.copy_(self.x)
        self.rule.step(
            step + 1,
            self.x,
            self.grad,
            loss=losses,
            epoch=self.epochs[step] + 1,
            previous_grad=previous,
            finished=~active,
        )
        taken = torch.as_tensor(self.rule.step_size(step + 1), dtype=torch.float64, device=self.device)
        self.size = torch.where(active, taken, self.size)
        return losses

    def _differentiate(self, step: int, x: Tensor, grad: Tensor) -> Tensor:
        """The mean losses (chunk,) of the models x on the loaded batches; their gradients go into `grad`."""
        from ..kernels.triton.engine.rule import Rule, Sink

        lengths, draws = self.lengths[step], self.draws(step)
        self.layers.forward(x, lengths, draws)
        losses = self.layers.loss(self.targets, self.counts, lengths).clone()
        network = self.engine.network
        if self.anchors is not None:
            losses += self.anchors.attract(lengths)
            network = with_contrast(network)
        sink = Sink(grad.shape[1], grad=grad)
        self.layers.backward(x, lengths, draws, sink, Rule(), network=network)
        return losses

    def finish(self) -> dict[str, Tensor]:
        cosine = {} if self.cosine is None else {"min_cosine": self.cosine.least}
        return {"step_size": self.size, **cosine}


class _Anchors:
    """The models that those of a chunk's clients are compared with: their start models, and their own last."""

    def __init__(self, chunk: KeptChunk) -> None:
        contrast = chunk.work.contrast
        assert contrast is not None
        self.chunk, self.contrast = chunk, contrast
        rows = contrast.rows_of(chunk.clients)
        self.seen = (rows >= 0).to(chunk.device)
        start = chunk.start.expand(len(rows), -1)
        previous = start.clone()
        to_engine = chunk.engine.program.to_engine
        previous[self.seen] = to_engine(contrast.previous[rows[rows >= 0]]).to(chunk.device)
        self.start, self.previous = start, previous
        self.of_start = self.of_previous = torch.empty(0)

    def look(self, step: int) -> None:
        """The features of the loaded batch under both, with dropout off."""
        chunk = self.chunk
        draws, lengths = chunk.draws(step, training=False), chunk.lengths[step]
        found = []
        for x in (self.start, self.previous):
            chunk.layers.forward(x, lengths, draws, until=-1)
            found.append(self._features().clone())
        self.of_start = found[0]
        self.of_previous = torch.where(self.seen[:, None, None], found[1], found[0])  # the same to the last bit

    def _features(self) -> Tensor:
        """What goes into the head, (chunk, batch, numbers): a view."""
        chunk, shape = self.chunk, self.chunk.engine.network.feature_shape
        whole = chunk.layers.values[chunk.engine.network.features]
        return whole.view(len(chunk.clients), chunk.batch, shape.numbers)

    def attract(self, lengths: Tensor) -> Tensor:
        """The terms (chunk,) that the contrast adds to the losses; their gradients are put where features' go."""
        chunk, contrast = self.chunk, self.contrast
        shape = chunk.engine.network.feature_shape
        inside = torch.arange(shape.numbers, device=chunk.device) % shape.stride < shape.width
        real = torch.arange(chunk.batch, device=chunk.device) < lengths[:, None]
        used = real[..., None] & inside
        mine, of_start, of_previous = (
            torch.where(used, f, 0.0) for f in (self._features(), self.of_start, self.of_previous)
        )
        mine.requires_grad_()
        with torch.enable_grad():
            terms = contrastive_losses(mine, of_start, of_previous, contrast.temperature)
            means = contrast.mu * torch.where(real, terms, 0.0).sum(1) / lengths.clamp(min=1)
            (gradient,) = torch.autograd.grad(means.sum(), mine)
        chunk.layers.grads[chunk.engine.network.features].copy_(gradient.flatten(1))
        return means.detach()


class FusedChunk(_Chunk):
    """Local training in which the kernels that make gradients apply the rule: no gradient reaches memory.

    The first layer, if it is dense, is updated a step later, where its weights are read anyway: two passes over them a
    step instead of three.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        optimizer, work = self.optimizer, self.work
        self.coef = coefficients(work, optimizer, self.clients, self.longest).to(self.device)
        made = optimizer.state_options()
        entry = CLIENT_RULES[optimizer.rule]
        if entry.cover is not None:
            made["packing"] = self.engine.packing
        if self.preconditioner is not None and entry.has_second_moment:
            made["v0"] = self.preconditioner
        self.state = client_state(optimizer.rule, self.x, **made)
        self.cover = _Cover(self) if entry.cover is not None else None
        self.rule = self._rule()
        self.lazy = self._is_lazy()
        self.inputs = [self.layers.values[0]]
        if self.lazy:
            self.inputs.append(torch.empty_like(self.inputs[0]))
        self.nobody = torch.zeros_like(self.lengths[0])

    def _rule(self) -> Any:
        from ..kernels.triton.bound import rules
        from ..kernels.triton.engine.rule import Rule

        return Rule(getattr(rules, f"direction_{CLIENT_RULES[self.optimizer.rule].formula}"))

    def _is_lazy(self) -> bool:
        from ..kernels.triton.engine import products

        first = self.engine.network.steps[0]
        dense = isinstance(first.layer, Dense) and first.inputs == (0,) and self.cover is None
        return dense and products.one_tile(first.layer, self.batch)

    def sink(self, step: int) -> Any:
        """Where the gradients of a step go."""
        from ..kernels.triton.engine.rule import Sink

        o, n, state = self.optimizer, _numbers(self.optimizer), self.state
        prox = o.prox > 0
        cover: dict[str, Any] = {} if self.cover is None else self.cover.buffers()
        return Sink(
            size=self.x.shape[1],
            x=self.x,
            m=state.get("m"),
            v=state.get("v"),
            nu=state.get("nu"),
            coef=self.coef[step],
            anchor=self.start if prox else None,
            anchor_stride=self.start.shape[-1] if prox and self.start.dim() == 2 else 0,
            correction=self.correction,
            correction_stride=0 if self.correction is None else self.x.shape[1],
            weight_decay=n.weight_decay,
            prox=n.prox,
            beta1=n.beta1,
            gain1=n.gain1,
            beta2=n.beta2,
            gain2=n.gain2,
            eps=n.eps,
            root_eps=n.root_eps,
            **cover,
        )

    def step(self, step: int) -> Tensor:
        from ..kernels.triton.engine import products

        layers, lengths, draws, sink = self.layers, self.lengths[step], self.draws(step), self.sink(step)
        given = self.inputs[step % len(self.inputs)]
        layers.values[0] = given
        self.load(step, given)
        if self.lazy:
            before, first = self.inputs[(step + 1) % 2], self.engine.network.steps[0]
            assert isinstance(first.layer, Dense)
            last_lengths, last_sink = (self.lengths[step - 1], self.sink(step - 1)) if step else (self.nobody, sink)
            made, d_made = layers.values[first.output], layers.grads[first.output]
            args = (self.x, given, before, d_made, made, lengths, last_lengths, last_sink, self.rule)
            products.update_forward(first.layer, self.batch, *args)
        layers.forward(self.x, lengths, draws, skip=int(self.lazy))
        losses = layers.loss(self.targets, self.counts, lengths)
        if self.cover is not None:
            self.cover.open()
        layers.backward(self.x, lengths, draws, sink, self.rule, until=int(self.lazy))
        if self.cover is not None:
            self.cover.close(self.coef[step])
        return losses

    def finish(self) -> dict[str, Tensor]:
        from ..kernels.triton.engine import products

        last = self.longest - 1
        if self.lazy:
            first = self.engine.network.steps[0]
            assert isinstance(first.layer, Dense)
            given, d_made = self.inputs[last % 2], self.layers.grads[first.output]
            args = (self.x, given, d_made, self.lengths[last], self.sink(last), self.rule)
            products.update(first.layer, self.batch, *args)
        rates = learning_rates(self.work, self.optimizer, self.clients, self.longest)
        taken = rates.gather(0, (self.steps - 1).clamp(min=0)[None])[0]
        return {"step_size": taken}


def _numbers(optimizer: Client) -> Any:
    from .fused import _numbers as numbers

    return numbers(optimizer)


class _Cover:
    """SM3's second moments at work: the maxima that a step raises, and which become mu at its end."""

    def __init__(self, chunk: FusedChunk) -> None:
        from ..kernels.phases import ClientCall
        from ..kernels.triton import cover_step

        rule = CLIENT_RULES[chunk.optimizer.rule]
        self.call = ClientCall(rule, _numbers(chunk.optimizer), chunk.x, chunk.x, chunk.state)
        self.cover = cover_step.open_cover(self.call)

    def open(self) -> None:
        self.cover.maxima.zero_()

    def close(self, coef: Tensor) -> None:
        self.cover.settle(self.call, coef)

    def buffers(self) -> dict[str, Any]:
        tables = self.cover.tables
        return {
            "mu": self.call.state["mu"],
            "maxima": self.cover.maxima,
            "axes": tables.axes,
            "mu_size": tables.mu_size,
        }
