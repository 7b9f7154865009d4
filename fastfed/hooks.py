"""What a run does besides its rounds: evaluate, look for a target, write rows, show progress, save checkpoints.

Each is a hook, and users add theirs: ``sim.run(rounds=100, hooks=[MyHook()])``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from .record.evaluate import validation_rows
from .record.history import Row, finite, reaches
from .record.progress import Display, display
from .record.writers import Recorder, recorders

if TYPE_CHECKING:
    from .ranks import Ranks
    from .simulation import Simulation


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
        row |= finite(sim.evaluate(training=self.besides.training, per_client=self.besides.per_client))
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
    """Progress on the terminal; `total` rounds, None if nobody knows."""

    def __init__(self, wanted: bool | None, total: int | None) -> None:
        self.wanted, self.total = wanted, total
        self._open = ExitStack()
        self._display: Display | None = None

    def begin(self, sim: Simulation) -> None:
        self._display = self._open.enter_context(display(self.wanted, sim.round, self.total))

    def after_round(self, sim: Simulation, row: Row, last: bool) -> None:
        if self._display is not None:
            self._display.show(row)

    def end(self, sim: Simulation) -> None:
        self._open.close()


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
