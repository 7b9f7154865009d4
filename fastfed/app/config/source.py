"""The data and the model of a configuration: which functions make them, with which arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from torch import nn

from ...data import DataError, Federation, hold_out, pooled
from ...lora import lora as adapted
from ...weights import load_weights
from .document import NAME, WEIGHTS, names_module
from .errors import ConfigError, keyed, keys_in
from .kinds import LOADERS, MODELS, PARTITIONS, find, has_clients
from .options import (
    NO_DEFAULT,
    NONE,
    Argument,
    arguments_of,
    checked,
    either,
    invoke,
    one_of,
    owners,
    plain_model,
    require,
    table_model,
    written,
)
from .own import OwnData, OwnModel

_DEALT = "data"  # the argument of a partition that is what a loader gives
POOLED = "pooled"  # the key of [data] that puts all clients' examples together
# The keys of [data] that hold examples out, and the arguments of `hold_out` that they are; the first asks for it.
_VALIDATION = {"validation": "share", "validation_of": "of", "validation_seed": "seed"}
HELD_OUT = ("validation", POOLED)  # the keys that ask for a part of what is held, or for all of it together


@dataclass(frozen=True)
class Source:
    """A function of FastFed, and the arguments that a file gives it."""

    name: str
    function: Callable[..., Any]
    given: Mapping[str, Any]

    def arguments(self) -> dict[str, Any]:
        """All of them, as a file would give them."""
        known = arguments_of(self.function).values()
        return {one.name: written(self.given.get(one.name, one.default)) for one in known if one.name != _DEALT}

    def make(self, **besides: Any) -> Any:
        """What the function makes."""
        return invoke(self.function, {**self.given, **besides})


# ---- data -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Data:
    """A loader, the partition that deals what it loads (None where it loads clients), and what is held out of that to
    choose settings by (None: nothing). `is_pooled`: one client has all that is left."""

    loader: Source | OwnData
    partition: Source | None
    validation: Source | None = None
    is_pooled: bool = False

    @classmethod
    def of(cls, table: Any) -> Data:
        """The table ``[data]``. A key that both functions know is the partition's."""
        if isinstance(table, str):
            table = {NAME: table}
        if isinstance(table, Mapping) and names_module(table.get(NAME)):
            return cls._of_own(table)
        load = named_loader(table)
        deal = partition_of(load, table)
        words = f"data {table['name']!r}" + (f" with partition {table['partition']!r}" if deal else "")
        given = checked(data_model(load, deal), "data", _spread_roots(load, table), words, option_owner)
        given = {key: _absolute(value) if key in _paths(load, deal) else value for key, value in given.items()}
        dealing = {key: value for key, value in given.items() if deal and key in arguments_of(deal)}
        loading = {key: value for key, value in given.items() if key in arguments_of(load) and key not in dealing}
        _require_directory(load, loading, words)
        require(load, "data", loading, words)
        loader = Source(str(table["name"]), load, loading)
        held, is_pooled = _validation_of(given), given.get(POOLED) is True
        if deal is None:
            return cls(loader, None, held, is_pooled)
        require(deal, "data", {_DEALT: None, **dealing}, words)
        return cls(loader, Source(str(table["partition"]), deal, dealing), held, is_pooled)

    @classmethod
    def _of_own(cls, table: Mapping[str, Any]) -> Data:
        """The table that names a function of the user's own: the keys that are no partition's are its arguments."""
        words = f"data {table[NAME]!r}"
        deal = find(PARTITIONS, "data.partition", table["partition"]) if "partition" in table else None
        dealt = _dealing_keys(deal)
        given = checked(plain_model("data", "", dealt), "data", {k: v for k, v in table.items() if k in dealt}, words)
        loader: OwnData = OwnData.of({key: value for key, value in table.items() if key not in dealt}, "data.name")
        held, is_pooled = _validation_of(given), given.get(POOLED) is True
        if deal is None:
            return cls(loader, None, held, is_pooled)
        dealing = {key: value for key, value in given.items() if key in arguments_of(deal)}
        require(deal, "data", {_DEALT: None, **dealing}, f"{words} with partition {table['partition']!r}")
        return cls(loader, Source(str(table["partition"]), deal, dealing), held, is_pooled)

    def make(self) -> Federation:
        """Loads and deals."""
        keys = keys_in("data", self.written()) | {name: f"data.{key}" for key, name in _VALIDATION.items()}
        try:
            made = self.loader.make()
            if isinstance(self.loader, OwnData):
                self.loader.check(made, self.partition is not None)
            fed: Federation = made if self.partition is None else self.partition.make(data=made)
            if self.validation is not None:
                keys["fed"] = "data.validation"
                fed = self.validation.make(fed=fed)
            if self.is_pooled:
                keys["fed"] = f"data.{POOLED}"
                fed = pooled(fed)
        except ConfigError:
            raise
        except DataError as error:
            raise ConfigError(f"data: {error}") from error
        except (ValueError, TypeError) as error:
            raise ConfigError(keyed(error, keys, "data")) from error
        return fed

    def check_places(self) -> None:
        """Refuses directories and files that are not there, before anything is loaded."""
        for source in (self.loader, *([] if self.partition is None else [self.partition])):
            for key in directories(source.function):
                given = source.given.get(key)
                for place in given if isinstance(given, list) else [given]:
                    if isinstance(place, (str, Path)) and not Path(place).exists():
                        raise ConfigError(f"data.{key}: {place}: there is no such directory")

    def written(self) -> dict[str, Any]:
        """The table, every key with its value; those of a validation set and of a pool only where there is one."""
        loading = self.loader.arguments()
        held = {} if self.validation is None else self.validation.arguments()
        kept: dict[str, Any] = {key: held[name] for key, name in _VALIDATION.items() if name in held}
        kept |= {POOLED: True} if self.is_pooled else {}
        if self.partition is None:
            return {"name": self.loader.name, **loading, **kept}
        dealing = self.partition.arguments()
        loading = {key: value for key, value in loading.items() if key not in dealing}
        return {"name": self.loader.name, **loading, "partition": self.partition.name, **dealing, **kept}


def _validation_of(given: Mapping[str, Any]) -> Source | None:
    """What the keys of a validation set ask for."""
    wanted = {name: given[key] for key, name in _VALIDATION.items() if given.get(key) is not None}
    if "share" in wanted:
        return Source("hold_out", hold_out, wanted)
    for key, name in _VALIDATION.items():
        if name in wanted:
            raise ConfigError(f"data.{key}: would be ignored, as no share is held out; see data.validation")
    return None


def named_loader(table: Any) -> Callable[..., Any]:
    """The function that loads the data set of a table ``[data]``."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"data: must be a table with the name of a data set, got {table!r}")
    if "name" not in table:
        raise ConfigError(f"data.name: must be given, one of {', '.join(LOADERS)}")
    if names_module(table["name"]):
        raise ConfigError(f"--data: data {table['name']!r} is a function of your own, which reads what it likes")
    return find(LOADERS, "data.name", table["name"])


def directories(load: Callable[..., Any]) -> list[str]:
    """The arguments of a loader that say where its files are, in order."""
    return [argument.name for argument in arguments_of(load).values() if argument.is_path]


def _require_directory(load: Callable[..., Any], given: Mapping[str, Any], words: str) -> None:
    """The command line can name the first of them, too."""
    first = next(iter(directories(load)), None)
    if first is not None and first not in given and arguments_of(load)[first].default is NO_DEFAULT:
        elsewhere = "--data DIR names it on the command line, and --data synthetic does without"
        raise ConfigError(f"data.{first}: {words} needs it, a directory ({elsewhere})")


def partition_of(load: Callable[..., Any], table: Mapping[str, Any]) -> Callable[..., Any] | None:
    """The function that deals what is loaded; None where that comes with clients."""
    if has_clients(load):
        if "partition" in table:
            raise ConfigError(f"data.partition: {table['name']!r} comes with clients; leave the partition out")
        return None
    if "partition" not in table:
        raise ConfigError(f"data.partition: must say how {table['name']!r} is dealt: {', '.join(PARTITIONS)}")
    return find(PARTITIONS, "data.partition", table["partition"])


def data_model(load: Callable[..., Any], deal: Callable[..., Any] | None) -> type[BaseModel]:
    """The pydantic model of a table ``[data]`` with this loader and this partition."""
    return plain_model("data", "", _data_keys(load, deal))


def _data_keys(load: Callable[..., Any], deal: Callable[..., Any] | None) -> dict[str, Any]:
    return {"name": str, **arguments_of(load), **_dealing_keys(deal)}


def _dealing_keys(deal: Callable[..., Any] | None) -> dict[str, Any]:
    """What is said of data besides how it is loaded."""
    keys: dict[str, Any] = {}
    if deal is not None:
        keys["partition"] = str
        keys |= {name: argument for name, argument in arguments_of(deal).items() if name != _DEALT}
    held = {**arguments_of(hold_out), "share": Argument("share", either([float, one_of(NONE)]), NONE)}
    keys |= {key: replace(held[name], name=key) for key, name in _VALIDATION.items()}
    return keys | {POOLED: Argument(POOLED, bool, False)}


def data_models() -> list[type[BaseModel]]:
    """A model for every loader with every partition that it may have, for the schema."""
    models = []
    for name, load in LOADERS.items():
        for partition in [None] if has_clients(load) else PARTITIONS:
            words = (
                {"name": one_of(name)} if partition is None else {"name": one_of(name), "partition": one_of(partition)}
            )
            deal = None if partition is None else PARTITIONS[partition]
            models.append(plain_model(f"data_{name}_{partition or 'clients'}", "", {**_data_keys(load, deal), **words}))
    return models


def option_owner(key: str) -> str | None:
    """Whose option a key of ``[data]`` is."""
    return owners("partition", PARTITIONS, key) or owners("data", LOADERS, key)


def _spread_roots(load: Callable[..., Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """A list of roots stands for the loader's directories in order, unless its `root` is a list itself."""
    roots, arguments = table.get("root"), arguments_of(load)
    if not isinstance(roots, list) or "root" not in arguments or arguments["root"].takes_list:
        return dict(table)
    places = directories(load)
    if len(roots) > len(places) or set(places[1 : len(roots)]) & set(table):
        raise ConfigError(f"data.root: must be one directory for each of {', '.join(places)}, got {roots!r}")
    return {**table, **dict(zip(places, roots, strict=False))}


def _paths(*functions: Callable[..., Any] | None) -> set[str]:
    return {name for function in functions if function for name in directories(function)}


PATHS = tuple(sorted(f"data.{name}" for name in _paths(*LOADERS.values(), *PARTITIONS.values())))  # as dotted keys


def _absolute(path: Any) -> Any:
    """Paths are relative to the working directory, and written in full beside a run, which may be resumed elsewhere."""
    if isinstance(path, list):
        return [_absolute(one) for one in path]
    return str(Path(path).expanduser().absolute()) if isinstance(path, str) and path != NONE else path


# ---- model ----------------------------------------------------------------------------------------------------------


_MODELS = f'one of {", ".join(MODELS)}, or a function of your own as "package.module:function"'
_LORA = "lora"


@dataclass(frozen=True)
class Model:
    """What makes the model, the file of the weights that it has instead of new ones, and the options of the adapters
    that are trained in place of them."""

    source: Source | OwnModel
    weights: str | None = None
    lora: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, table: Any) -> Model:
        """The table ``[model]``."""
        if not isinstance(table, Mapping):
            raise ConfigError(f"model: must be a table with the name of a model, got {table!r}")
        if "name" not in table:
            raise ConfigError(f"model.name: must be given, {_MODELS}")
        lora, rest = table.get(_LORA), {key: value for key, value in table.items() if key != _LORA}
        if lora is not None:
            lora = checked(lora_model(), f"model.{_LORA}", lora, f"[model.{_LORA}]")
            require(adapted, f"model.{_LORA}", {"module": None, **lora}, f"[model.{_LORA}]")
        plain = {key: value for key, value in rest.items() if key != WEIGHTS}
        if not names_module(table["name"]):
            return cls(_named_model(plain), _weights(rest), lora)
        if WEIGHTS in rest and OwnModel.of({**plain, WEIGHTS: None}).takes(WEIGHTS):  # torchvision's, say
            return cls(OwnModel.of(rest), None, lora)
        return cls(OwnModel.of(plain), _weights(rest), lora)

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def digest(self) -> str | None:
        """That of the source of what is the user's own."""
        return self.source.digest if isinstance(self.source, OwnModel) else None

    def arguments(self) -> dict[str, Any]:
        """All of them, as a file would give them."""
        told = self.source.arguments()
        told |= {} if self.weights is None else {WEIGHTS: self.weights}
        if self.lora is None:
            return told
        known = arguments_of(adapted).values()
        lora = {one.name: written(self.lora.get(one.name, one.default)) for one in known}
        return {**told, _LORA: lora}

    def make(self) -> nn.Module:
        """The module, its weights, its adapters."""
        made: nn.Module = self.source.make()
        try:
            if self.weights is not None:
                load_weights(made, self.weights, (self.lora or {}).get("trained", ()))
        except (ValueError, OSError) as error:
            raise ConfigError(f"model.{WEIGHTS}: {error}") from error
        if self.lora is None:
            return made
        try:
            return adapted(made, **self.lora)
        except ValueError as error:
            raise ConfigError(
                keyed(error, keys_in(f"model.{_LORA}", arguments_of(adapted)), f"model.{_LORA}")
            ) from error


def lora_model() -> type[BaseModel]:
    """The pydantic model of ``[model.lora]``."""
    return table_model(adapted, title=_LORA)


def _weights(table: Mapping[str, Any]) -> str | None:
    weights = table.get(WEIGHTS, NONE)
    if not isinstance(weights, str):
        raise ConfigError(f"model.{WEIGHTS}: must be a file, .safetensors or .pt, got {weights!r}")
    return None if weights == NONE else weights


def _named_model(table: Mapping[str, Any]) -> Source:
    """A function of FastFed's, and its arguments."""
    make, words = find(MODELS, "model.name", table["name"]), f"model {table['name']!r}"
    given = {key: value for key, value in table.items() if key != "name"}
    given = checked(table_model(make), "model", given, words, partial(owners, "model", MODELS))
    require(make, "model", given, words)
    return Source(str(table["name"]), make, given)


def make_model(source: Model, seed: int) -> nn.Module:
    """The model with the weights that a seed gives; the caller's random numbers stay as they were."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model: nn.Module = source.make()
        except ConfigError:
            raise
        except (ValueError, TypeError, RuntimeError) as error:
            raise ConfigError(keyed(error, keys_in("model", arguments_of(source.source.function)), "model")) from error
    return model
