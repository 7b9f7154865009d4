"""What a function or a dataclass takes, as keys of a TOML table: names, types and defaults come from its signature.

Every table is checked by a pydantic model that is made here. A model checks names and types; what a value may be is
said by the constructor that gets it, whose own sentence is passed on.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from os import PathLike
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError, create_model
from torch import Tensor

from ...checks import nearest
from .errors import ConfigError, keyed, keys_in

NONE = "none"  # how a file writes None, which TOML lacks: only where None is allowed
NO_DEFAULT = inspect.Parameter.empty
Extras = tuple[tuple[str, Any], ...]


class NotToml(TypeError):
    """A type whose values no file can hold."""


@dataclass(frozen=True)
class Argument:
    """One argument: the type that its value has in a file, its default (`NO_DEFAULT` if it has none), and whether it
    stands for all positional ones."""

    name: str
    type: Any
    default: Any
    spread: bool = False
    is_path: bool = False

    @property
    def words(self) -> str:
        return words(self.type)

    @property
    def takes_list(self) -> bool:
        """Whether its value may be a list."""
        return _may_be_list(self.type)


@cache
def arguments_of(function: Callable[..., Any]) -> Mapping[str, Argument]:
    """What a file may say to a function: arguments that no file can hold are left out."""
    constructor: Any = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    hints = get_type_hints(constructor)
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in hints:
            continue
        spread = parameter.kind is inspect.Parameter.VAR_POSITIONAL
        try:
            kind = list_of(toml_type(hints[name])) if spread else toml_type(hints[name])
        except NotToml:
            continue
        default = () if spread else _default(function, parameter)
        found[name] = Argument(name, kind, default, spread, is_path=_holds_path(hints[name]))
    return found


def _default(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """A dataclass may make its default anew each time."""
    if is_dataclass(function):
        field = next(field for field in fields(function) if field.name == parameter.name)
        if callable(field.default_factory):
            return field.default_factory()
    return parameter.default


def _holds_path(hint: Any) -> bool:
    """Whether a type has room for paths, by itself or within."""
    kinds = (hint, get_origin(hint))
    return any(isinstance(kind, type) and issubclass(kind, PathLike) for kind in kinds) or any(
        _holds_path(part) for part in get_args(hint)
    )


# ---- types ----------------------------------------------------------------------------------------------------------


def toml_type(hint: Any) -> Any:
    """The type of a value in a file, of an argument with this type; `NotToml` if there is none."""
    if hint in (bool, int, float, str):
        return hint
    if hint in (None, NoneType):
        return Literal["none"]
    if isinstance(hint, type) and is_dataclass(hint) and arguments_of(hint):
        return table_model(hint)
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return hint
    if origin in (Union, UnionType):
        return _union(parts)
    if origin is tuple:  # files have lists
        return Annotated[tuple[tuple(part if part is ... else toml_type(part) for part in parts)], Strict(False)]  # type: ignore[misc]
    if origin in (list, Sequence):
        return list_of(toml_type(parts[0]))
    if origin in (dict, Mapping):
        return dict[str, toml_type(parts[1])]  # type: ignore[misc]
    raise NotToml(f"{hint} cannot be written in a file")


def _union(parts: tuple[Any, ...]) -> Any:
    """Of several tables the one is meant whose options are given, those without a default among them."""
    kept = []
    several = sum(isinstance(part, type) and is_dataclass(part) for part in parts) > 1
    for part in parts:
        try:
            is_table = several and isinstance(part, type) and is_dataclass(part)
            kept.append(table_model(part, whole=True) if is_table else toml_type(part))
        except NotToml:
            continue
    if not [part for part in kept if part != Literal["none"]]:
        raise NotToml(f"{parts} cannot be written in a file")
    return either(kept)


def one_of(*values: str) -> Any:
    """The type of these words."""
    return Literal[values]


def either(kinds: Sequence[Any]) -> Any:
    """The union of these types."""
    return Union[tuple(kinds)]  # noqa: UP007 - made of a list


def list_of(kind: Any) -> Any:
    """The type of lists of these."""
    return list[kind]


def words(kind: Any) -> str:
    """What a value of this type is called."""
    plain = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
    if kind in plain:
        return plain[kind]
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return words(parts[0])
    if origin is Literal:
        return " or ".join(f'"{part}"' for part in parts)
    if origin in (Union, UnionType):
        return " or ".join(words(part) for part in parts)
    if origin in (list, tuple):
        return f"a list of {_plural(parts[0])}"
    return "a table"


def _may_be_list(kind: Any) -> bool:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _may_be_list(parts[0])
    if origin in (Union, UnionType):
        return any(map(_may_be_list, parts))
    return origin in (list, tuple)


def _plural(kind: Any) -> str:
    return {int: "whole numbers", float: "numbers", str: "strings"}.get(kind, "lists or numbers")


# ---- tables ---------------------------------------------------------------------------------------------------------

_MADE_BY: dict[type[BaseModel], Callable[..., Any]] = {}


@cache
def table_model(
    function: Callable[..., Any],
    extras: Extras = (),
    without: tuple[str, ...] = (),
    title: str = "",
    whole: bool = False,
) -> type[BaseModel]:
    """The pydantic model of a table with a function's options, and `extras` besides: all of them may be left out, as
    what is missing depends on the rest of the file; not so where the table stands alone, `whole`."""
    taken: dict[str, Any] = {name: (kind, Field(default=None)) for name, kind in extras}
    for argument in arguments_of(function).values():
        if argument.name not in without:
            needed = whole and argument.default is NO_DEFAULT
            taken[argument.name] = (argument.type, Field()) if needed else _field(argument)
    summary = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")
    made = create_model(title or function.__name__, __doc__=summary, __config__=_STRICT, **taken)
    _MADE_BY[made] = function
    return made


_STRICT = ConfigDict(extra="forbid", strict=True, protected_namespaces=())


def plain_model(title: str, summary: str, taken: Mapping[str, Any]) -> type[BaseModel]:
    """The model of a table that is not one function's: its keys with their types, or with the options they are."""
    held = {
        name: _field(kind) if isinstance(kind, Argument) else (kind, Field(default=None))
        for name, kind in taken.items()
    }
    made: type[BaseModel] = create_model(title, __doc__=summary, __config__=_STRICT, **held)  # type: ignore[call-overload]
    return made


def _field(argument: Argument) -> tuple[Any, Any]:
    """It may always be left out; the default that it then has is for editors."""
    shown = {} if argument.default is NO_DEFAULT else {"default": _plain(argument.default)}
    return argument.type, Field(default=None, json_schema_extra=shown)


def checked(
    model: type[BaseModel],
    where: str,
    table: Any,
    subject: str,
    elsewhere: Callable[[str], str | None] = lambda key: None,
) -> dict[str, Any]:
    """The values that a table gives, by key. `subject` is what takes them, for errors; `elsewhere` may say to whom an
    unknown key belongs."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: must be a table, got {table!r}")
    try:
        found = model.model_validate(dict(table))
    except ValidationError as error:
        told: dict[str, str] = {}
        for problem in _telling(error.errors()):
            path, sentence = _told(model, where, problem, subject, elsewhere)
            # Of several tables that a key may hold, one that knows the key says what is wrong with it.
            if path not in told or problem["type"] != "extra_forbidden":
                told[path] = sentence
        deepest = [s for path, s in told.items() if not any(p != path and p.startswith(f"{path}.") for p in told)]
        raise ConfigError("\n".join(deepest)) from None
    return {name: _value(f"{where}.{name}", getattr(found, name)) for name in table}


def _telling(problems: Sequence[Any]) -> list[Any]:
    """Without the keys that are missing in a table where one that is there is wrong."""
    deepest = max((len(problem["loc"]) for problem in problems if problem["type"] != "missing"), default=0)
    return [problem for problem in problems if problem["type"] != "missing" or len(problem["loc"]) > deepest]


def _value(where: str, value: Any) -> Any:
    if isinstance(value, BaseModel):
        given = {name: _value(f"{where}.{name}", getattr(value, name)) for name in value.model_fields_set}
        return call(_MADE_BY[type(value)], where, given, f"[{where}]")
    return None if value == NONE else value


def _told(
    model: type[BaseModel], where: str, problem: Any, subject: str, elsewhere: Callable[[str], str | None]
) -> tuple[str, str]:
    """One of pydantic's errors in the words of this house: the dotted key that it is about, and the sentence."""
    path, kind, nested, value = where, None, model, problem["input"]
    missing = problem["type"] == "missing"
    tried = [model]
    for part in problem["loc"]:
        named = [table for table in tried if part == table.__name__]
        if named:  # which of several types was tried
            nested = named[0]
            continue
        field = nested.model_fields.get(part)
        if field is None and problem["type"] == "extra_forbidden":
            subject = subject if nested is model else f"[{path}]"
            path = f"{path}.{part}"
            known = dict.fromkeys(name for table in tried for name in table.model_fields)
            return path, unknown_key(path, subject, tuple(known), elsewhere)
        if field is None:  # within a value, or another type that was tried
            break
        path, kind = f"{path}.{part}", field.annotation
        tried = _tables(kind)
        if not tried:
            break
        nested = tried[0]
    return path, f"{path}: must be given, {words(kind)}" if missing else f"{path}: must be {words(kind)}, got {value!r}"


def _tables(kind: Any) -> list[type[BaseModel]]:
    """The tables that a key may hold."""
    parts = (kind, *get_args(kind))
    return [part for part in parts if isinstance(part, type) and not get_args(part) and issubclass(part, BaseModel)]


WOULD_IGNORE = "would ignore it"


def unknown_key(
    dotted: str,
    subject: str,
    known: tuple[str, ...],
    elsewhere: Callable[[str], str | None] = lambda key: None,
) -> str:
    """The sentence for a key that nobody knows, or that another one would have known."""
    key = dotted.rpartition(".")[2]
    owner = elsewhere(key)
    takes = f"it takes {', '.join(known) or 'none'}"
    if owner is not None:
        return f"{dotted}: {subject} {WOULD_IGNORE}, it is an option of {owner} ({takes})"
    return f"{dotted}: {subject} has no such option ({takes}).{nearest(key, known)}"


# ---- calls ----------------------------------------------------------------------------------------------------------


def call(function: Callable[..., Any], where: str, given: Mapping[str, Any], subject: str) -> Any:
    """Calls a function with what a table gave it; what it refuses becomes a sentence about that table."""
    require(function, where, given, subject)
    try:
        return invoke(function, given)
    except (ValueError, TypeError) as error:
        raise ConfigError(keyed(error, keys_in(where, arguments_of(function)), where)) from error


def require(function: Callable[..., Any], where: str, given: Mapping[str, Any], subject: str) -> None:
    """Refuses to do without an argument that has no default."""
    for argument in arguments_of(function).values():
        if argument.default is NO_DEFAULT and argument.name not in given:
            raise ConfigError(f"{where}.{argument.name}: {subject} needs it, {argument.words}")


def invoke(function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """Calls a function with arguments by name, those of ``*args`` too."""
    arguments = dict(given)
    spread = [arguments.pop(name, ()) for name, argument in arguments_of(function).items() if argument.spread]
    return function(*(spread[0] if spread else ()), **arguments)


def written(value: Any) -> Any:
    """A value as a file would give it: tables for settings, lists for tuples and tensors; None stays."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: written(getattr(value, name)) for name in arguments_of(type(value))}
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [written(one) for one in value]
    if isinstance(value, Mapping):
        return {name: written(one) for name, one in value.items()}
    return value


def without_none(value: Any) -> Any:
    """The same with "none" for None."""
    if isinstance(value, Mapping):
        return {name: without_none(one) for name, one in value.items()}
    if isinstance(value, list):
        return [without_none(one) for one in value]
    return NONE if value is None else value


def owners(what: str, kinds: Mapping[str, Callable[..., Any]], key: str) -> str | None:
    """Who has an option of that name."""
    found = [repr(name) for name, kind in kinds.items() if key in arguments_of(kind)]
    others = " and others" if len(found) > 3 else ""
    return f"{what} {', '.join(found[:3])}{others}" if found else None


def _plain(default: Any) -> Any:
    return without_none(written(default))
