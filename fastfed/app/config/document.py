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
RUN, WEIGHTS = "run", "weights"
# The tables that may name what is the user's own, by which key; `ALONE` may be that name instead of a table.
NAMED = {MODEL: NAME, "data": NAME, "client": "rule", "server": "rule", "aggregation": "kind"}
ALONE = (MODEL, "data")
FROM = "from"  # the key of these tables that says where a module of the user's own is looked for
DIGEST = "source-digest"  # and the one that says what it said
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
    whole = {table for table in ALONE if isinstance(tables.get(table), str)}
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
    for table, key in NAMED.items():
        if _is_table(below.get(table)) and _is_table(tables.get(table)) and key in tables[table]:
            # Another one: not where the base's was.
            below[table] = {} if table in whole else {k: v for k, v in below[table].items() if k not in (FROM, DIGEST)}
    return _merged(below, tables)


def at_home(tables: Mapping[str, Any], home: Path) -> dict[str, Any]:
    """The tables, a name alone as a table, with the directory where modules of the user's own are looked for first:
    `home`, or what the table says, relative to that. So is the file of a model's weights."""
    found = dict(tables)
    for table, key in NAMED.items():
        held = {key: tables[table]} if table in ALONE and isinstance(tables.get(table), str) else tables.get(table)
        if isinstance(held, Mapping):
            found[table] = _placed(held, names_module(held.get(key)), home)
    if isinstance(tables.get(RUN), Mapping):
        found[RUN] = _placed(tables[RUN], any(map(names_module, functions_of(tables[RUN]))), home)
    model = found.get(MODEL)
    weights = model.get(WEIGHTS) if isinstance(model, Mapping) else None
    if isinstance(weights, str) and Path(weights).suffix:  # a word such as "none" is no file
        found[MODEL] = {**found[MODEL], WEIGHTS: str((home / Path(weights).expanduser()).resolve())}
    return found


def _placed(table: Mapping[str, Any], names_one: bool, home: Path) -> dict[str, Any]:
    place = table.get(FROM, ".")
    if not names_one or not isinstance(place, str):
        return dict(table)
    return {**table, FROM: str((home / Path(place).expanduser()).resolve())}


def functions_of(run: Mapping[str, Any]) -> list[Any]:
    """What ``[run]`` may name of the user's own: its loss, and metrics, a list or a table."""
    metrics = run.get("metrics", ())
    listed = list(metrics.values()) if isinstance(metrics, Mapping) else metrics
    return [run.get("loss"), *(listed if isinstance(listed, list | tuple) else ())]


def names_module(name: Any) -> bool:
    """Whether a name is that of a function in a module of the user's own."""
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
    if NAMED.get(tables[0] if tables else "") == last and len(tables) == 1:  # where another one was found says nothing
        for told in (FROM, DIGEST):
            place.pop(told, None)


def write(document: Mapping[str, Any]) -> str:
    """The tables as TOML, None as "none"."""
    return tomli_w.dumps(without_none(document))
