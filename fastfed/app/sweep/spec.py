"""What a sweep is asked to do: the table ``[sweep]`` of a file, and what the command line says on top of it.

[sweep]
seeds = 3                      # run.seed, and the two after it
metric = "test_accuracy"       # default: the one that goes with the loss
last = 1                       # evaluations that the metric is the mean of

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

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...checks import nearest
from ..config import ConfigError
from ..report.entries import flatten
from .grid import GridAxis, make_axis, parse_axis

TABLE = "sweep"
_KEYS = ("seeds", "metric", "last", "grid", "variants")
_OF_VARIANT = ("name", "set", "grid")
_SEED, _SEEDS, _NAME, THREADS = "run.seed", "--seeds", "name", "run.threads"


@dataclass(frozen=True)
class Variant:
    """A name for several settings at once, by dotted keys, with axes of its own. Both take the place of shared axes
    with the same keys."""

    name: str
    sets: Mapping[str, Any]
    axes: tuple[GridAxis, ...] = ()


@dataclass(frozen=True)
class Spec:
    """A grid: every combination of the axes' values, for each variant (if there are any) and each of the seeds.

    `metric` None is the one that goes with the loss; its value is the mean of the `last` evaluations.
    """

    axes: tuple[GridAxis, ...] = ()
    variants: tuple[Variant, ...] = ()
    seeds: int = 1
    metric: str | None = None
    last: int = 1

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

    def with_options(self, seeds: int | None, metric: str | None, last: int | None) -> Spec:
        """With what the command line says of seeds and metric, where it does."""
        given = {"seeds": seeds, "metric": metric, "last": last}
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
    metric = table.get("metric")
    if metric is not None and (not isinstance(metric, str) or not metric):
        raise ConfigError(f"{where}.metric: must be a column of the rounds, as in test_accuracy, got {metric!r}")
    variants = table.get("variants", [])
    if not isinstance(variants, list):
        raise ConfigError(f"{where}.variants: must be tables [[sweep.variants]], got {variants!r}")
    spec = Spec(
        axes=_axes(table.get("grid", {}), f"{where}.grid"),
        variants=tuple(_variant(one, f"{where}.variants[{number}]") for number, one in enumerate(variants)),
        seeds=_count(table.get("seeds", 1), f"{where}.seeds"),
        metric=metric,
        last=_count(table.get("last", 1), f"{where}.last"),
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
