"""What a sweep is asked to do: the table ``[sweep]`` of a file, and what the command line says on top of it.

[sweep]
seeds = 3                      # run.seed, and the two after it
metric = "test_accuracy"       # what is reported; default: the one that goes with the loss
select = "train_loss"          # what settings are chosen by; default: the metric on the validation set, else train_loss
last = 1                       # evaluations that the metric is the mean of, or
last_rounds = 100              # rounds that both are the mean over
tune_on = { "data.alpha" = 0.1 }    # choose on this task, and run the others with what was chosen

[sweep.grid]                   # axes that all variants have
"client.lr" = "1e-3:1e0:log7"
"server.lr" = [0.01, 0.1, 1.0]

[[sweep.variants]]             # one axis whose values set several keys at once
name = "FedAvg"
set = { method = "fedavg" }

[[sweep.variants]]
name = "FedYogi"
set = { method = "fedyogi", server.beta1 = 0.9 }
grid = { "server.tau" = "1e-5:1e-1:log5" }      # axes of this variant alone
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...checks import nearest
from ...record.history import History
from ..config import ConfigError
from ..counting import counted
from ..report.entries import flatten
from .grid import GridAxis, make_axis, parse_axis

TABLE = "sweep"
_KEYS = ("seeds", "metric", "select", "last", "last_rounds", "tune_on", "grid", "variants")
_OF_VARIANT = ("name", "set", "grid")
TRAIN_LOSS = "train_loss"
_MOST_ROUNDS = 100  # of the training loss: as in AFO
_SEED, _SEEDS, _NAME, THREADS = "run.seed", "--seeds", "name", "run.threads"


@dataclass(frozen=True)
class Variant:
    """A name for several settings at once, by dotted keys, with axes of its own. Both take the place of shared axes
    with the same keys."""

    name: str
    sets: Mapping[str, Any]
    axes: tuple[GridAxis, ...] = ()


@dataclass(frozen=True)
class Window:
    """Which values of a column a run is judged by: those of its last `rounds`, or the last so many `evaluations`. Where
    neither is given it is the last one; of the training loss, which is told in every round, those of the last 100
    rounds, or of the last tenth of a run where that is less."""

    evaluations: int | None = None
    rounds: int | None = None

    @classmethod
    def of(cls, evaluations: int | None, rounds: int | None, where: str) -> Window:
        """From what was asked for, of which one may be missing, or both."""
        if evaluations is not None and rounds is not None:
            raise ConfigError(f"{where}: give a number of evaluations or of rounds (last_rounds), not both")
        return cls(evaluations, rounds)

    def final(self, history: History, column: str) -> float | None:
        """The mean of the column's values that count; None where one of them was not finite, or there are none."""
        rows = [row for row in history if column in row]
        if self.rounds is not None:
            rows = [row for row in rows if row["round"] > len(history) - self.rounds]
        elif self.evaluations is not None:
            rows = rows[-self.evaluations :]
        else:
            rows = rows[-max(1, min(_MOST_ROUNDS, len(history) // 10)) if column == TRAIN_LOSS else -1 :]
        values = [row[column] for row in rows]
        return statistics.fmean(values) if values and None not in values else None

    def words(self, column: str, name: str) -> str:
        """A column in words, with what it is the mean of."""
        if self.rounds is not None:
            return f"{name}, last {counted(self.rounds, 'round')}"
        if self.evaluations is not None:
            return f"{name}, mean of the last {self.evaluations}" if self.evaluations > 1 else f"final {name}"
        return f"{name}, last tenth of the rounds" if column == TRAIN_LOSS else f"final {name}"


@dataclass(frozen=True)
class Spec:
    """A grid: every combination of the axes' values, for each variant (if there are any) and each of the seeds.

    `metric`, which is reported, is by default the one that goes with the loss; `select`, by which settings are chosen,
    the same on the validation set where there is one, else the training loss: never the test set, unless it is asked
    for. `window` says which of their values count. `tune_on`: values on axes that name the task on which all others'
    numbers are chosen (``transfer.py``); {}: every task has its own.
    """

    axes: tuple[GridAxis, ...] = ()
    variants: tuple[Variant, ...] = ()
    seeds: int = 1
    metric: str | None = None
    select: str | None = None
    window: Window = field(default_factory=Window)
    tune_on: Mapping[str, Any] = field(default_factory=dict)

    def with_grid(self, texts: Sequence[str]) -> Spec:
        """With axes of the command line, which take the place of those with the same keys, variants' too."""
        given = [parse_axis(text) for text in texts]
        keys = [axis.key for axis in given]
        for key in keys:
            if keys.count(key) > 1:
                raise ConfigError(f"--grid: {key} is given twice; give all its values at once, as in {key}=a,b,c")
        others = self.without(keys)
        return others._checked(axes=(*others.axes, *given))

    def without(self, keys: Collection[str]) -> Spec:
        """Without the axes of these keys, also where variants have or set them."""
        return replace(
            self,
            axes=_others(self.axes, keys),
            variants=tuple(
                Variant(one.name, {k: v for k, v in one.sets.items() if k not in keys}, _others(one.axes, keys))
                for one in self.variants
            ),
        )

    def _checked(self, **changes: Any) -> Spec:
        changed = replace(self, **changes)
        for axis in changed.all_axes():
            if axis.key == _SEED and changed.seeds > 1:
                raise ConfigError(f"{_SEEDS}: {_SEED} is an axis of the grid already; give the one or the other")
            if axis.key == _NAME:
                raise ConfigError("--grid: name cannot be an axis; the runs of a sweep are named by their settings")
            if axis.key == THREADS:
                raise ConfigError(f"--grid: {THREADS} cannot be an axis, as it changes no result; see --threads")
        return changed

    def with_options(
        self, seeds: int | None, metric: str | None, select: str | None, last: int | None, last_rounds: int | None
    ) -> Spec:
        """With what the command line says of seeds and metrics, where it does."""
        given: dict[str, Any] = {"seeds": seeds, "metric": metric, "select": select}
        if last is not None or last_rounds is not None:
            given["window"] = Window.of(last, last_rounds, "--last")
        return self._checked(**{name: value for name, value in given.items() if value is not None})

    def all_axes(self) -> tuple[GridAxis, ...]:
        """The shared ones and the variants'."""
        return (*self.axes, *(axis for variant in self.variants for axis in variant.axes))

    def axes_of(self, variant: Variant | None) -> tuple[GridAxis, ...]:
        """The axes of a variant's points."""
        if variant is None:
            return self.axes
        return (*_others(self.axes, {*variant.sets, *(axis.key for axis in variant.axes)}), *variant.axes)


def _others(axes: tuple[GridAxis, ...], keys: Collection[str]) -> tuple[GridAxis, ...]:
    return tuple(axis for axis in axes if axis.key not in keys)


def read_spec(table: Any) -> Spec:
    """The spec of a table ``[sweep]``; {} is one without axes."""
    where = TABLE
    _check_table(table, where, _KEYS)
    for key in ("metric", "select"):
        if key in table and (not isinstance(table[key], str) or not table[key]):
            raise ConfigError(f"{where}.{key}: must be a column of the rounds, as in test_accuracy, got {table[key]!r}")
    variants = table.get("variants", [])
    if not isinstance(variants, list):
        raise ConfigError(f"{where}.variants: must be tables [[sweep.variants]], got {variants!r}")
    tune_on = table.get("tune_on", {})
    if not isinstance(tune_on, Mapping):
        raise ConfigError(f"{where}.tune_on: must be a table of dotted keys and values, got {tune_on!r}")
    spec = Spec(
        axes=_axes(table.get("grid", {}), f"{where}.grid"),
        variants=tuple(_variant(one, f"{where}.variants[{number}]") for number, one in enumerate(variants)),
        seeds=_count(table.get("seeds", 1), f"{where}.seeds"),
        metric=table.get("metric"),
        select=table.get("select"),
        window=Window.of(
            _count_or_none(table, "last", where), _count_or_none(table, "last_rounds", where), f"{where}.last"
        ),
        tune_on=flatten(tune_on),
    )
    names = [variant.name for variant in spec.variants]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{where}.variants: two of them are called {name!r}")
    return spec._checked()


def _variant(table: Any, where: str) -> Variant:
    _check_table(table, where, _OF_VARIANT)
    name = table.get("name")
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f"{where}.name: must be a string that tells it from the others, got {name!r}")
    sets = table.get("set", {})
    if not isinstance(sets, Mapping):
        raise ConfigError(f"{where}.set: must be a table of settings, got {sets!r}")
    return Variant(name.strip(), flatten(sets), _axes(table.get("grid", {}), f"{where}.grid"))


def _axes(table: Any, where: str) -> tuple[GridAxis, ...]:
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: must be a table of dotted keys and their values, got {table!r}")
    return tuple(make_axis(key, values, where) for key, values in flatten(table).items())


def _count_or_none(table: Mapping[str, Any], key: str, where: str) -> int | None:
    return _count(table[key], f"{where}.{key}") if key in table else None


def _count(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{where}: must be a whole number >= 1, got {value!r}")
    return value


def _check_table(table: Any, where: str, known: tuple[str, ...]) -> None:
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: must be a table, got {table!r}")
    for key in table:
        if key not in known:
            raise ConfigError(f"{where}.{key}: no such key (there are {', '.join(known)}).{nearest(key, known)}")
