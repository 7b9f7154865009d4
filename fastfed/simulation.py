"""The simulation: a round is six rooms in a row, plan, train, aggregate, step, tune, record."""

from __future__ import annotations

import copy
import math
import signal
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from ._version import __version__
from .aggregate import Aggregate, Mean, Reduction
from .aggregate.chain import Chain
from .aggregate.noise import Noise
from .aggregate.result import Aggregator
from .aggregate.weights import Fixed, Relative
from .clients import Blend, Client
from .compression import Compression, Compressor
from .data import Federation
from .devices import Devices, find_devices, written
from .exchange import Exchange
from .hooks import Evaluating, Hooked, Saving, Showing, Target, Writing
from .losses import Loss
from .packing import Packing
from .plan import LocalWork, Orders, Planner, Poisson, RoundPlan, SyncPlanner, Tuning, participation
from .plan.round import Clocked
from .privacy import Ledger, Privacy
from .record import costs
from .record.evaluate import Evaluator, evaluation_visit, metric_of
from .record.history import ROOMS, History, Row, finite, training_columns
from .saved import checkpoint as checkpoints
from .saved.recipe import recipe_of
from .saved.restore import (
    below,
    constants,
    describe,
    made_again,
    model_again,
    moved,
    run_id,
    setting_json,
    settings_again,
)
from .saved.rows import Rows
from .schedules import Schedule
from .server import ServerModel
from .servers import FedAvg, Server
from .settings import check_privacy, check_settings
from .timing import Timing
from .train import Outcome, RoundWork
from .train.executors import make
from .tune import Tuner, TunerSettings, Untuned


class Simulation:
    """Federated training of `model` on the clients of `fed`.

    `client` and `server` are optimizers of ``ff.clients`` and ``ff.servers``. `cohort`: clients per round (uniformly,
    without replacement), or ``ff.plan.Poisson(rate)``, ids by round, or a function of the round. Each trains for
    `epochs` (default 1; fractions too) or `steps` (one number, or one per client) on batches of `batch_size`;
    `across_epochs` lets batches cross the borders of epochs. Deltas are averaged by `weights` "examples", "uniform" or
    one number per client, each divided by its steps with `divide_by_steps`, then clipped to norm `delta_clip`;
    `aggregation` (``ff.aggregate``) reduces them otherwise than to their mean.
    `client_schedule` and `server_schedule` give a learning rate's factor by round (``ff.schedules``, any callable).
    `exchange` is what travels besides the model (``ff.exchange``). `loss` is a name, or a callable on executor "eager".

    `timing` replaces synchronous rounds (``ff.timing``: client-centric, or a simulated clock) and then says who takes
    part instead of `cohort`. `tuner` changes settings from round to round (``ff.tune``), `privacy` adds differential
    privacy (``ff.privacy``), `compression` is what becomes of deltas on their way up (``ff.compression``). `client` may
    be a blend of optimizers (``ff.clients.Blend``).

    `executor`, `threads` and `device` say how it runs; nothing of the result depends on the number of threads. What a
    run keeps of the size of the model lives on `device`; plans and records stay on the host. To several devices, a list
    or "cuda:0,cuda:1" ("cuda:*": all cards), every cohort is dealt, without a change in the result; the model lives on
    the first.

    The caller's model is neither touched nor moved, wherever it is: its parameters are where the run starts. `params`
    is the packed global model.
    """

    def __init__(
        self,
        model: nn.Module,
        fed: Federation,
        *,
        client: Client | Blend,
        server: Server | None = None,
        cohort: Any = None,
        epochs: float | None = None,
        steps: int | Sequence[int] | Tensor | None = None,
        batch_size: int = 20,
        across_epochs: bool = False,
        loss: Loss = "cross_entropy",
        weights: Literal["examples", "uniform"] | Sequence[float] | Tensor = "examples",
        divide_by_steps: bool = False,
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
        server = FedAvg() if server is None else server
        given = {name: value for name, value in locals().items() if name not in ("self", "model", "fed")}
        self.settings: dict[str, Any] = {**given, "device": written(device)}
        devices = find_devices(device)
        self.device = devices[0]
        self.model, self.fed = model, fed
        check_settings(self.settings, fed)
        self.packing = Packing.of(model)
        self._bytes = {
            "bytes_down": costs.bytes_down(self.packing, exchange),
            "bytes_up": costs.bytes_up(self.packing, exchange, compression),
        }
        split = None if exchange is None else exchange.split
        self.executor = make(executor, model, loss, fed.examples, threads=threads, device=devices, split=split)
        self.planner = self._make_planner()
        self.aggregator = self._make_aggregator()
        self.server = ServerModel(server, self.packing.pack(model).to(self.device))
        self.companion = None if exchange is None else exchange.begin(self.params, len(fed))
        self.tuner, self.tuning = self._make_tuner()
        self.history = History()
        self._run = run_id(self.settings, self.server.x)
        self._resumed = False
        self._rows: dict[Path, Rows] = {}  # by the directories of checkpoints
        self._beginnings: dict[Path, Any] = {}  # where it was resumed: what the checkpoint knew of its rows
        self._between_rounds = True
        self._optimizer_bytes = costs.optimizer_bytes(client, self.packing, exchange, compression)
        self._evaluator: Evaluator | None = None

    # ---- the rooms --------------------------------------------------------------------------------------------------

    def _make_planner(self) -> Planner:
        """Who takes part and when; what cannot be planned is refused now, not in the first round."""
        of, clients = self.settings, len(self.fed)
        tuner, timing = of["tuner"], of["timing"]
        local = LocalWork(
            epochs=1.0 if of["epochs"] is None and of["steps"] is None else of["epochs"],
            steps=of["steps"],
            batch_size=of["batch_size"],
            across_epochs=of["across_epochs"],
            counting="epochs" if tuner is None else tuner.counting,
        )
        local.check(clients)
        orders = Orders(
            sizes=self.fed.sizes,
            local=local,
            client=of["client"],
            server_lr=of["server"].lr,
            client_schedule=of["client_schedule"],
            server_schedule=of["server_schedule"],
            seed=of["seed"],
        )
        who = None if timing is not None else participation(of["cohort"])
        check_privacy(of, who)
        if who is None:
            planner: Planner = timing.begin(orders, sum(self._bytes.values()))
        else:
            who.check(clients)
            planner = SyncPlanner(orders, who)
            planner.plan(0, Tuning())
        return planner

    def _make_aggregator(self) -> Aggregator:
        of = self.settings
        weights: Fixed | Relative = Relative(of["weights"], len(self.fed))
        noise, compressor = None, None
        self.ledger: Ledger | None = None
        if of["privacy"] is not None:
            rate = self._rate()
            expected = rate * len(self.fed)
            weights = Fixed(1 / expected)
            noise = Noise(of["privacy"], expected, self.packing, of["seed"], device=self.device)
            self.ledger = Ledger(of["privacy"], rate)
        if of["compression"] is not None:
            compressor = Compressor(of["compression"], self.packing, self.packing.dtype, device=self.device)
        return Chain(
            Mean() if of["aggregation"] is None else of["aggregation"],
            weights,
            of["seed"],
            divide_by_steps=of["divide_by_steps"],
            clip=of["delta_clip"],
            compressor=compressor,
            noise=noise,
        )

    def _rate(self) -> float:
        """The probability of a client to be in a cohort, which privacy accounting rests on."""
        who = participation(self.settings["cohort"])
        assert isinstance(who, Poisson)
        return who.rate

    def _make_tuner(self) -> tuple[Tuner, Tuning]:
        tuner, of = self.settings["tuner"], self.settings
        if tuner is None:
            return Untuned(), Tuning()
        epochs = 1.0 if of["epochs"] is None else float(of["epochs"])
        begun = tuner.begin(self.params, of["client"].lr, epochs, of["batch_size"])
        return begun, Tuning(of["client"].lr, epochs, float(of["batch_size"]))

    @property
    def params(self) -> Tensor:
        """The global model, packed (d,)."""
        return self.server.x

    @cached_property
    def _fingerprint(self) -> str:
        return self.fed.fingerprint()

    @property
    def round(self) -> int:
        """How many rounds have been run."""
        return len(self.history)

    def trained_model(self) -> nn.Module:
        """A copy of the module that holds the global model."""
        trained = copy.deepcopy(self.model)
        self.packing.unpack(self.params, trained)
        return trained

    # ---- a round ----------------------------------------------------------------------------------------------------

    def step(self) -> Row:
        """Runs one round; its row of the history, not evaluated."""
        if self.ledger is not None:
            self.ledger.allow(self.round + 1)
        row = self._step(math.inf)
        assert row is not None
        return row

    def _step(self, until: float) -> Row | None:
        """One round; None if a simulated clock comes to `until` seconds before it is complete."""
        clock = _Clock()
        with clock("plan"):
            plan = self.planner.plan(self.round, self.tuning, until)
        return None if plan is None else self._carry_out(plan, clock)

    def flush(self) -> Row | None:
        """On a simulated clock, a round with the updates that are in the buffer now; None if there are none."""
        if not isinstance(self.planner, Clocked):
            raise ValueError("timing: only a simulated clock (EventDriven, Waves) has a buffer to flush")
        clock = _Clock()
        with clock("plan"):
            plan = self.planner.arrived(self.round, self.tuning)
        return self._carry_out(plan, clock) if len(plan) else None

    def _carry_out(self, plan: RoundPlan, clock: _Clock) -> Row:
        with clock("train"):
            work, outcome = self._train(plan)
        with _uninterrupted():  # what follows happens as a whole, so that Ctrl-C leaves a state between two rounds
            self._between_rounds = False
            with clock("aggregate"):
                aggregate = self._aggregate(plan, outcome)
            with clock("step"):
                if self.planner.versions() is not None:
                    self.server.past.put(plan.round, self.params)
                changed = self.server.step(aggregate, plan.server_lr)
            with clock("tune"):
                tuned = self.tuning
                self._learn(plan, work, outcome, aggregate, changed)
                self.planner.commit()
                self.server.past.keep(self.planner.versions() or ())
            with clock("record"):
                row = finite(self._row(plan, outcome, aggregate, changed, tuned))
                self.history.rounds.append(row)
            row |= clock.seconds
            self._between_rounds = True
        return row

    def _train(self, plan: RoundPlan) -> tuple[RoundWork | None, Outcome | None]:
        if len(plan) == 0:  # a Poisson cohort may be empty
            return None, None
        visit = self.fed.visit(plan.cohort)
        extras = {} if self.companion is None else self.companion.extras(plan.cohort, self.server.state)
        start, model = self.server.starts(plan.round, plan.age)
        companion_keeps = self.companion is not None and self.companion.keeps_deltas
        work = RoundWork(
            start=start.clone() if companion_keeps else start,  # deltas are absorbed after the server's step
            model=model,
            rows=visit.rows,
            offsets=visit.offsets,
            ids=plan.cohort,
            steps=plan.steps,
            positions=plan.positions,
            batch_size=plan.batch_size,
            clients=plan.clients,
            rule=plan.rule,
            lr=plan.lr,
            seed=self.settings["seed"],
            round=plan.round,
            policy=self.aggregator.policy(plan, visit.offsets.diff()),
            keep_deltas=self.aggregator.keeps_deltas or companion_keeps,
            measure_cosine=self.tuner.measures_cosine,
            cosine_includes_step=self.tuner.cosine_includes_step,
            examples=None if visit.examples is self.fed.examples else visit.examples,
            **extras,
        )
        return work, self.executor.run(work)

    def _aggregate(self, plan: RoundPlan, outcome: Outcome | None) -> Aggregate:
        if outcome is None:
            return self.aggregator.nobody(plan, self.params)
        return self.aggregator.aggregate(plan, outcome)

    def _learn(
        self, plan: RoundPlan, work: RoundWork | None, outcome: Outcome | None, aggregate: Aggregate, changed: bool
    ) -> None:
        if work is None or outcome is None or not changed:
            return
        if self.companion is not None:
            self.companion.absorb(work, outcome)
        self.tuning = self.tuner.tune(plan, outcome, aggregate)

    def _row(self, plan: RoundPlan, outcome: Outcome | None, aggregate: Aggregate, changed: bool, tuned: Tuning) -> Row:
        row: Row = {"round": plan.round + 1, **training_columns(outcome, aggregate)}
        row |= {"changed": changed, "server_lr": plan.server_lr}
        downloads = len(plan) if plan.downloads is None else plan.downloads
        row["bytes_down"] = self._bytes["bytes_down"] * downloads
        row["bytes_up"] = self._bytes["bytes_up"] * (len(plan) + plan.late_uploads)
        row["client_optimizer_bytes"] = self._optimizer_bytes
        if tuned != Tuning():
            row |= {"client_lr": tuned.lr, "epochs": tuned.epochs, "batch_size": tuned.batch_size}
        if self.ledger is not None:
            row["epsilon"] = self.ledger.epsilon(plan.round + 1)
        return row | dict(plan.columns) | dict(aggregate.columns)

    # ---- a run ------------------------------------------------------------------------------------------------------

    def run(
        self,
        rounds: int | None = None,
        *,
        until: int | None = None,
        until_clock: float | None = None,
        flush: bool = False,
        evaluate_every: int = 10,
        per_client: bool = False,
        target: Mapping[str, float] | None = None,
        checkpoint: str | Path | None = None,
        checkpoint_every: int = 10,
        keep: int = 3,
        log: str | Path | None = None,
        tensorboard: str | Path | None = None,
        progress: bool | None = None,
        hooks: Sequence[Hooked] = (),
    ) -> History:
        """Runs `rounds` more rounds, or on `until` that many have been run in all. The history of the whole run.

        On a simulated clock, `until_clock` ends the run after that many simulated seconds, perhaps in the middle of a
        round, which the next run goes on with, or which `flush` completes with the updates that are there; `rounds` may
        then be left out. A run with a `target_epsilon` of privacy ends before the round that would exceed it.

        The test set is evaluated after every `evaluate_every`-th round and after the last (0: never), with
        `per_client` also the spread over clients. `target`, such as ``{"test_accuracy": 0.86}``, ends the run once it
        is reached. `checkpoint` is a directory that gets one every `checkpoint_every` rounds, at the end, and on
        Ctrl-C; the last `keep` and the best stay. `log` is a file of JSON lines, `tensorboard` a directory of events.
        `progress` False silences the bar (on a terminal) or the lines (elsewhere). `hooks` (``ff.hooks.Hook``) are told
        of every round once it is evaluated, and may end the run.
        """
        end = self._end_of_run(rounds, until, until_clock)
        if flush and until_clock is None:
            raise ValueError("flush: only a run that ends by until_clock may leave a partly filled buffer")
        for name, value in (("evaluate_every", evaluate_every), ("checkpoint_every", checkpoint_every), ("keep", keep)):
            if isinstance(value, bool) or not isinstance(value, int) or value < (0 if name == "evaluate_every" else 1):
                raise ValueError(f"{name}: must be a whole number >= {int(name != 'evaluate_every')}, got {value!r}")
        self._check_target(target, evaluate_every, per_client)
        for hook in hooks:
            if not isinstance(hook, Hooked):
                raise TypeError(f"hooks: must have the methods of fastfed.hooks.Hook, got {hook!r}")
        if checkpoint:
            checkpoints.claim(checkpoint, self._run, self.round, self._resumed)
        known = None if end == _MOST_ROUNDS else end
        all_hooks: list[Hooked] = [Evaluating(evaluate_every, per_client, end), Target(target or {}), *hooks]
        all_hooks += [Writing(log, tensorboard), Showing(progress, known)]
        all_hooks += [Saving(checkpoint, checkpoint_every, keep)] if checkpoint else []
        self._go_on(end, math.inf if until_clock is None else until_clock, flush, all_hooks)
        return self.history

    def _go_on(self, end: int, horizon: float, flush: bool, hooks: Sequence[Hooked]) -> None:
        """Rounds until the `end`, the `horizon` of a simulated clock, or until a hook asks to stop."""
        begun: list[Hooked] = []
        try:
            for hook in hooks:
                hook.begin(self)
                begun.append(hook)
            time_is_up = False
            while self.round < end and not time_is_up and not any(hook.asks_to_stop(self) for hook in hooks):
                row = self._step(horizon)
                time_is_up = row is None
                row = self.flush() if time_is_up and flush else row
                if row is not None:
                    last = time_is_up or self._ends_with_this_round(end, horizon, flush)
                    for hook in hooks:
                        hook.after_round(self, row, last)
                        last = last or hook.asks_to_stop(self)
                else:
                    for hook in hooks:
                        hook.interrupted(self)
        except BaseException:  # Ctrl-C above all, but nothing that was trained should be lost to any error
            if self._between_rounds:
                for hook in begun:
                    hook.interrupted(self)
            raise
        finally:
            for hook in reversed(begun):
                hook.end(self)

    def _end_of_run(self, rounds: int | None, until: int | None, until_clock: float | None) -> int:
        """After how many rounds in all a run ends."""
        if until_clock is not None:
            if not isinstance(self.planner, Clocked):
                raise ValueError("until_clock: only a simulated clock (timing EventDriven or Waves) has a time")
            if not 0 <= until_clock < math.inf:
                raise ValueError(f"until_clock: must be a number of seconds >= 0, got {until_clock!r}")
        if rounds is None and until is None and until_clock is not None:
            end = _MOST_ROUNDS
        else:
            end = _end_of_run(self.round, rounds, until)
        target = None if self.ledger is None else self.ledger.privacy.target_epsilon
        if self.ledger is None or target is None:
            return end
        return min(end, max(self.round, self.ledger.rounds_within(target)))

    def _ends_with_this_round(self, end: int, horizon: float, flush: bool) -> bool:
        """Whether no other round is complete by the `end`, or by the `horizon` of the simulated clock."""
        if self.round == end or horizon == math.inf or not isinstance(self.planner, Clocked):
            return self.round == end
        if self.planner.plan(self.round, self.tuning, horizon) is not None:
            return False
        return not (flush and len(self.planner.arrived(self.round, self.tuning)))

    def _check_target(self, target: Mapping[str, float] | None, evaluate_every: int, per_client: bool) -> None:
        """A target is one that this run can measure."""
        metric = metric_of(self.settings["loss"])
        tested = {"test_loss", f"test_{metric}"} if self.fed.test is not None else set()
        spread = {f"client_{metric}_{part}" for part in ("mean", "p10", "p90")} if per_client else set()
        for name in target or ():
            if name != "train_loss" and name not in tested | spread:
                known = ", ".join(["train_loss", *sorted(tested | spread)])
                raise ValueError(f"target: this run does not measure {name!r}; it measures {known}")
            if name != "train_loss" and not evaluate_every:
                raise ValueError(f"target: {name} is never measured with evaluate_every=0")

    @property
    def metric(self) -> str:
        """The column that says how good the model is."""
        return f"test_{metric_of(self.settings['loss'])}"

    def evaluate(self, *, per_client: bool = False) -> dict[str, float]:
        """The global model on the test set: test_loss and test_accuracy, test_recall_at_5 or test_mse.

        With `per_client`, also the metric's mean, 10th and 90th percentile over the clients that have examples (at most
        1,000, spread over all), on their test examples where the data has any, else on their training examples; their
        names begin with client_.
        """
        if self._evaluator is None:
            threads, device = self.settings["threads"], self.device
            predict = getattr(self.executor, "predict", None)
            loss = self.settings["loss"]
            self._evaluator = Evaluator(self.model, loss, predict=predict, threads=threads, device=device)
        found: dict[str, float] = {}
        if self.fed.test is not None:
            metrics = self._evaluator.evaluate(self.params, self.fed.test)
            found |= {f"test_{name}": value for name, value in metrics.items()}
        if per_client:
            visit = evaluation_visit(self.fed)
            metrics = self._evaluator.per_client(self.params, visit)
            found |= {f"client_{name}": value for name, value in metrics.items()}
        if not found:
            raise ValueError(
                f"fed: {self.fed.name} has no test set; per_client=True evaluates on the clients' examples"
            )
        return found

    def _evaluate_into(self, row: Row, per_client: bool) -> None:
        if self.fed.test is None and not per_client:
            return
        began = time.perf_counter()
        row |= finite(self.evaluate(per_client=per_client))
        row["seconds_evaluate"] = time.perf_counter() - began

    # ---- checkpoints ------------------------------------------------------------------------------------------------

    def save(self, path: str | Path, *, keep: int | None = None) -> Path:
        """Writes a checkpoint of everything into the directory `path`; the file to resume from.

        With `keep`, all but the last `keep` and the best are removed.
        """
        home = Path(path).resolve()
        if home not in self._rows:
            self._rows[home] = Rows(home, self._beginnings.get(home))
        beginning = self._rows[home].add(self.history.rounds)
        target = checkpoints.write(path, self.round, self._tensors(), self._manifest() | {"history": beginning})
        if keep is not None:
            checkpoints.prune(path, keep, spare=self._best_round(checkpoints.rounds_of(path)))
        return target

    @classmethod
    def resume(
        cls, path: str | Path, *, model: nn.Module | None = None, fed: Federation | None = None, **settings: Any
    ) -> Simulation:
        """The simulation of a checkpoint: a file, or a directory, whose newest is taken. It goes on to the same bits.

        A model of ``ff.models`` and data of ``ff.data`` are made again; others must be given, and so must settings that
        JSON cannot hold (callables, tensors). `threads` may be changed, and so may `executor` and `device`, which agree
        to rounding only; on another kind of device, an executor that does not know it is replaced by "auto".
        """
        manifest, tensors = checkpoints.read(path)
        model = model_again(made_again("model", manifest["model"], model), manifest, below("constant.", tensors))
        fed = made_again("fed", manifest["data"], fed)
        if fed.fingerprint() != manifest["fingerprint"]:
            raise ValueError(f"fed: is not the data of this checkpoint ({manifest['data_name']}): its contents differ")
        saved = manifest["settings"]
        sim = cls(model, fed, **settings_again(saved, moved(saved, settings)))
        sim._load(manifest, tensors)
        if "beginning" in manifest:
            sim._beginnings[checkpoints.newest(path).parent.resolve()] = manifest["beginning"]
        return sim

    def _tensors(self) -> dict[str, Tensor]:
        tensors = self.server.tensors()
        if self.companion is not None:
            tensors |= {f"exchange.{name}": tensor for name, tensor in self.companion.tensors().items()}
        for room, held in (
            ("tuner", self.tuner.state()),
            ("planner", self.planner.tensors()),
            ("aggregator", self.aggregator.tensors()),
        ):
            tensors |= {f"{room}.{name}": tensor for name, tensor in held.items()}
        return tensors | {f"constant.{name}": tensor for name, tensor in constants(self.model).items()}

    def _saved_settings(self) -> dict[str, Any]:
        """The settings, with the executor that "auto" stands for here."""
        return {**self.settings, "executor": self.executor.name}

    def _manifest(self) -> dict[str, Any]:
        model_recipe, data_recipe = recipe_of(self.model), recipe_of(self.fed)
        return {
            "fastfed": __version__,
            "run": self._run,
            "settings": {name: setting_json(name, value) for name, value in self._saved_settings().items()},
            "model": model_recipe and model_recipe.json(),
            "module": describe(self.model),
            "data": data_recipe and data_recipe.json(),
            "data_name": self.fed.name,
            "fingerprint": self._fingerprint,
        }

    def _load(self, manifest: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.server.load(tensors)
        if self.companion is not None:
            self.companion.load(below("exchange.", tensors))
        self.tuning = self.tuner.load(below("tuner.", tensors))
        self.planner.load(below("planner.", tensors))
        self.aggregator.load(below("aggregator.", tensors))
        self.history = History(manifest["history"])
        self._run, self._resumed = manifest["run"], True

    def _best_round(self, among: Collection[int]) -> list[int]:
        """The evaluated round of these with the best metric, if there is one."""
        rows = [self.history.rounds[number - 1] for number in sorted(among) if 1 <= number <= self.round]
        rows = [row for row in rows if row.get(self.metric) is not None]
        if not rows:
            return []
        best = History(rows).best(self.metric)
        return [row["round"] for row in rows if row[self.metric] == best][:1]


class _Clock:
    """Seconds per room."""

    def __init__(self) -> None:
        self.seconds = {f"seconds_{room}": 0.0 for room in ROOMS}

    @contextmanager
    def __call__(self, room: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[f"seconds_{room}"] += time.perf_counter() - began


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits for the end of the block. Only the main thread is ever interrupted by it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[tuple[Any, Any]] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: waiting.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if waiting and callable(before):
        before(*waiting[0])


_MOST_ROUNDS = 1 << 31


def _end_of_run(done: int, rounds: int | None, until: int | None) -> int:
    if (rounds is None) == (until is None):
        raise ValueError(f"rounds: give either rounds or until, got {rounds!r} and {until!r}")
    wanted = rounds if until is None else until
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 0:
        raise ValueError(f"rounds: must be a whole number >= 0, got {wanted!r}")
    return done + wanted if until is None else wanted
