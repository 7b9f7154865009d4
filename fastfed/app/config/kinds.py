"""What the words of a configuration stand for: found in FastFed's modules, so that a new rule needs no entry here."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from types import ModuleType
from typing import Any, get_type_hints

from ... import (
    aggregate,
    algorithms,
    clients,
    compression,
    data,
    exchange,
    methods,
    models,
    schedules,
    servers,
    timing,
    tune,
)
from ...checks import nearest
from ...data import Dataset
from .errors import ConfigError
from .options import NO_DEFAULT, arguments_of

Kinds = Mapping[str, Callable[..., Any]]


def _snake(name: str) -> str:
    """TopK becomes top_k, Int8 int8."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _settings(module: ModuleType, ability: str) -> Kinds:
    """The dataclasses of a module that can do something, by their names."""
    return {
        _snake(name): kind
        for name, kind in vars(module).items()
        if is_dataclass(kind)
        and isinstance(kind, type)
        and not name.startswith("_")
        and (kind.__module__ + ".").startswith(module.__name__ + ".")
        and ability in vars(kind)
    }


def _rules(module: ModuleType, base: type) -> Kinds:
    """The optimizers of a module by their rules; by their names where the rule depends on their options."""
    found = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, base)]
    own = [kind for kind in found if kind not in (base, clients.Algorithm) and "rule" in vars(kind)]
    return {kind.rule if isinstance(kind.rule, str) else _snake(kind.__name__): kind for kind in own}  # type: ignore[attr-defined]


def _algorithms(ability: str) -> Kinds:
    """The algorithms in Python that can do something, by what they call their rule."""
    found = [kind for kind in vars(algorithms).values() if isinstance(kind, type) and ability in vars(kind)]
    return {kind.rule: kind for kind in found}  # type: ignore[attr-defined]


def _functions(module: ModuleType) -> dict[str, Callable[..., Any]]:
    public = {name: thing for name, thing in vars(module).items() if inspect.isfunction(thing) and name[0] != "_"}
    return {name: thing for name, thing in public.items() if thing.__module__.startswith(module.__name__)}


def _remembered(module: ModuleType) -> dict[str, Callable[..., Any]]:
    return {name: thing for name, thing in _functions(module).items() if hasattr(thing, "writes_recipes")}


def _returns(function: Callable[..., Any]) -> Any:
    return get_type_hints(function)["return"]


def _can_be_called(function: Callable[..., Any], *besides: str) -> bool:
    """Whether a file can give all that it needs."""
    needed = [name for name, p in inspect.signature(function).parameters.items() if p.default is NO_DEFAULT]
    return set(needed) <= {*arguments_of(function), *besides}


def _deals(function: Callable[..., Any]) -> bool:
    """Whether a function of ``fastfed.data`` deals a data set to clients, rather than loading one."""
    return next(iter(get_type_hints(function).values()), None) is Dataset


CLIENTS: Kinds = {**_rules(clients, clients.Client), **_algorithms("client_step")}
SERVERS: Kinds = {**_rules(servers, servers.Server), **_algorithms("step")}
TIMINGS: Kinds = _settings(timing, "begin")
TUNERS: Kinds = _settings(tune, "begin")
COMPRESSIONS: Kinds = _settings(compression, "encode")
AGGREGATIONS: Kinds = _settings(aggregate, "reduce")
EXCHANGES: Kinds = _settings(exchange, "begin")
SCHEDULES: Kinds = _settings(schedules, "__call__")
MODELS: Kinds = {name: make for name, make in _remembered(models).items() if _can_be_called(make)}
METHODS: Kinds = {name: make for name, make in _functions(methods).items() if _returns(make) == methods.Settings}
LOADERS: Kinds = {
    name: load for name, load in _remembered(data).items() if not _deals(load) and _can_be_called(load)
}  # fmt: skip
PARTITIONS: Kinds = {
    "file" if name == "load_partition" else name: deal
    for name, deal in _remembered(data).items()
    if _deals(deal) and _can_be_called(deal, "data")
}


def has_clients(loader: Callable[..., Any]) -> bool:
    """Whether what it loads is dealt to clients already."""
    return _returns(loader) is not Dataset


def name_of(kinds: Kinds, thing: object) -> str:
    """The word for settings."""
    return next(name for name, kind in kinds.items() if kind is type(thing))


def find(kinds: Kinds, dotted: str, name: Any) -> Callable[..., Any]:
    """What a word stands for, or the words that there are."""
    if isinstance(name, str) and name in kinds:
        return kinds[name]
    raise ConfigError(f"{dotted}: must be one of {', '.join(kinds)}, got {name!r}.{nearest(str(name), tuple(kinds))}")
