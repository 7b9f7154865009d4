"""The runs that a sweep comes to: a point for every combination of variant, axes' values and seed."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ...record.evaluate import metric_of
from ...record.history import History
from ..config import Config, ConfigError, parse
from ..config import document as documents
from ..config.errors import in_file
from ..config.options import WOULD_IGNORE
from ..config.stand_ins import check_data, with_data
from ..errors import first_line
from ..report.entries import AS_IT_IS, Entry, plain
from .grid import is_number
from .spec import TABLE, TRAIN_LOSS, Spec, Variant, read_spec

_MOST_POINTS = 100_000
_TASKS = ("data.", "model.")  # settings that say what is to be learnt, rather than how
_NEVER = 1 << 30  # rounds between checkpoints: only the end of a point and Ctrl-C write one
_LONGEST_NAME = 120
_NAMING = ("rule", "kind", "name")  # keys by which tables say what they are


@dataclass(frozen=True)
class Point:
    """One run of a sweep: its variant, the values on its axes by dotted key, its seed, and all tables of its
    configuration. `name` is the name of its directory: the same settings have the same name in any sweep."""

    name: str
    variant: str | None
    settings: Mapping[str, Any]
    seed: int
    tables: Mapping[str, Any]

    @property
    def cell(self) -> str:
        """What points that differ only in their seed share."""
        return _identity([self.variant, dict(self.settings)])

    @property
    def task(self) -> dict[str, Any]:
        """The settings that say what is learnt: results of different tasks are never ranked against each other."""
        return {key: value for key, value in self.settings.items() if key.startswith(_TASKS)}

    @property
    def method(self) -> str:
        """Who learns: the variant, and the settings that are no numbers; as the papers write it. "" if nothing says."""
        named = {k: v for k, v in self.settings.items() if k not in self.task and not is_number(v)}
        words = [_spelt(value) if key == "method" else f"{key} {label(value)}" for key, value in named.items()]
        return ", ".join([*([] if self.variant is None else [self.variant]), *words])

    @property
    def numbers(self) -> dict[str, float]:
        """The settings that are tuned."""
        return {k: v for k, v in self.settings.items() if k not in self.task and is_number(v)}

    @property
    def label(self) -> str:
        """The point in words, without its seed."""
        told = [f"{key} {label(value)}" for key, value in {**self.task, **self.numbers}.items()]
        return ", ".join([*([self.method] if self.method else []), *told]) or AS_IT_IS


@dataclass(frozen=True)
class Plan:
    """All points of a sweep, in the order in which they are run."""

    spec: Spec
    points: tuple[Point, ...]
    configs: Mapping[str, Config]  # by the points' names
    skipped: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # --set's texts: variants without such a key

    @property
    def threads(self) -> int | None:
        """The threads of a run that the file asks for: the most, where points differ."""
        return max((c.settings["threads"] for c in self.configs.values() if c.settings.get("threads")), default=None)

    def check_places(self) -> None:
        """Refuses directories of data that are not there: before the runs, and once for all of them."""
        for config in self.configs.values():
            config.data.check_places()

    @cached_property
    def keys(self) -> list[str]:
        """The dotted keys of all axes, in order."""
        return list(dict.fromkeys(axis.key for axis in self.spec.all_axes()))


def plan(
    file: str | Path,
    grid: Sequence[str] = (),
    sets: Sequence[str] = (),
    data: Sequence[str] = (),
    *,
    seeds: int | None = None,
    metric: str | None = None,
    select: str | None = None,
    last: int | None = None,
    last_rounds: int | None = None,
) -> Plan:
    """The sweep that a file and the command line describe; every point's configuration is checked.

    `grid` and `sets` are texts such as "client.lr=0.1,1" and "run.rounds=50". Both win over the file: an axis or a
    setting takes the place of an axis with the same key in ``[sweep]``. A setting is left out for the variants whose
    rules would ignore it, as long as there is another that takes it. `data` is as in ``config.load``.
    """
    own = [text for text in sets if not text.startswith(f"{TABLE}.")]
    document = documents.overridden(documents.read(file), [text for text in sets if text not in own])
    fixed = [text.partition("=")[0].strip() for text in sets]
    with in_file(file):
        spec = read_spec(document.pop(TABLE, {})).without(fixed).with_grid(grid)
        spec = spec.with_options(seeds, metric, select, last, last_rounds)
        for axis in spec.all_axes():
            if axis.key in fixed:
                raise ConfigError(f"--grid: {axis.key} is given by --set too; give it once")
        fitting = {variant.name: _fitting(document, spec, variant, own, data) for variant in spec.variants}
        lost = {text: tuple(name for name, fit in fitting.items() if text not in fit) for text in own}
        skipped = {text: names for text, names in lost.items() if 0 < len(names) < len(fitting)}
        points = [_at_home(point, Path(file).parent) for point in _points(document, spec, own, skipped)]
        check_data([point.tables for point in points], data)
        points = [_with_data(point, data) for point in points]
        configs = {point.name: _checked(point, spec) for point in points}
    if spec.select is None:
        spec = replace(spec, select=_default_select(configs.values()))
    return Plan(spec, tuple(points), configs, skipped)


def _fitting(
    base: Mapping[str, Any], spec: Spec, variant: Variant, sets: Sequence[str], data: Sequence[str]
) -> list[str]:
    """Those of the settings that a variant's rules do not ignore, by its first point."""
    fit = list(sets)
    settings = {axis.key: axis.values[0] for axis in spec.axes_of(variant)}
    while fit:
        ignored = _ignored(_seeded(base, variant, settings, fit, 1)[0], data)
        lost = [text for text in fit if text.partition("=")[0].strip() in ignored]
        if not lost:
            break
        fit = [text for text in fit if text not in lost]
    return fit


def _ignored(point: Point, data: Sequence[str]) -> set[str]:
    """The dotted keys of a point that its rules would ignore."""
    try:
        parse(_with_data(point, data).tables)
    except ConfigError as error:
        return {line.partition(":")[0] for line in str(error).splitlines() if WOULD_IGNORE in line}
    return set()


def _default_select(configs: Iterable[Config]) -> str:
    """What settings are chosen by unless somebody says, the same for all points: the metric on the validation set where
    all have one and evaluate it, else the training loss; never the test set."""
    found = set()
    for config in configs:
        run = config.resolved()["run"]
        validated = config.data.validation is not None and bool(run["evaluate_every"])
        found.add(f"validation_{metric_of(run['loss'])}" if validated else TRAIN_LOSS)
    return found.pop() if len(found) == 1 else TRAIN_LOSS


def _at_home(point: Point, home: Path) -> Point:
    """A model of the user's own is found by whatever process runs the point."""
    return replace(point, tables=documents.at_home(point.tables, home))


def _with_data(point: Point, data: Sequence[str]) -> Point:
    return replace(point, tables=with_data(point.tables, data)) if data else point


def _checked(point: Point, spec: Spec) -> Config:
    try:
        config = parse(point.tables)
    except ConfigError as error:
        raise ConfigError(f"{first_line(error)} (in the point {point.label})") from error
    for option, column in (("--metric", spec.metric), ("--select", spec.select)):
        if column is not None:
            _check_column(option, column, config)
    return config


def _check_column(option: str, column: str, config: Config) -> None:
    """A metric that the runs will not measure is refused before they are run."""
    run = config.resolved()["run"]
    # With a loss of one's own, only the data tells whether there is an accuracy.
    names = {metric_of(run["loss"]): None, **({"accuracy": None} if documents.names_module(run["loss"]) else {})}
    names |= dict.fromkeys(run["metrics"] or ())
    spread = [f"client_{name}_{part}" for name in names for part in ("mean", "p10", "p90")] if run["per_client"] else []
    parts = ["test", *(["validation"] if config.data.validation is not None else [])]
    parts += ["trainset"] if run["evaluate_training"] else []
    tested = [f"{part}_{one}" for part in parts for one in ("loss", *names)]
    known = list(dict.fromkeys([TRAIN_LOSS, *([*tested, *spread] if run["evaluate_every"] else [])]))
    if column not in known:
        raise ConfigError(f"{option}: the runs do not measure {column!r}; they measure {', '.join(known)}")


# ---- making them ----------------------------------------------------------------------------------------------------


def _points(
    base: Mapping[str, Any], spec: Spec, sets: Sequence[str], skipped: Mapping[str, tuple[str, ...]]
) -> list[Point]:
    made: list[Point] = []
    for variant in spec.variants or (None,):
        own = [text for text in sets if variant is None or variant.name not in skipped.get(text, ())]
        axes = spec.axes_of(variant)
        number = spec.seeds
        for axis in axes:
            number *= len(axis.values)
        if number + len(made) > _MOST_POINTS:
            raise ConfigError(f"--grid: comes to {number:,} runs; more than {_MOST_POINTS:,} are surely a mistake")
        for values in itertools.product(*(axis.values for axis in axes)):
            settings = dict(zip((axis.key for axis in axes), values, strict=True))
            made += _seeded(base, variant, settings, own, spec.seeds)
    return made


def _seeded(
    base: Mapping[str, Any], variant: Variant | None, settings: dict[str, Any], sets: Sequence[str], seeds: int
) -> list[Point]:
    tables = copy.deepcopy(dict(base))
    for key, value in {**({} if variant is None else variant.sets), **_shallow_first(settings)}.items():
        documents.put(tables, key, copy.deepcopy(value), "--grid")
    tables = documents.overridden(tables, sets)
    run = tables.setdefault("run", {})
    if isinstance(run, dict):
        run.setdefault("checkpoint_every", _NEVER)
        run.setdefault("keep", 1)
    return [_point(tables, None if variant is None else variant.name, settings, i) for i in range(seeds)]


def _point(tables: Mapping[str, Any], variant: str | None, settings: dict[str, Any], place: int) -> Point:
    run = tables["run"] if isinstance(tables["run"], Mapping) else {}
    first = run.get("seed", 0)
    seed = first + place if isinstance(first, int) else first  # what is no seed is refused by the configuration
    bare = Point("", variant, settings, seed, {})
    own = copy.deepcopy(dict(tables))
    if place:
        documents.put(own, "run.seed", seed, "--seeds")
    own["name"] = bare.label if variant is not None or settings else tables.get("name", AS_IT_IS)
    return Point(_directory(variant, settings, seed), variant, settings, seed, own)


def _shallow_first(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A whole table before what changes it."""
    return dict(sorted(settings.items(), key=lambda item: item[0].count(".")))


def shortened(config: Config, rounds: int | None) -> Config:
    """The same run, but only its first rounds: whatever else depends on the number of rounds stays."""
    return config if rounds is None else replace(config, run_settings={**config.run_settings, "rounds": rounds})


def with_threads(config: Config, threads: int) -> Config:
    """The same run, where it says a number of threads with this one."""
    asked = config.settings.get("threads")
    return config if asked is None else replace(config, settings={**config.settings, "threads": threads})


# ---- naming them ----------------------------------------------------------------------------------------------------


def _directory(variant: str | None, settings: Mapping[str, Any], seed: Any) -> str:
    """A name that reads well in a listing. Where signs had to be replaced or it grew too long, a few digits of a hash
    keep it unique."""
    parts = [*([] if variant is None else [variant]), *(f"{key}={_exact(value)}" for key, value in settings.items())]
    exact = ",".join([*parts, f"seed={seed}"])
    name = re.sub(r"[^A-Za-z0-9.,=+-]+", "-", exact).strip("-.")
    if name == exact and len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(_identity([variant, dict(settings), seed]).encode()).hexdigest()[:6]
    return f"{name[: _LONGEST_NAME - 7]}-{digest}"


def _exact(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _identity(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def label(value: Any) -> str:
    """A value in words; a table by what it names, then the rest of it."""
    if not isinstance(value, Mapping):
        return plain(value)
    named = [str(value[key]) for key in _NAMING if key in value]
    rest = ", ".join(f"{key} {label(inner)}" for key, inner in value.items() if key not in _NAMING)
    return " ".join([*named, *([f"({rest})"] if rest else [])])


def _spelt(method: Any) -> str:
    return Entry(str(method), History()).method
