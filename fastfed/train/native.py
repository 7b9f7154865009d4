"""The executor `native`: a client's whole local training inside one C++ call, one client per thread."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from .. import _core, program
from ..clients import Client, refuse_algorithms
from ..data import Examples, Pixels, Sparse
from ..kernels import CLIENT_RULES, Stream, client_state, extension
from ..kernels.cpp.client_step import COVERS, DIRECTIONS, STEP_SIZES
from ..kernels.table import client_numbers
from ..losses import Loss, LossReduction
from ..norms import Statistics
from ..purposes import Purpose
from .batches import steps_taken
from .contrast import Contrast
from .model import fitting_examples
from .policy import divided, multipliers, policy_weights, rest
from .predict import check_rows
from .profile import Profile
from .split import Split, head_of
from .threads import check_threads
from .total import Total
from .work import SCALARS, Outcome, RoundWork, empty_scalars

extension.require_names("scalars", SCALARS, of="fastfed/train/work.py")

_PLACE = re.compile(r"^client \d+ \(position (\d+)\)")  # what the engine's errors about a client begin with
_IDLE = 2  # a start model and a sum of deltas


class Native:
    """Runs rounds of a module that `fastfed.program` can trace, on the CPU, in float32.

    `threads`: how many clients train at once (default: torch's number); it never changes a result. `gram`: whether the
    first layer is trained in its Gram form (docs/speed.md) wherever it can be, or never; by default, where it pays.
    `profile`, where one is set, is told where the seconds go; it changes no bit.
    """

    name = "native"
    why = "every layer of the model has a native kernel"
    predicts_itself = True

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
        if torch.device(device).type != "cpu":
            raise program.Unsupported(f"device: the native engine runs on the CPU, not on {device}")
        if not isinstance(loss, str):
            raise program.Unsupported("loss: the native engine knows losses by name; a callable runs on 'eager'")
        self.program = program.trace(module, examples.inputs, loss)
        if self.program.packing.dtype is not torch.float32:
            raise program.Unsupported(
                f"module: the native engine computes in float32, not {self.program.packing.dtype}"
            )
        self.threads, self.examples = threads, examples
        self.gram: bool | None = None
        self.profile: Profile | None = None
        self._examples = _engine_examples(examples)
        self._predicted = (examples, self._examples)  # the store of the last predictions
        self._module, self._heads = module, set[str | None]()  # what heads were asked for, and can be split at
        self._idle: list[Tensor] = []  # vectors (d,) in the engine's order, kept from round to round
        if split is not None:
            self._check_head(split.head)
        values, instructions = self.program.spec()
        layout, self._learnt = self.program.statistics, Statistics.of(module)
        self._frozen = None if layout is None or self._learnt is not None else layout.pack(module, torch.float32)
        sizes = self.program.packing.size, 0 if layout is None else layout.size
        constants = self.program.constants.numbers
        self._core = _core.Program(values, instructions, self.program.output, loss, reduction, *sizes, constants)

    def run(self, work: RoundWork) -> Outcome:
        """Trains the round's clients."""
        weights = policy_weights(work, steps_taken(work))
        results = self._train(work, weights)
        total = divided(results["delta"], rest(work, weights, results["refused"]))
        outcome = self._outcome(results, self.program.from_engine(total, tables=False))
        self._give_back(results["delta"])  # whose numbers have been moved elsewhere
        return outcome

    def _take_vector(self, like: Tensor) -> Tensor | None:
        """A vector (d,) for numbers in the engine's order; fresh memory costs a fault per page."""
        if not self.program.moves or like.dim() > 1:
            return None
        try:
            return self._idle.pop()
        except IndexError:
            return torch.zeros_like(like)

    def _give_back(self, vector: Tensor | None) -> None:
        if self.program.moves and vector is not None and vector.dim() == 1 and len(self._idle) < _IDLE:
            self._idle.append(vector)

    def deal(self, work: RoundWork) -> tuple[int, Tensor]:
        """In how many lanes a round is summed, and an order (clients,) int64 of its clients' positions, of which the
        i-th is in lane i modulo that number. Examples are not looked at, nor what vectors hold."""
        order = torch.empty(len(work), dtype=torch.int64)
        light = replace(work, corrections=None, contrast=None)  # the others are short
        start = work.start.contiguous()  # which nobody looks at
        given = self._engine_work(light, torch.zeros(len(work), dtype=torch.float64), start)
        return self._core.deal(given, work.corrections is not None, order), order

    def run_lanes(self, work: RoundWork, lanes: range, roots: int) -> Outcome:
        """Trains the clients in some neighbouring lanes: the total is (roots, d), the sums of the largest subtrees of
        lanes that are all among these. Nothing is said of the other clients, nor is the total divided by anything."""
        weights = policy_weights(work, steps_taken(work))
        results = self._train(work, weights, lanes, roots)
        return self._outcome(results, self.program.from_engine(results["delta"], tables=False))

    def _train(self, work: RoundWork, weights: Tensor, lanes: range = range(0), roots: int = 1) -> dict[str, Any]:
        if work.start.dtype is not torch.float32:
            raise TypeError(f"start: the native engine computes in float32, got {work.start.dtype}")
        if work.contrast is not None:
            self._check_head(work.contrast.head)
        examples = fitting_examples(work, self.program.packing, self.examples)
        held = self._examples if examples is self.examples else _engine_examples(examples)
        vector = self._take_vector(work.start)
        start = self.program.to_engine(work.start, tables=False, out=vector).contiguous()
        results = _empty_results(work, roots, None if lanes else self._take_vector(work.start))
        given = self._engine_work(work, weights, start, lanes)
        began = time.perf_counter()
        try:
            self._core.train(held, given, results | {"seconds": None if self.profile is None else self.profile.seconds})
        except RuntimeError as error:
            raise RuntimeError(_naming_the_client(str(error), work)) from None
        if self.profile is not None:
            self.profile.note_round(time.perf_counter() - began)
        self._give_back(vector)
        return results

    def _outcome(self, results: dict[str, Any], total: Tensor) -> Outcome:
        deltas = None if results["deltas"] is None else self.program.from_engine(results["deltas"])
        scalars = {name: results[name] for name in SCALARS}
        return Outcome(Total(total), scalars, results["refused"], deltas, results["statistics"], results["own"])

    def predict(self, x: Tensor, examples: Examples, rows: Tensor, statistics: Tensor | None = None) -> Tensor:
        """The outputs of the packed model `x` (d,), with these running `statistics` (s,) of its batch norms, for these
        rows (n,) int64 of examples in the form of the executor's own, with dropout off: (n, ...) float32."""
        check_rows(rows, examples, self.examples.form)
        if examples is not self._predicted[0]:
            self._predicted = (examples, _engine_examples(examples))
        outputs = torch.empty(len(rows), *self.program.values[self.program.output].shape)
        params = self.program.to_engine(x, tables=False).contiguous()
        running = self._statistics(statistics)
        self._core.predict(self._predicted[1], params, running, rows.contiguous(), outputs, self.threads or 0)
        return outputs

    def _statistics(self, given: Tensor | None) -> Tensor | None:
        """What batch norms start from, or are evaluated with: those given, or the ones that frozen norms keep."""
        return self._frozen if self._learnt is None else self._learnt.checked(given).float().contiguous()

    def _check_head(self, asked: str | None) -> None:
        if asked not in self._heads:
            program.check_head(self.program, head_of(self._module, asked))
            self._heads.add(asked)

    def _engine_work(self, work: RoundWork, weights: Tensor, start: Tensor, lanes: range = range(0)) -> dict[str, Any]:
        policy = work.policy
        return {
            "ids": work.stream_ids,
            "offsets": work.offsets.contiguous(),
            "rows": work.rows.contiguous(),
            "steps": work.steps.contiguous(),
            "seen": work.seen,
            "batch_size": work.batch_size,
            "start": start,
            "start_index": work.start_index,
            "optimizers": [self._engine_optimizer(client, work) for client in work.optimizers],
            "optimizer_index": work.optimizer_index,
            "lr": work.lr,
            "corrections": None if work.corrections is None else self.program.to_engine(work.corrections).contiguous(),
            "statistics": self._statistics(work.statistics),
            "own": work.own,
            "contrast": None if work.contrast is None else self._engine_contrast(work.contrast, len(work)),
            "shuffle": _key(work, Purpose.SHUFFLE),
            "augment": _key(work, Purpose.AUGMENT),
            "draw": _key(work, Purpose.DRAW),
            "drawn": work.drawn,
            "dropout": [_key(work, Purpose.DROPOUT + i) for i in range(self.program.dropouts)],
            "round": work.round,
            "weights": multipliers(work, weights).contiguous(),
            "clip": policy.clip or 0.0,
            "divide_by_steps": policy.divide_by_steps,
            "measure_cosine": work.measure_cosine,
            "cosine_includes_step": work.cosine_includes_step,
            "gram": self.gram,
            "threads": self.threads,
            "lanes": (lanes.start, lanes.stop),
        }

    def _engine_contrast(self, contrast: Contrast, clients: int) -> dict[str, Any]:
        return {
            "mu": float(contrast.mu),
            "temperature": float(contrast.temperature),
            "previous": self.program.to_engine(contrast.previous).contiguous(),
            "row": contrast.rows_of(torch.arange(clients)),
        }

    def _engine_optimizer(self, client: Client, work: RoundWork) -> dict[str, Any]:
        """An optimizer with the state that it starts a round with, in the engine's layout."""
        refuse_algorithms((client,), self.name)
        rule = CLIENT_RULES[client.rule]
        options = work.options_of(client)
        state_options = client.state_options()
        if work.preconditioner is not None and rule.has_second_moment:
            state_options["v0"] = self.program.to_engine(work.preconditioner)
        if rule.cover is not None:
            state_options["packing"] = self.program.engine_packing
        keeps_vectors = rule.vectors or rule.optional  # else there is no need for a model's worth of zeros
        x = self.program.packing.zeros() if keeps_vectors else torch.zeros(1)
        state = client_state(client.rule, x, **state_options)
        return {
            "formula": DIRECTIONS[rule.formula],
            "cover": COVERS[rule.cover],
            "step_size": STEP_SIZES[rule.step_size],
            "numbers": client_numbers(client.rule, False, tuple(options), *options.values()),
            "state": state,
            "same_batch": bool(getattr(client, "same_batch", False)),
            "counts_epochs": getattr(client, "delay_unit", "step") == "epoch",
            "warmup": client.warmup,
            "from_first": client.from_first,
        }


def _naming_the_client(message: str, work: RoundWork) -> str:
    """The engine's message, which knows a client by the word of its streams, with the client's own id."""
    return _PLACE.sub(lambda found: f"client {work.ids[int(found[1])].item()} (position {found[1]})", message, count=1)


def _key(work: RoundWork, purpose: int) -> tuple[int, int]:
    words = Stream(work.seed, purpose).words()
    return words.key0, words.key1


def _empty_results(work: RoundWork, roots: int, delta: Tensor | None) -> dict[str, Any]:
    """Room for what a round leaves; `delta` (d,) for the sum of one that sums all of it."""
    clients, d = len(work), work.start.shape[-1]
    results: dict[str, Any] = dict(empty_scalars(clients))
    results["delta"] = torch.empty(roots, d) if roots > 1 else torch.empty(d) if delta is None else delta
    results["deltas"] = torch.empty(clients, d) if work.keep_deltas else None
    results["statistics"] = None if work.statistics is None else torch.empty(clients, work.statistics.shape[-1])
    results["own"] = None if work.own is None else torch.empty(clients, len(work.own))
    results["refused"] = torch.zeros(clients, dtype=torch.bool)
    return results


def _engine_examples(examples: Examples) -> dict[str, Any]:
    """The example store as the engine reads it: the same memory, nothing converted."""
    inputs = examples.inputs
    store: dict[str, Any] = {"count": len(examples), "targets": _engine_rows(examples.targets)}
    if isinstance(inputs, Pixels):
        store["inputs"] = inputs.bytes.contiguous()
        store["byte_values"] = inputs.values_of_bytes()
        store["augment"] = _engine_augment(inputs)
    else:
        store["inputs"] = _engine_rows(inputs)
    return store


def _engine_augment(images: Pixels) -> dict[str, Any] | None:
    if images.augment is None:
        return None
    _, height, width = images.stored
    return {"height": height, "width": width, "flip": images.augment.flip, "standardise": images.augment.standardise}


def _engine_rows(rows: Tensor | Sparse) -> Any:
    if isinstance(rows, Sparse):
        tensors = {name: getattr(rows, name).contiguous() for name in ("starts", "columns", "values")}
        return tensors | {"width": rows.width}
    return rows.contiguous()
