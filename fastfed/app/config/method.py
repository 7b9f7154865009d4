"""Where the arguments of a method stand in a file: each in the table of what it becomes a part of.

`client_lr` is ``client.lr``; the rule of a side is its table's `rule`; what an argument becomes a field of says
``ff.methods.Of``, beside the argument. What remains are the method's own switches, in ``[method_options]``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any, get_args, get_type_hints

from ...methods import Of
from ...servers import Server
from .errors import ConfigError, keyed
from .kinds import METHODS, SERVERS, find
from .options import NO_DEFAULT, NONE, arguments_of, call, checked, table_model, written
from .parts import CHOICES

PARTS = ("client", "server", "tuner", "timing", "exchange")  # settings that a method may make, each with a table
SIDES = ("client", "server")
_RATES = tuple(f"{side}_lr" for side in SIDES)


@cache
def homes(method: str) -> Mapping[str, str]:
    """The dotted key of every argument of a method."""
    becomes = _becomes(method)
    return {name: _home(name, becomes.get(name)) for name in inspect.signature(METHODS[method]).parameters}


def _becomes(method: str) -> dict[str, Of]:
    """What the arguments become that say so."""
    hints = get_type_hints(METHODS[method], include_extras=True)
    notes = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {name: note for name, told in notes.items() for note in told if isinstance(note, Of)}


def _home(name: str, becomes: Of | None) -> str:
    side, _, rest = name.partition("_")
    if rest and side in SIDES:
        return f"{side}.{rest}"
    if name in SIDES:
        return f"{name}.rule"
    if becomes is None or becomes.field is not None:  # under another name than the field's, so it has its own place
        return f"method_options.{name}"
    return f"{becomes.setting}.{name}"


def example(method: str) -> dict[str, Any]:
    """The settings of a method with its defaults; where it has none, any number stands in."""
    settings: dict[str, Any] = METHODS[method](**_stand_ins(method))
    return settings


def needed(method: str) -> tuple[str, ...]:
    """The arguments that a file must give: those without a default, and learning rates whose default is None."""
    parameters = inspect.signature(METHODS[method]).parameters.values()
    return tuple(
        p.name for p in parameters if p.default is NO_DEFAULT or (p.name in _RATES and p.default is None)
    )  # fmt: skip


def _stand_ins(method: str) -> dict[str, Any]:
    """A value for everything that must be given; the right one takes its place once it is known where it goes."""
    hints = get_type_hints(METHODS[method])
    return {name: 1 if hints[name] is int else 0.1 for name in needed(method)}


def own_options(method: str) -> tuple[str, ...]:
    """The arguments that stand in ``[method_options]``."""
    return tuple(name for name, home in homes(method).items() if home == f"method_options.{name}")


@cache
def decided(method: str) -> Mapping[str, str]:
    """The dotted keys whose values follow from one of the numbers in ``[method_options]``, with its name: a file that
    gives both must mean the same."""
    return {f"{of.setting}.{of.field}": name for name, of in _becomes(method).items() if of.field is not None}


def own_model(method: str) -> Any:
    """The pydantic model of ``[method_options]``."""
    rest = tuple(name for name in homes(method) if name not in own_options(method))
    return table_model(METHODS[method], without=rest, title=f"{method}_options")


def base(method: str, document: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings that a method stands for, and what it was called with; what its tables say comes on top."""
    make = find(METHODS, "method", method)
    words = f"method {method!r}"
    own = checked(own_model(method), "method_options", document.get("method_options", {}), words)
    stand_ins = _stand_ins(method)
    for name in stand_ins:
        table, _, key = homes(method)[name].partition(".")
        if name not in own and key not in document.get(table, {}):
            kind = arguments_of(make)[name].words.removesuffix(f' or "{NONE}"')
            raise ConfigError(f"{homes(method)[name]}: {words} needs it, {kind}")
    chosen = {**own, **_sides(method, document), **_of_run(method, document)}
    try:
        return make(**{**stand_ins, **chosen}), chosen
    except (ValueError, TypeError) as error:
        raise ConfigError(keyed(error, homes(method))) from error


def tables(method: str) -> dict[str, Any]:
    """What a file would say of a method with all its defaults; what it must say has any value."""
    made = example(method)
    parameters = inspect.signature(METHODS[method]).parameters
    own = {name: _stand_ins(method).get(name, parameters[name].default) for name in own_options(method)}
    rest = {name: written(value) for name, value in made.items() if name not in PARTS}
    found: dict[str, Any] = {"method": method, **({"method_options": own} if own else {})}
    for part in PARTS:
        if made.get(part) is not None:
            every = CHOICES[part].written(made[part])
            found[part] = {key: value for key, value in every.items() if f"{part}.{key}" not in decided(method)}
        if takes_name(method, part):
            found[part]["rule"] = parameters[part].default
    return {**found, **({"run": rest} if rest else {})}


def takes_name(method: str, side: str) -> bool:
    """Whether the rule of a side is an argument of the method, given by its name."""
    hint = get_type_hints(METHODS[method]).get(side)
    return hint is str or str in get_args(hint)


def _sides(method: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """The rules of both sides, where the method leaves them open and the file names one."""
    found = {}
    for side in SIDES:
        table = document.get(side, {})
        if side not in homes(method) or "rule" not in table:
            continue
        if takes_name(method, side):
            found[side] = table["rule"]
        else:
            found[side] = any_server(table)
    return found


def _of_run(method: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a file gives in ``[run]``: a method may make more of them than the setting of that name."""
    run = document.get("run", {})
    names = [name for name, of in _becomes(method).items() if of.setting == "run" and of.field is None]
    return {name: run[name] for name in names if isinstance(run, Mapping) and name in run}


def any_server(table: Mapping[str, Any]) -> Server:
    """The server optimizer of a table that names its rule."""
    kind = find(SERVERS, "server.rule", table.get("rule"))
    words = f"server rule {table['rule']!r}"
    given = {key: value for key, value in table.items() if key != "rule"}
    made: Server = call(kind, "server", checked(table_model(kind), "server", given, words), words)
    return made
