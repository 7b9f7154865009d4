"""The executor `device`: the local training of many clients as Triton kernels over (clients, d).

The program is the native engine's, lowered (``program/lower.py``). Clients train in chunks (``chunk.py``); the
bits of the result do not depend on how many those are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ... import program
from ...clients import Client, refuse_algorithms
from ...data import Examples, Sparse
from ...data.resident import Resident, free_memory, passing, resident, upload
from ...kernels import CLIENT_RULES, registry
from ...kernels.registry import BACKENDS, interpreting
from ...losses import Loss, LossReduction
from ...packing import Packing
from ...program.lower import lower, with_pixel_columns
from ..batches import steps_taken
from ..model import fitting_examples
from ..predict import TorchPredict
from ..split import Split, head_of
from ..threads import check_memory
from ..work import Outcome, RoundWork
from .arena import Arena
from .chunk import Chunk
from .client import ClientChunk
from .coefficients import why_not_fused
from .fused import FusedChunk
from .inputs import check_examples, meaning_of_bytes
from .kept import KeptChunk
from .lanes import LANES, LaneSum, Layout, Terms, outcome

_KERNELS = registry.__package__
MEMORY = 1 << 30  # bytes that a chunk of clients may take, by estimate, in the interpreter ...
MEMORY_SHARE = 0.5  # ... and of what is free on a card once the examples are there


class Device:
    """Runs rounds of a module that `fastfed.program` can trace on a CUDA device (or, for tests, on CPU tensors in
    Triton's interpreter), in float32.

    `memory`: bytes that the clients which train side by side may take, by default half of what is free on the card.
    """

    name = "device"
    why = "every layer of the model has a device kernel"
    predicts_itself = False

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
        reduction: LossReduction = "mean",
    ) -> None:
        check_memory(self.name, threads, memory)
        self.device = torch.device(device)
        _check_device(self.device)
        self.program = _trace(module, examples, loss)
        self.network, self.reduction = lower(self.program), reduction
        self.packing: Packing = self.program.engine_packing
        self._module, self._heads = module, set[str | None]()
        self.predict = TorchPredict(module, self.device, examples.form)
        if split is not None:
            self._check_head(split.head)
        check_examples(examples, self.network)
        self._check_card()
        self.resident = resident(examples, self.device)
        self.meaning = meaning_of_bytes(examples.inputs, self.device)
        self.images = examples.augmented
        self.memory = self._default_memory() if memory is None else memory
        self._limit = memory if memory is not None else free_memory(self.device)  # of one client; None: unknown
        self.arena = Arena(self.device)
        places = self.program.places
        self.layout = Layout(self.program.from_engine, None if places is None else upload(places, self.device))
        if self.device.type != "cpu":
            self.why = f"{Device.why}; {self.resident.why}"

    @property
    def examples(self) -> Examples:
        return self.resident.examples

    def run(self, work: RoundWork) -> Outcome:
        """The round's weighted sum of deltas, and its scalars."""
        self.check(work)
        terms = terms_of(work)
        part = self.lane_sum(terms, range(LANES))
        self.train(part)
        return outcome([part])

    def check(self, work: RoundWork) -> None:
        """Refuses a work that does not belong to the model or the examples."""
        if work.start.dtype is not torch.float32:
            raise TypeError(f"start: the device engine computes in float32, got {work.start.dtype}")
        refuse_algorithms(work.optimizers, self.name)
        if work.contrast is not None:
            self._check_head(work.contrast.head)
        fitting_examples(work, self.program.packing, self.examples)

    def lane_sum(self, terms: Terms, lanes: range, *, home: bool = True) -> LaneSum:
        """Where `train` puts what becomes of the clients in these lanes."""
        return LaneSum(terms, lanes, self.device, self.layout, home=home)

    def train(self, part: LaneSum) -> None:
        """Trains the clients of these lanes."""
        work, steps = part.terms.work, part.terms.steps
        store, batch = self._store(work), longest_batch(work)
        for optimizer, place, clients in portions(work, steps, part.places):
            kind, at = self._kind(optimizer, work, batch), place
            for chunk in clients.split(self._clients_at_once(work, optimizer, batch, store)):
                training = kind(self, batch, store, work, optimizer, chunk, steps[chunk])
                scalars = training.train()
                part.add(at, training.x, training.start, scalars, training.squares)
                at += len(chunk)

    def _check_card(self) -> None:
        """A card that computes small rounds wrongly is refused."""
        if self.device.type == "cuda":
            from .self_test import require  # which is built on this file

            require(self.device)

    def _kind(self, optimizer: Client, work: RoundWork, batch: int) -> type[Chunk]:
        """How the clients of an optimizer train."""
        if why_not_fused(optimizer, work, self.network, self.packing) is not None:
            return KeptChunk
        return ClientChunk if ClientChunk.why_not(self, optimizer, batch) is None else FusedChunk

    def _store(self, work: RoundWork) -> Resident:
        if work.examples is None or work.examples is self.examples:
            return self.resident
        check_examples(work.examples, self.network)
        return passing(work.examples, self.device)

    def _clients_at_once(self, work: RoundWork, optimizer: Client, batch: int, store: Resident) -> int:
        """How many clients fit into the memory: one, if it is more than the usual share but not more than there is."""
        vectors = 4 + len(CLIENT_RULES[optimizer.rule].vectors) + 2 * (work.contrast is not None)
        vectors += (work.start.dim() == 2) + (work.corrections is not None) + (work.preconditioner is not None)
        vectors += 3 * getattr(optimizer, "same_batch", False) + 5 * work.measure_cosine
        numbers = vectors * self.packing.size + 3 * batch * sum(shape.numbers for shape in self.network.buffers)
        portion = int(work.counts.max()) * store.streamed_bytes
        wanted = 4 * numbers + portion
        if self._limit is not None and wanted > self._limit:
            raise MemoryError(
                f"memory: one client of this round takes about {wanted:,} bytes on {self.device}, and {self._limit:,} "
                "are there; smaller batches take less, and executor 'eager' takes least"
            )
        return max(1, self.memory // wanted)

    def _default_memory(self) -> int:
        free = free_memory(self.device)
        return MEMORY if free is None else max(1, int(MEMORY_SHARE * free))

    def _check_head(self, asked: str | None) -> None:
        if asked not in self._heads:
            program.check_head(self.program, head_of(self._module, asked))
            self._heads.add(asked)


def _check_device(device: torch.device) -> None:
    if _is_stubbed():
        return
    reason = BACKENDS["triton"].why_not()
    if reason is not None:
        raise program.Unsupported(f"device: executor 'device' runs Triton kernels, which cannot run here: {reason}")
    wanted = "cpu" if interpreting() else "cuda"
    if device.type != wanted:
        where = "CPU tensors in Triton's interpreter" if interpreting() else "a CUDA device"
        raise program.Unsupported(f"device: executor 'device' runs on {where}, got {device}")


def _is_stubbed() -> bool:
    """Whether kernels are written down instead of run (``bench.device_costs``): then any tensors will do."""
    launching = sys.modules.get(f"{_KERNELS}.triton.launch")
    return launching is not None and launching.stubbed()


def _trace(module: nn.Module, examples: Examples, loss: Loss) -> program.Program:
    if not isinstance(loss, str):
        raise program.Unsupported("loss: the device engine knows losses by name; a callable runs on 'eager'")
    inputs = examples.inputs
    dense = torch.zeros(1, inputs.width) if isinstance(inputs, Sparse) else inputs  # sparse rows are gathered dense
    traced = program.trace(module, dense, loss)
    if traced.packing.dtype is not torch.float32:
        raise program.Unsupported(f"module: the device engine computes in float32, not {traced.packing.dtype}")
    return with_pixel_columns(traced)


def groups(work: RoundWork, steps: Tensor) -> Iterator[tuple[Client, Tensor]]:
    """The positions of the clients that train, per optimizer, in their order."""
    rule = torch.zeros_like(steps) if work.optimizer_index is None else work.optimizer_index
    for number, optimizer in enumerate(work.optimizers):
        clients = ((rule == number) & (steps > 0)).nonzero().flatten()
        if len(clients):
            yield optimizer, clients


def terms_of(work: RoundWork) -> Terms:
    """What a round's sum is made of: the clients of `groups`, one group after another."""
    steps = steps_taken(work)
    order = [clients for _, clients in groups(work, steps)]
    return Terms(work, steps, torch.cat(order) if order else torch.empty(0, dtype=torch.int64))


def portions(work: RoundWork, steps: Tensor, places: range) -> Iterator[tuple[Client, int, Tensor]]:
    """The groups as far as they are at these places of the order, and where each portion of them begins there."""
    begin = 0
    for optimizer, clients in groups(work, steps):
        first, end = max(places.start - begin, 0), min(places.stop - begin, len(clients))
        if first < end:
            yield optimizer, begin + first, clients[first:end]
        begin += len(clients)


def longest_batch(work: RoundWork) -> int:
    """Of the whole cohort, so that a client's tiles do not depend on who trains beside it."""
    seen = work.counts if work.seen is None else torch.maximum(work.seen, work.counts)
    return max(1, min(work.batch_size, int(seen.max())))
