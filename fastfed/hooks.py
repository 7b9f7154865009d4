"""What a run does besides its rounds: evaluate, look for a target, write rows, show progress, save checkpoints.

Each is a hook, and users add theirs: ``sim.run(rounds=100, hooks=[MyHook()])``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from .fine_tune import FineTune
from .record.evaluate import higher_is_better, validation_rows
from .record.history import Row, finite, reaches
from .record.progress import Display, display
from .record.writers import Recorder, recorders

if TYPE_CHECKING:
    from .ranks import Ranks
    from .simulation import Simulation


OnRound = Callable[["Simulation", Row], Any]


@runtime_checkable
class Hooked(Protocol):
    """What is asked of a hook: the methods of `Hook`."""

    def begin(self, sim: Simulation) -> None: ...

    def after_round(self, sim: Simulation, row: Row, last: bool) -> None: ...

    def asks_to_stop(self, sim: Simulation) -> bool: ...

    def interrupted(self, sim: Simulation) -> None: ...

    def end(self, sim: Simulation) -> None: ...


class Hook:
    """A hook that does nothing: a class of its own overrides what it needs. Hooks are called in their order."""

    def begin(self, sim: Simulation) -> None:
        """Before the first round of a run."""

    def after_round(self, sim: Simulation, row: Row, last: bool) -> None:
        """After a round, with its row of the history, to which a hook may add columns that JSON can hold. `last`: no
        other round will be run, as far as is known."""

    def asks_to_stop(self, sim: Simulation) -> bool:
        """Whether the run should end here; asked before every round and after it."""
        return False

    def interrupted(self, sim: Simulation) -> None:
        """The run was stopped by an error or Ctrl-C, or by a simulated clock, between two rounds: what must not be lost
        is to be saved now."""

    def end(self, sim: Simulation) -> None:
        """However the run ended."""


@dataclass(frozen=True)
class Evaluated:
    """What is evaluated besides the test set and the validation set."""

    training: bool = False
    per_client: bool = False
    fine_tune: FineTune | None = None


class Evaluating(Hook):
    """Metrics of the test set after every `every`-th round and after the last (0: never)."""

    def __init__(self, every: int, besides: Evaluated, end: int) -> None:
        self.every, self.besides, self.last_round = every, besides, end

    def begin(self, sim: Simulation) -> None:
        """A run that was interrupted while it evaluated has a last row without metrics."""
        if sim.round and self._is_due(sim, sim.round == self.last_round):
            row = sim.history.rounds[-1]
            if "seconds_evaluate" not in row:
                self._evaluate(sim, row)

    def after_round(self, sim: Simulation, row: Row, last: bool) -> None:
        if self._is_due(sim, last):
            self._evaluate(sim, row)

    def _evaluate(self, sim: Simulation, row: Row) -> None:
        nothing_held = sim.fed.test is None and validation_rows(sim.fed) is None
        if nothing_held and self.besides == Evaluated():
            return
        began = time.perf_counter()
        measured = sim.evaluate(
            training=self.besides.training, per_client=self.besides.per_client, fine_tune=self.besides.fine_tune
        )
        row |= finite(measured)
        row["seconds_evaluate"] = time.perf_counter() - began

    def _is_due(self, sim: Simulation, last: bool) -> bool:
        return self.every > 0 and (sim.round % self.every == 0 or last)


class Target(Hook):
    """Ends a run whose last row is as good as wanted."""

    def __init__(self, wanted: Mapping[str, float]) -> None:
        self.wanted = wanted

    def asks_to_stop(self, sim: Simulation) -> bool:
        if not self.wanted or not sim.history.rounds:
            return False
        last = sim.history.rounds[-1]
        return all(reaches(name, last.get(name), value) for name, value in self.wanted.items())


@dataclass(frozen=True)
class Patience:
    """When a run has waited long enough: after so many measurements of a `column` in a row (`times`) of which none was
    better than the best before them by more than `least`.

    `column` is by default the one that says how good the model is (``Simulation.metric``); `mode` "max" or "min" says
    what is better, by default as the column's name has it. What is not finite is no better.
    """

    times: int
    column: str | None = None
    mode: Literal["max", "min"] | None = None
    least: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.times, bool) or not isinstance(self.times, int) or self.times < 1:
            raise ValueError(f"times: must be a whole number >= 1, got {self.times!r}")
        if self.mode not in (None, "max", "min"):
            raise ValueError(f"mode: must be 'max' or 'min', got {self.mode!r}")
        if isinstance(self.least, bool) or not isinstance(self.least, int | float) or not 0 <= self.least < math.inf:
            raise ValueError(f"least: must be a number >= 0, got {self.least!r}")


class Waiting(Hook):
    """Ends a run by `Patience`. It goes by the rows of the history, so that a run that is resumed has waited as long as
    one that was never stopped."""

    def __init__(self, patience: Patience, column: str) -> None:
        self.times, self.column, self.least = patience.times, column, patience.least
        self._sign = {"max": 1, "min": -1, None: 1 if higher_is_better(column) else -1}[patience.mode]
        self._best: float | None = None
        self._waited = 0

    def begin(self, sim: Simulation) -> None:
        self._best, self._waited = None, 0
        for row in sim.history:
            self._look(row)

    def after_round(self, sim: Simulation, row: Row, last: bool) -> None:
        self._look(row)

    def asks_to_stop(self, sim: Simulation) -> bool:
        if self._waited < self.times:
            return False
        best = "no finite one" if self._best is None else f"{self._best:.4g}"
        sim.notes.add(
            f"patience: {self.column} was no better than {best} in the last {self.times} measurements; "
            f"the run ends after round {sim.round}"
        )
        return True

    def _look(self, row: Row) -> None:
        if self.column not in row:
            return
        value = row[self.column]
        if value is not None and (self._best is None or self._sign * (value - self._best) > self.least):
            self._best, self._waited = value, 0
        else:
            self._waited += 1


class Watching(Hook):
    """Says so where every client of every round was refused, from the third round on, or at the end."""

    _SURE = 3

    def after_round(self, sim: Simulation, row: Row, last: bool) -> None:
        if sim.round == self._SURE or (last and sim.round < self._SURE):
            rows = sim.history.rounds
            if all(one["skipped"] and not one["counted"] for one in rows):
                many = "the first round" if len(rows) == 1 else f"the first {len(rows)} rounds"
                sim.notes.add(
                    f"clients: all of {many} were refused: their deltas or losses were not finite, so the model has "
                    "not moved; lower the learning rate, or look at the data"
                )


class Calling(Hook):
    """Calls a function after every round; it ends the run if that gives True."""

    def __init__(self, function: OnRound) -> None:
        self._function, self._ends = function, False

    def begin(self, sim: Simulation) -> None:
        self._ends = False

    def after_round(self, sim: Simulation, row: Row, last: bool) -> None:
        self._ends = self._function(sim, row) is True

    def asks_to_stop(self, sim: Simulation) -> bool:
        return self._ends


class Writing(Hook):
    """Rows into a file of JSON lines, or TensorBoard's events."""

    def __init__(self, log: str | Path | None, tensorboard: str | Path | None) -> None:
        self.log, self.tensorboard = log, tensorboard
        self._open = ExitStack()
        self._writers: list[Recorder] = []

    def begin(self, sim: Simulation) -> None:
        self._writers = self._open.enter_context(recorders(self.log, self.tensorboard, sim.history))

    def after_round(self, sim: Simulation, row: Row, last: bool) -> None:
        for writer in self._writers:
            writer.write(row)

    def end(self, sim: Simulation) -> None:
        self._open.close()


class Showing(Hook):
    """Progress on the terminal, and what there is to say; `total` rounds, None if nobody knows."""

    def __init__(self, wanted: bool | None, total: int | None) -> None:
        self.wanted, self.total = wanted, total
        self._open = ExitStack()
        self._display: Display | None = None

    def begin(self, sim: Simulation) -> None:
        self._display = self._open.enter_context(display(self.wanted, sim.round, self.total))
        self._tell(sim)

    def after_round(self, sim: Simulation, row: Row, last: bool) -> None:
        if self._display is not None:
            self._display.show(row)
        self._tell(sim)

    def end(self, sim: Simulation) -> None:
        self._tell(sim)
        self._open.close()

    def _tell(self, sim: Simulation) -> None:
        if self._display is not None and self._display.speaks:
            for sentence in sim.notes.unseen():
                self._display.say(sentence)


class Ruled(Hook):
    """A user's hook on one of several ranks: all do as that of the first says, which may look at a clock."""

    def __init__(self, hook: Hooked, ranks: Ranks) -> None:
        self.hook, self.ranks = hook, ranks
        self.begin, self.after_round = hook.begin, hook.after_round  # type: ignore[method-assign]
        self.interrupted, self.end = hook.interrupted, hook.end  # type: ignore[method-assign]

    def asks_to_stop(self, sim: Simulation) -> bool:
        return self.ranks.on_first(lambda: self.hook.asks_to_stop(sim))


class Saving(Hook):
    """Checkpoints into a directory: every `every` rounds, of the best round so far, at the end, and when a run is
    stopped. The last `keep` and the best stay."""

    def __init__(self, directory: str | Path, every: int, keep: int) -> None:
        self.directory, self.every, self.keep = directory, every, keep
        self._best: float | None = None

    def begin(self, sim: Simulation) -> None:
        if sim.history.values(sim.metric):
            self._best = sim.history.best(sim.metric)

    def after_round(self, sim: Simulation, row: Row, last: bool) -> None:
        if self._is_best(sim, row) or last or sim.round % self.every == 0:
            sim.save(self.directory, keep=self.keep)

    def interrupted(self, sim: Simulation) -> None:
        sim.save(self.directory, keep=self.keep)

    def _is_best(self, sim: Simulation, row: Row) -> bool:
        """Whether a round's metric is better than every one before it."""
        value = row.get(sim.metric)
        if value is None or (self._best is not None and reaches(sim.metric, self._best, value)):
            return False
        self._best = value
        return True
