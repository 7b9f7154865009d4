"""The simulation: a round is six rooms in a row, plan, train, aggregate, step, tune, record."""

from __future__ import annotations

import copy
import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from torch import Tensor, nn

from .aggregate import Aggregate, Reduction
from .batch_norm import Mode, check_mode, make_statistics
from .clients import Blend, Client, OwnClient, algorithm_of
from .compression import Compression
from .data import Federation
from .devices import Devices, find_devices, written
from .door import check_given, check_together, gives_classes
from .exchange import Exchange
from .fine_tune import FineTune, FineTuned, check_fine_tune
from .hooks import (
    Calling,
    Evaluated,
    Evaluating,
    Hooked,
    OnRound,
    Patience,
    Ruled,
    Saving,
    Showing,
    Target,
    Watching,
    Writing,
)
from .losses import Loss, LossReduction, with_name
from .metrics import Metrics, check_metrics
from .norms import frozen
from .notes import Notes, tell_of_slower
from .packing import Packing
from .plan import RoundPlan, Tuning
from .plan.round import Clocked
from .privacy import Privacy
from .ranks import current as current_ranks
from .record import costs
from .record.evaluate import Evaluator, metric_of, validation_rows
from .record.evaluation import Evaluation
from .record.history import ROOMS, History, Row, finite, training_columns
from .rooms import Room, make_aggregator, make_exchanger, make_ledger, make_planner, make_server, make_tuner
from .run import TRAIN_LOSS, check_hooks, check_intervals, check_target, end_of_run, run_rounds, uninterrupted, waits
from .saved.restore import beginning_with
from .saved.run import SavedRun, resume
from .schedules import Schedule
from .servers import FedAvg, OwnServer, Server, StepFunction
from .settings import Settings, check_settings, check_statistics
from .sharing import Sharing, check_same_run, writes
from .shown import Shown, brief
from .timing import Timing
from .train import Outcome
from .train.executors import Executor, make
from .train.sharded import Sharded
from .training import train
from .tune import TunerSettings

_Result = TypeVar("_Result")


class Simulation(Shown):
    """Federated training of `model` on the clients of `fed`.

    `client` and `server` are optimizers of ``ff.clients`` and ``ff.servers``, or algorithms of your own in Python
    (docs/own.md). `cohort`: clients per round (uniformly, without replacement), or ``ff.plan.Poisson(rate)``,
    ``ff.plan.Sampled`` (with replacement, some more likely than others, not always available), ids by round, or a
    function of the round. Each trains for
    `epochs` (default 1; fractions too) or `steps` (one number, or one per client) on batches of `batch_size`;
    `across_epochs` lets batches cross the borders of epochs; `batches` "drawn" draws every batch from all examples of
    the client, with replacement, instead of going through them in a new order every epoch. Deltas are averaged by
    `weights` "examples", "uniform" or one number per client, each divided by its steps with `divide_by_steps` (with
    `divide_by_epochs`, by how often it went over its examples), then clipped to norm `delta_clip`; `aggregation`
    (``ff.aggregate``) reduces them otherwise than to their mean.
    `client_schedule` and `server_schedule` give a learning rate's factor by round (``ff.schedules``, any callable).
    `exchange` is what travels besides the model (``ff.exchange``). `loss` is a name, or a callable on executor "eager".
    `loss_reduction` makes one number of a batch's losses: their "mean"; by "outputs", summed over an example's tags,
    pixels or labels, the mean over examples; by "batch", the mean of an example's, summed over examples.
    `batch_norm` says what becomes of batch norms' running statistics: after a round they are the clients' weighted mean
    ("average"), stay with each client as do the layers' weights and biases ("local"), or never change ("frozen").

    `timing` replaces synchronous rounds (``ff.timing``: client-centric, or a simulated clock) and then says who takes
    part instead of `cohort`. `tuner` changes settings from round to round (``ff.tune``), `privacy` adds differential
    privacy (``ff.privacy``), `compression` is what becomes of deltas on their way up (``ff.compression``). `client` may
    be a blend of optimizers (``ff.clients.Blend``).

    `executor`, `threads` and `device` say how it runs; nothing of the result depends on the number of threads. What a
    run keeps of the size of the model lives on `device`; plans and records stay on the host. To several devices, a list
    or "cuda:0,cuda:1" ("cuda:*": all cards), every cohort is dealt, without a change in the result; the model lives on
    the first.

    The caller's model is neither touched nor moved, wherever it is: its parameters are where the run starts. `params`
    is the packed global model. Made while several processes are joined (``ff.ranks``), it is one simulation of all.
    """

    def __init__(
        self,
        model: nn.Module,
        fed: Federation,
        *,
        client: Client | Blend | OwnClient,
        server: Server | OwnServer | StepFunction | None = None,
        cohort: Any = None,
        epochs: float | None = None,
        steps: int | Sequence[int] | Tensor | None = None,
        batch_size: int = 20,
        across_epochs: bool = False,
        batches: Literal["epochs", "drawn"] = "epochs",
        loss: Loss = "cross_entropy",
        loss_reduction: LossReduction = "mean",
        metrics: Metrics | None = None,
        batch_norm: Mode = "average",
        weights: Literal["examples", "uniform"] | Sequence[float] | Tensor = "examples",
        divide_by_steps: bool = False,
        divide_by_epochs: bool = False,
        delta_clip: float | None = None,
        aggregation: Reduction | None = None,
        client_schedule: Schedule | None = None,
        server_schedule: Schedule | None = None,
        exchange: Exchange | None = None,
        timing: Timing | None = None,
        tuner: TunerSettings | None = None,
        privacy: Privacy | None = None,
        compression: Compression | None = None,
        seed: int = 0,
        executor: str = "auto",
        threads: int | None = None,
        device: Devices = "cpu",
    ) -> None:
        check_given(model, fed)
        loss = with_name(loss, fed.examples.targets)
        self.settings = Settings(
            client=client,
            server=FedAvg() if server is None else server,
            cohort=cohort,
            epochs=epochs,
            steps=steps,
            batch_size=batch_size,
            across_epochs=across_epochs,
            batches=batches,
            loss=loss,
            loss_reduction=loss_reduction,
            metrics=metrics,
            batch_norm=batch_norm,
            weights=weights,
            divide_by_steps=divide_by_steps,
            divide_by_epochs=divide_by_epochs,
            delta_clip=delta_clip,
            aggregation=aggregation,
            client_schedule=client_schedule,
            server_schedule=server_schedule,
            exchange=exchange,
            timing=timing,
            tuner=tuner,
            privacy=privacy,
            compression=compression,
            seed=seed,
            executor=executor,
            threads=threads,
            device=written(device),
        )
        devices = find_devices(device)
        self.device = devices[0]
        self.model, self.fed = model, fed
        check_settings(self.settings, fed)
        check_mode(batch_norm, model)
        self._of_labels = gives_classes(model, fed.examples, loss)
        check_metrics(metrics, self.metric_name)
        self._trained = frozen(model) if batch_norm == "frozen" else model
        self.packing = Packing.of(self._trained, batch_norm=True)
        self.batch_norm = make_statistics(batch_norm, model, self.packing, self.device)
        check_statistics(self.settings, self.batch_norm.extra)
        self._costs = self.costs("simulation")
        split = None if exchange is None else exchange.split
        self.ranks = current_ranks()
        self.executor: Executor = make(
            executor,
            self._trained,
            loss,
            fed.examples,
            threads=threads,
            device=devices,
            split=split,
            reduction=loss_reduction,
            algorithm=algorithm_of(client),
        )
        self.notes = Notes()
        if executor == "auto":
            tell_of_slower(self.notes, self.executor, self.device)
        check_together(self._trained, fed, loss, batch_size, self.executor, self.notes)
        self.planner = make_planner(self.settings, fed, self._costs.bytes_down + self._costs.bytes_up)
        self.aggregator = make_aggregator(self.settings, len(fed), self.packing, self.device)
        self.ledger = make_ledger(self.settings)
        start = self.packing.pack(model).to(self.device)
        self.server = make_server(self.settings, start, self.packing, len(fed))
        self.exchanger = make_exchanger(self.settings, self.params, len(fed))
        self.tuner = make_tuner(self.settings, self.params)
        self.history = History()
        self.saved = SavedRun(self)
        self.sharing: Sharing | None = None  # of several ranks
        if self.ranks is not None:
            self.executor = sharded = Sharded(self.executor, self.ranks)
            keeping = {"exchange": self.exchanger, "aggregation": self.aggregator, "batch_norm": self.batch_norm}
            self.sharing = Sharing(self.ranks, sharded, keeping)
            check_same_run(self.ranks, self.saved.run, fed.fingerprint(), (self.executor.name, self.device.type))
            sharded.settle()
        self.between_rounds = True  # False while a round is taken over: a state that cannot be saved

    def _facts(self) -> dict[str, object]:
        measured = self.history.values(self.metric)
        return {
            "round": self.round,
            **({self.metric: measured[-1]} if measured else {}),
            "model": f"{type(self.model).__name__}, {self.packing.parameters:,} parameters",
            "data": self.fed.name,
            "clients": len(self.fed),
            "client": brief(self.settings.client),
            "server": brief(self.settings.server),
            "executor": f"{self.executor.name} on {self.device}",
        }

    @property
    def params(self) -> Tensor:
        """The global model, packed (d,)."""
        return self.server.x

    @property
    def round(self) -> int:
        """How many rounds have been run."""
        return len(self.history)

    @property
    def clocked(self) -> Clocked | None:
        """The planner, if it has a simulated clock."""
        return self.planner if isinstance(self.planner, Clocked) else None

    def costs(self, name: str) -> costs.Costs:
        """What a client's round costs besides time."""
        return costs.of(name, self.settings.by_name(), self.packing, self.batch_norm.extra)

    def trained_model(self) -> nn.Module:
        """A copy of the module that holds the global model, batch norms' running statistics included."""
        trained = copy.deepcopy(self.model)
        self.packing.unpack(self.params, trained)
        buffers = dict(trained.named_buffers())
        for name, statistics in self.batch_norm.named().items():
            buffers[name].copy_(statistics)
        return trained

    # ---- a round ----------------------------------------------------------------------------------------------------

    def step(self) -> Row:
        """Runs one round; its row of the history, not evaluated."""
        self.ledger.allow(self.round + 1)
        row = self.step_before(math.inf)
        assert row is not None
        return row

    def step_before(self, until: float) -> Row | None:
        """One round; None if a simulated clock comes to `until` seconds before it is complete."""
        clock = _Clock()
        with clock("plan"):
            plan = self._heard(lambda: self.planner.plan(self.round, self.tuner.tuning, until))
        return None if plan is None else self._carry_out(plan, clock)

    def _heard(self, function: Callable[[], _Result]) -> _Result:
        """What a function gives that others wrote; of several ranks, an error of one is an error of all."""
        return function() if self.ranks is None else self.ranks.heard(function)

    def flush(self) -> Row | None:
        """On a simulated clock, a round with the updates that are in the buffer now; None if there are none."""
        if self.clocked is None:
            raise ValueError("timing: only a simulated clock (EventDriven, Waves) has a buffer to flush")
        clock = _Clock()
        with clock("plan"):
            plan = self.clocked.arrived(self.round, self.tuner.tuning)
        return self._carry_out(plan, clock) if len(plan) else None

    def _carry_out(self, plan: RoundPlan, clock: _Clock) -> Row:
        with clock("train"):
            work, outcome = train(self, plan)
        with uninterrupted():  # what follows happens as a whole, so that Ctrl-C leaves a state between two rounds
            self.between_rounds = False
            with clock("aggregate"):
                aggregate = self.aggregator.aggregate(plan, outcome)
            with clock("step"):
                if self.planner.versions() is not None:
                    self.server.past.put(plan.round, self.params)
                    self.batch_norm.remember(plan.round)
                if getattr(self.tuner, "reads_delta", False):
                    _ = aggregate.delta
                moved = self._step(aggregate, plan.server_lr)
            with clock("tune"):
                tuning = self.tuner.tuning
                if work is not None and moved:
                    self.exchanger.absorb(work, outcome)
                    self.batch_norm.absorb(work, outcome, aggregate.shares)
                    self.tuner.tune(plan, outcome, aggregate)
                self.planner.commit()
                self.server.past.keep(self.planner.versions() or ())
                self.batch_norm.keep(self.planner.versions() or ())
            with clock("record"):
                row = finite(self._row(plan, outcome, aggregate, moved, tuning))
                self.history.rounds.append(row)
            row |= clock.seconds
            self.between_rounds = True
        return row

    def _step(self, aggregate: Aggregate, lr: float) -> bool:
        """Moves the model; whether it moved. Of several ranks, all take the step, and see that it is the same."""
        if self.ranks is None or not self.server.is_own:
            return self.server.step(aggregate, lr)
        moved = self._heard(lambda: self.server.step(aggregate, lr))
        after = hashlib.sha256(self.params.cpu().numpy().tobytes()).hexdigest()[:16]
        self.ranks.check_same("server: the model after a step of your own", f"{after} ({moved})")
        return moved

    def _row(self, plan: RoundPlan, outcome: Outcome, aggregate: Aggregate, moved: bool, tuning: Tuning) -> Row:
        row: Row = {"round": plan.round + 1, **training_columns(plan, outcome, aggregate)}
        row |= {"changed": moved, "server_lr": plan.server_lr}
        downloads = len(plan) if plan.downloads is None else plan.downloads
        row["bytes_down"] = self._costs.bytes_down * downloads
        row["bytes_up"] = self._costs.bytes_up * (len(plan) + plan.late_uploads)
        row["client_optimizer_bytes"] = self._costs.optimizer_bytes
        if tuning != Tuning():
            row |= {"client_lr": tuning.lr, "epochs": tuning.epochs, "batch_size": tuning.batch_size}
        return row | self.ledger.columns(plan.round + 1) | dict(plan.columns) | dict(aggregate.columns)

    # ---- a run ------------------------------------------------------------------------------------------------------

    def run(
        self,
        rounds: int | None = None,
        *,
        until: int | None = None,
        until_clock: float | None = None,
        flush: bool = False,
        evaluate_every: int = 10,
        evaluate_training: bool = False,
        per_client: bool = False,
        fine_tune: FineTune | None = None,
        target: Mapping[str, float] | None = None,
        checkpoint: str | Path | None = None,
        checkpoint_every: int = 10,
        keep: int = 3,
        log: str | Path | None = None,
        tensorboard: str | Path | None = None,
        progress: bool | None = None,
        patience: int | Patience | None = None,
        on_round: OnRound | None = None,
        hooks: Sequence[Hooked] = (),
    ) -> History:
        """Runs `rounds` more rounds, or on `until` that many have been run in all. The history of the whole run.

        On a simulated clock, `until_clock` ends the run after that many simulated seconds, perhaps in the middle of a
        round, which the next run goes on with, or which `flush` completes with the updates that are there; `rounds` may
        then be left out. A run with a `target_epsilon` of privacy ends before the round that would exceed it.

        The test set is evaluated after every `evaluate_every`-th round and after the last (0: never), with
        `evaluate_training` also all training examples (trainset_loss and so on; train_loss is what clients saw while
        they trained), with `per_client` also the spread over clients, with `fine_tune` (``ff.FineTune``) that over
        clients which have trained on their own examples before. `target`, such as ``{"test_accuracy": 0.86}``, ends the
        run once it is reached. `checkpoint` is a directory that gets one every `checkpoint_every` rounds, at the end,
        and on Ctrl-C; the last `keep` and the best stay. `log` is a file of JSON lines, `tensorboard` a
        directory of events. `progress` False silences the bar (on a terminal) or the lines (elsewhere).

        `patience` ends the run once so many evaluations in a row were no better than the best before them, by
        ``Simulation.metric`` or as ``ff.hooks.Patience`` says; those of the history count, too. `on_round` is called
        after every round, with the simulation and the row, and ends the run if it gives True. `hooks`
        (``ff.hooks.Hook``) are told of every round once it is evaluated, and may end the run.
        """
        end = end_of_run(self, rounds, until, until_clock, flush)
        check_intervals(evaluate_every, checkpoint_every, keep)
        check_fine_tune(self, fine_tune)
        evaluated = Evaluated(evaluate_training, per_client, fine_tune)
        check_target(self, target, evaluate_every, evaluated)
        check_hooks(hooks, on_round)
        waiting = waits(self, patience, evaluate_every, evaluated)
        if checkpoint:
            self.saved.claim(checkpoint, self.round)
        all_hooks: list[Hooked] = [Evaluating(evaluate_every, evaluated, end.rounds), Target(target or {})]
        for hook in waiting:  # the last round is evaluated, if it is the last by what clients saw
            all_hooks.insert(0 if hook.column == TRAIN_LOSS else len(all_hooks), hook)
        all_hooks.append(Watching())
        hooks = [*hooks, *([] if on_round is None else [Calling(on_round)])]
        all_hooks += hooks if self.ranks is None else [Ruled(hook, self.ranks) for hook in hooks]
        if writes(self.ranks):
            all_hooks += [Writing(log, tensorboard), Showing(progress, end.known_rounds)]
        all_hooks += [Saving(checkpoint, checkpoint_every, keep)] if checkpoint else []
        with nullcontext() if self.ranks is None else self.ranks.watched():
            run_rounds(self, end, all_hooks)
        return self.history

    @property
    def metric_name(self) -> str:
        """The metric that goes with the loss; with a loss of one's own, accuracy if the targets are labels."""
        return metric_of(self.settings.loss, self._of_labels)

    @property
    def metric(self) -> str:
        """The column that says how good the model is, of those that are measured."""
        name = self.metric_name
        if self.fed.test is not None:
            return f"test_{name}"
        return "train_loss" if validation_rows(self.fed) is None else f"validation_{name}"

    def evaluate(
        self, *, training: bool = False, per_client: bool = False, fine_tune: FineTune | None = None
    ) -> dict[str, float]:
        """The global model on the test set: test_loss and test_accuracy, test_recall_at_5 or test_mse; the same on the
        validation set, where the data has one (``ff.data.hold_out``), as validation_loss and so on.

        With `training`, also over all training examples: trainset_loss and so on.
        With `per_client`, also the metric's mean, 10th and 90th percentile over the clients that have examples (at most
        1,000, spread over all), on their test examples where the data has any, else on their training examples; their
        names begin with client_. Clients that keep their own batch norms (``batch_norm="local"``) are evaluated with
        these. With `fine_tune` (``ff.FineTune``), the same of clients that have trained the global model on their own
        training examples before; these names begin with tuned_.
        """
        check_fine_tune(self, fine_tune)
        if self.ranks is not None:
            self.ranks.agree()
        tuned = None if fine_tune is None else partial(FineTuned, self, how=fine_tune)
        return self._evaluation.columns(self.params, training=training, per_client=per_client, tuned=tuned)

    @cached_property
    def _evaluation(self) -> Evaluation:
        settings = self.settings
        evaluator = Evaluator(
            self._trained,
            settings.loss,
            reduction=settings.loss_reduction,
            batch_size=settings.batch_size,
            predict=self.executor.predict if self.executor.predicts_itself else None,
            threads=settings.threads,
            device=self.device,
            uncounted=self.fed.uncounted,
            statistics=self.batch_norm.vector,
            ranks=self.ranks,
            metrics=settings.metrics,
            of_labels=self._of_labels,
        )
        return Evaluation(self.fed, evaluator, self.batch_norm.own_models)

    # ---- checkpoints ------------------------------------------------------------------------------------------------

    def save(self, path: str | Path, *, keep: int | None = None) -> Path:
        """Writes a checkpoint of everything into the directory `path`; the file to resume from.

        With `keep`, all but the last `keep` and the best are removed.
        """
        return self.saved.save(self, path, keep)

    @classmethod
    def resume(
        cls, path: str | Path, *, model: nn.Module | None = None, fed: Federation | None = None, **settings: Any
    ) -> Simulation:
        """The simulation of a checkpoint: a file, or a directory of them or of a run ("runs/digits"), whose newest is
        taken. It goes on to the same bits.

        A model of ``ff.models`` and data of ``ff.data`` are made again; others must be given, and so must settings that
        JSON cannot hold (callables, tensors). `threads` may be changed, and so may `executor` and `device`, which agree
        to rounding only; on another kind of device, an executor that does not know it is replaced by "auto".
        """
        return resume(cls, path, model, fed, settings)

    def tensors(self) -> dict[str, Tensor]:
        """All that lasts from round to round, by name, for a checkpoint."""
        rooms = self._rooms.items()
        return {f"{prefix}{name}": tensor for prefix, room in rooms for name, tensor in room.tensors().items()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Takes over what `tensors` gave."""
        for prefix, room in self._rooms.items():
            room.load(beginning_with(prefix, tensors))

    @property
    def _rooms(self) -> dict[str, Room]:
        """What lasts from round to round, by what the names of its tensors begin with in a checkpoint."""
        return {
            "": self.server,
            "exchange.": self.exchanger,
            "tuner.": self.tuner,
            "planner.": self.planner,
            "aggregator.": self.aggregator,
            "batch_norm.": self.batch_norm,
        }


class _Clock:
    """Seconds per room."""

    def __init__(self) -> None:
        self.seconds = {f"seconds_{room}": 0.0 for room in ROOMS}

    @contextmanager
    def __call__(self, room: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[f"seconds_{room}"] += time.perf_counter() - began
