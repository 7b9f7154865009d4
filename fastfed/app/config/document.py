"""TOML in and out: files and what they are based on, dotted overrides, and the resolved form."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from .errors import ConfigError
from .options import without_none

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BASE = "base"  # the key that names the file which a file changes
SWEEP = "sweep"  # the table of what `fastfed sweep` varies, which is no part of a run
MODEL, NAME = "model", "name"  # the table of the model, and its key that says which
FROM = "from"  # the key of [model] that says where a module of the user's own is looked for
FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")  # "package.module:function"
DOTTED_KEY = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def read(path: str | Path) -> dict[str, Any]:
    """The tables of a file on top of those of its `base`, a path relative to the file, which may have a base itself.
    Tables are merged key by key; anything else, lists too, takes the place of what the base has."""
    if not Path(path).exists():
        raise ConfigError(f"{path}: no such file; `fastfed init {path}` writes one to begin with")
    return _on_its_bases(Path(path), ())


def _on_its_bases(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    """`above` are the files that are based on this one, resolved."""
    if path.resolve() in above:
        raise ConfigError(f"{path}: is a base of itself")
    tables = read_alone(path)
    is_whole = isinstance(tables.get(MODEL), str)
    tables = at_home(tables, path.parent)
    if BASE not in tables:
        return tables
    base = tables.pop(BASE)
    if not isinstance(base, str):
        raise ConfigError(f"{path}: {BASE}: must be the path of another file, relative to this one, got {base!r}")
    try:
        below = _on_its_bases(path.parent / base, (*above, path.resolve()))
    except ConfigError as error:
        raise ConfigError(f"{path}: {BASE}: {error}") from error
    model = below.get(MODEL)
    if isinstance(model, Mapping) and NAME in tables.get(MODEL, {}):  # another one: not where the base's was
        below[MODEL] = {} if is_whole else {key: value for key, value in model.items() if key != FROM}
    return _merged(below, tables)


def at_home(tables: Mapping[str, Any], home: Path) -> dict[str, Any]:
    """The tables with the model as a table, and with the directory where a module of the user's own is looked for
    first: `home`, or what the table says, relative to that."""
    model = {NAME: tables[MODEL]} if isinstance(tables.get(MODEL), str) else tables.get(MODEL)
    if not isinstance(model, Mapping):
        return dict(tables)
    place = model.get(FROM, ".")
    if names_module(model.get(NAME)) and isinstance(place, str):
        model = {**model, FROM: str((home / Path(place).expanduser()).resolve())}
    return {**tables, MODEL: dict(model)}


def names_module(name: Any) -> bool:
    """Whether a model's name is that of a function in a module of the user's own."""
    return isinstance(name, str) and ":" in name


def _merged(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    both = {key: _merged(base[key], top[key]) for key in base if _is_table(base[key]) and _is_table(top.get(key))}
    return {**base, **top, **both}


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def read_alone(path: str | Path) -> dict[str, Any]:
    """What a file says itself."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from error
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deeply") from None


def overridden(document: Mapping[str, Any], sets: Iterable[str]) -> dict[str, Any]:
    """The tables with every "dotted.key=value" of `sets` put in: TOML values; what is none is taken as a string."""
    changed = copy.deepcopy(dict(document))
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals or not DOTTED_KEY.fullmatch(key.strip()):
            raise ConfigError(f"--set: must be a dotted key and a value, as in server.lr=0.1, got {text!r}")
        put(changed, key.strip(), _toml_value(value.strip()), "--set")
    return changed


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text  # a bare word, so that nobody needs quotes within quotes


def put(document: dict[str, Any], dotted: str, value: Any, option: str) -> None:
    """Sets a dotted key, as an option of the command line says, which errors name."""
    *tables, last = dotted.split(".")
    place = document
    for depth, name in enumerate(tables):
        place = place.setdefault(name, {})
        if not isinstance(place, dict):
            raise ConfigError(f"{option}: {'.'.join(tables[: depth + 1])} is not a table, so {dotted} cannot be set")
    place[last] = value
    if dotted == f"{MODEL}.{NAME}":  # where the model was found that was named before says nothing
        place.pop(FROM, None)


def write(document: Mapping[str, Any]) -> str:
    """The tables as TOML, None as "none"."""
    return tomli_w.dumps(without_none(document))
