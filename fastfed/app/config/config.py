"""A configuration as a whole: its tables put together, and the simulation they describe."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from torch import nn

from ...checks import nearest
from ...data import Federation
from ...devices import find_devices
from ...loggers import Logger
from ...simulation import Simulation
from . import document as documents
from . import logs, running
from . import method as methods
from .document import FROM, names_module
from .errors import ConfigError, in_file, keyed
from .kinds import METHODS, find, name_of
from .options import arguments_of, without_none, written
from .own import OwnFunction, OwnPart
from .parts import BLEND, CHOICES, SERVER, make_blend, make_privacy, write_client
from .source import PATHS, Data, Model, Source, make_model
from .stand_ins import check_data, with_data

_KEYS = (
    "name", "method", "method_options", "data", "model", "client", "server", "run", "schedule", "timing", "tuner",
    "privacy", "compression", "aggregation", "exchange", "log",
)  # fmt: skip
# Dotted keys that say how a run is called, where files are and how many hands there are, not what is computed.
CHANGE_NO_RESULT = (
    "name",
    "run.threads",
    "run.checkpoint_every",
    "run.keep",
    "run.evaluate_training",
    *(f"{table}.{FROM}" for table in (*documents.NAMED, documents.RUN)),
    *logs.KEYS,
    *PATHS,
)
_FURTHER = ("timing", "tuner", "privacy", "compression", "aggregation", "exchange")  # tables of settings, each optional


@dataclass(frozen=True)
class Config:
    """What a file says. `settings` are arguments of ``Simulation``, `run_settings` those of its `run`; defaults are
    left out.

    `method_options` are what the method was called with: its own switches, and the rules it leaves open. `name` is how
    a run is called, None for the name of its directory. `own` are the parts that the user's own functions make, by
    their tables.
    """

    name: str | None
    method: str | None
    method_options: Mapping[str, Any]
    data: Data
    model: Model
    settings: Mapping[str, Any]
    run_settings: Mapping[str, Any]
    own: Mapping[str, OwnPart | running.OwnFunctions] = field(default_factory=dict)
    loggers: Mapping[str, Logger] = field(default_factory=dict)

    @property
    def seed(self) -> int:
        """The seed of cohorts, batches and the model's first weights."""
        return int(running.write({**self.settings, **self.run_settings})["seed"])

    def federation(self) -> Federation:
        """Loads the data and deals it to clients."""
        return self.data.make()

    def make_model(self) -> nn.Module:
        """The model that the run starts from."""
        return make_model(self.model, self.seed)

    def simulation(self, fed: Federation | None = None) -> Simulation:
        """The simulation; `fed` where the data is loaded already."""
        self._check_device()
        for one in self.own.values():
            one.check()
        fed = self.federation() if fed is None else fed
        model = self.make_model()
        try:
            sim = Simulation(model, fed, **self.settings)
            no_rounds = {"rounds": 0} if self._counts else {}
            sim.run(**{**self.run_settings, **no_rounds}, progress=False)  # checks the rest
        except (ValueError, TypeError) as error:
            raise ConfigError(keyed(error, self._keys())) from error
        return sim

    def _check_device(self) -> None:
        """A device that is not there is refused before anything is loaded."""
        device = running.write(self.settings)["device"]
        try:
            find_devices(device)
        except ValueError as error:
            raise ConfigError(keyed(error, self._keys())) from error

    @property
    def _counts(self) -> bool:
        """Whether the number of rounds, if there is one, is one."""
        rounds = self.run_settings.get("rounds")
        return rounds is None or rounds >= 0

    def _keys(self) -> dict[str, str]:
        """The dotted key of every argument that a simulation or its parts may refuse. Where two parts have the same
        one, it is the first's."""
        keys: dict[str, str] = {}
        for table in ("client", "server", *_FURTHER):
            for place, part in _nested(table, self.settings.get(table)):
                keys = {one.name: f"{place}.{one.name}" for one in fields(part)} | keys
        for place, part in _nested("run.cohort", self.settings.get("cohort")):
            keys = {one.name: f"{place}.{one.name}" for one in fields(part)} | keys
        of_run = {name: f"run.{name}" for name in running.arguments()}
        return keys | of_run | {f"{side}_schedule": f"schedule.{side}" for side in running.SIDES}

    def resolved(self) -> dict[str, Any]:
        """Every key with its value, defaults included; None where a file would say "none"."""
        tables: dict[str, Any] = {} if self.name is None else {"name": self.name}
        if self.method is not None:
            tables["method"] = self.method
            own = methods.own_options(self.method)
            if own:
                source = Source(self.method, METHODS[self.method], self.method_options)
                tables["method_options"] = {k: v for k, v in source.arguments().items() if k in own}
        tables["data"] = self.data.written()
        tables["model"] = {"name": self.model.name, **self.model.arguments()}
        tables["client"] = self._client_table()
        tables["server"] = SERVER.written(self.settings["server"]) if "server" not in self.own else {}
        tables["run"] = running.write({**self.settings, **self.run_settings})
        schedules = running.write_schedules(self.settings)
        if schedules:
            tables["schedule"] = schedules
        tables |= self._further_tables()
        if self.loggers:
            tables[logs.LOG] = logs.write(self.loggers)
        return tables | {name: {**tables.get(name, {}), **one.written()} for name, one in self.own.items()}

    def given_again(self) -> dict[str, Any]:
        """The settings that a checkpoint does not hold: what is made by functions of the user's own."""
        parts = {name: self.settings[name] for name in self.own if name in self.settings}
        functions = {name: self.settings.get(name) for name in ("loss", "metrics")}
        return parts | {k: v for k, v in functions.items() if isinstance(v, Mapping | OwnFunction)}

    def _client_table(self) -> dict[str, Any]:
        table = write_client(self.settings["client"]) if "client" not in self.own else {}
        if self.method is not None and methods.takes_name(self.method, "client"):
            table["rule"] = Source(self.method, METHODS[self.method], self.method_options).arguments()["client"]
        return table

    def _further_tables(self) -> dict[str, Any]:
        found = {}
        for name in _FURTHER:
            made = self.settings.get(name)
            if made is not None and name not in self.own:
                found[name] = CHOICES[name].written(made) if name in CHOICES else written(made)
        return found

    def toml(self) -> str:
        """`resolved` as a file; reading it gives the same run."""
        return documents.write(self.resolved())


def _nested(place: str, made: Any) -> Iterator[tuple[str, Any]]:
    """Settings and those within them, each with its dotted key."""
    if is_dataclass(made):
        yield place, made
        for one in fields(made):
            yield from _nested(f"{place}.{one.name}", getattr(made, one.name))


# ---- reading --------------------------------------------------------------------------------------------------------


def load(path: str | Path, sets: Iterable[str] = (), data: Sequence[str] = ()) -> Config:
    """The configuration of a file and its bases, with dotted overrides such as "server.lr=0.1" put in.

    `data` is what ``--data`` says: directories to read in place of the file's ("mnist=DIR": if the data is mnist), or
    "synthetic" for made-up data of the same shapes. Relative directories, the file's too, are relative to the working
    directory.
    """
    document = documents.read(path)
    with in_file(path):
        tables = documents.at_home(documents.overridden(document, sets), Path(path).parent)
        check_data([tables], data)
        return parse(with_data(tables, data))


def parse(tables: Mapping[str, Any]) -> Config:
    """The configuration that tables describe, as TOML or `Config.resolved` gives them."""
    tables = without_none(tables)
    _check_keys(tables)
    method = tables.get("method")
    own: dict[str, OwnPart | running.OwnFunctions] = {**_own_parts(tables), **running.own(tables.get("run", {}))}
    others = {key: table for key, table in tables.items() if key not in own or key == documents.RUN}
    made, switches = ({}, {}) if method is None else methods.base(method, others)
    given, run_settings = running.split(running.read(tables.get("run", {})))
    return Config(
        name=tables.get("name"),
        method=method,
        method_options=switches,
        data=Data.of(tables.get("data", {})),
        model=Model.of(_model_table(tables.get("model", {}))),
        settings={
            **made,
            **_parts(method, made, others, own),
            **running.read_schedules(tables.get("schedule", {}), run_settings.get("rounds")),
            **given,
            **{name: value for one in own.values() for name, value in one.settings().items()},
        },
        run_settings=run_settings,
        own=own,
        loggers=logs.read(tables.get(logs.LOG, {})),
    )


def _own_parts(tables: Mapping[str, Any]) -> dict[str, OwnPart]:
    """The parts whose tables name a function of the user's own."""
    return {
        table: OwnPart.of(tables[table], f"{table}.{key}")
        for table, key in documents.NAMED.items()
        if table in CHOICES and isinstance(tables.get(table), Mapping) and names_module(tables[table].get(key))
    }


def _model_table(model: Any) -> Any:
    """A name alone is a table with that name."""
    return {documents.NAME: model} if isinstance(model, str) else model


def _check_keys(tables: Mapping[str, Any]) -> None:
    if documents.BASE in tables:
        raise ConfigError(f"{documents.BASE}: is a key of files, read before anything is set")
    if documents.SWEEP in tables:
        raise ConfigError(f"{documents.SWEEP}: this file describes many runs; `fastfed sweep` runs them")
    for key in tables:
        if key not in _KEYS:
            known = (*_KEYS, documents.BASE)
            there = f"no such key or table (there are {', '.join(known)})."
            raise ConfigError(f"{key}: {there}{_meant(key) or nearest(key, known)}")
    if not isinstance(tables.get("name", ""), str):
        raise ConfigError(f"name: must be a string, got {tables['name']!r}")
    if "method" in tables:
        find(METHODS, "method", tables["method"])
    elif "method_options" in tables:
        raise ConfigError("method_options: belong to a method, and none is named")
    for key in _KEYS[2:]:
        if key in documents.ALONE and isinstance(tables.get(key), str):
            continue
        if not isinstance(tables.get(key, {}), Mapping):
            raise ConfigError(f"{key}: must be a table, got {tables[key]!r}")


def _meant(key: str) -> str:
    """Where a key belongs that was given without its table, in words; "" if nobody has it."""
    places = ["run"] if key in running.arguments() else []
    places += [
        side for side in methods.SIDES if any(key in arguments_of(kind) for kind in CHOICES[side].kinds.values())
    ]
    if not places:
        return ""
    return f" Did you mean {' or '.join(f'{place}.{key}' for place in places)}?"


def _parts(
    method: str | None, made: Mapping[str, Any], tables: Mapping[str, Any], own: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings that have tables of their own: the method's, changed by the tables, or made of the tables alone."""
    found = {}
    for name, table in CHOICES.items():
        if name in own:
            if made.get(name) is not None and not _is_open(str(method), name):
                _changed(str(method), name, made[name], {table.key: own[name].name})
        elif made.get(name) is not None:
            found[name] = _changed(str(method), name, made[name], tables.get(name, {}))
        elif name == "client" and tables.get(name, {}).get("rule") == BLEND:
            found[name] = make_blend(tables[name])
        elif name in tables or name in methods.SIDES:
            found[name] = table.make(tables.get(name, {}))
    if "privacy" in tables:
        found["privacy"] = make_privacy(tables["privacy"])
    return found


def _is_open(method: str, name: str) -> bool:
    """Whether a method leaves it to the file."""
    return name in methods.SIDES and name in methods.homes(method)


def _changed(method: str, name: str, made: Any, table: Mapping[str, Any]) -> Any:
    """A part that a method made, with what the file says of it: another kind only where the method leaves it open."""
    kinds, key = CHOICES[name].kinds, CHOICES[name].key
    kind = name_of(kinds, made)
    if key in table and table[key] != kind and not _is_open(method, name):
        find(kinds, f"{name}.{key}", table[key])
        raise ConfigError(f"{name}.{key}: method {method!r} has {CHOICES[name].word} {kind!r}, got {table[key]!r}")
    for option in table:
        source = methods.decided(method).get(f"{name}.{option}")
        if source is not None and table[option] != getattr(made, option):
            follows = f"follows from method_options.{source}, {getattr(made, option)!r}, in method {method!r}"
            raise ConfigError(f"{name}.{option}: {follows}, got {table[option]!r}")
    return CHOICES[name].change(made, table, method)
