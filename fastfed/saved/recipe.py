"""How to make a thing again: the FastFed function that made it and its arguments, as JSON. Checkpoints hold recipes."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from os import PathLike, fspath
from typing import Any, ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_FORMERLY = {"participation": "plan"}  # where old checkpoints say that a thing is, and where it is now
_ATTRIBUTE = "recipe"  # where a thing keeps its recipe
_REMEMBERS = "writes_recipes"  # what marks a remembered function


def _before(function: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What settings were before a field was there, where that is not the field's default now; by their other fields."""
    if function == "tune.Fathom":
        return {"form": "paper"}
    if function in ("data.stack_overflow_nwp", "data.stack_overflow_tags"):
        return {"seed": None}
    if function == "models.emnist_cnn":
        return {"dense_relu": True}
    found: dict[str, Any] = {"from_first": True} if function.startswith("clients.") and given.get("warmup") else {}
    if function == "clients.SPS":
        found["eps"] = 0.0
    if function == "clients.Adam" or (function == "clients.SM3" and given["form"] == "adam"):
        found["bias_correction"] = True
    return found


class NoRecipe(ValueError):
    """A thing cannot be made again from JSON alone: the message says which argument stands in the way."""


@dataclass(frozen=True)
class Recipe:
    """A call of a public FastFed function: its dotted name below ``fastfed``, and JSON arguments (or recipes)."""

    function: str
    arguments: Mapping[str, Any]

    def json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"recipe": self.function, "arguments": {k: _to_json(k, v) for k, v in self.arguments.items()}}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Recipe:
        """The recipe that `json` wrote."""
        return cls(value["recipe"], {name: _from_json(v) for name, v in value["arguments"].items()})

    def make(self) -> Any:
        """Calls the function again. Only what writes recipes is ever called: remembered functions and settings."""
        module_name, _, name = self.function.rpartition(".")
        module_name = _FORMERLY.get(module_name, module_name)
        try:
            function = getattr(importlib.import_module(f"fastfed.{module_name}"), name, None)
        except ModuleNotFoundError:
            function = None
        if not hasattr(function, _REMEMBERS) and not _is_settings(function):
            raise ValueError(f"recipe: fastfed has no function or settings {self.function!r} that a recipe may name")
        arguments = {k: _made(v) for k, v in self.arguments.items()}
        arguments = {**_before(self.function, arguments), **arguments}
        spread = arguments.pop("*", ())
        return function(*spread, **arguments)  # type: ignore[misc]


def remembered(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """The function's results remember the call in an attribute `recipe`; None where an argument is no JSON value."""
    signature = inspect.signature(function)
    package = function.__module__.removeprefix("fastfed.")
    public = package.split(".")[0]

    @functools.wraps(function)
    def wrapper(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        result = function(*args, **kwargs)
        given = signature.bind(*args, **kwargs).arguments
        name = f"{public}.{function.__name__}"
        # A default that was another one once is written down: a recipe without it is of that time.
        changed = {key: signature.parameters[key].default for key in _before(name, given) if key not in given}
        try:
            recipe: Recipe | None = Recipe(name, _arguments(signature, {**given, **changed}))
        except NoRecipe:
            recipe = None
        return _attach(result, recipe)

    setattr(wrapper, _REMEMBERS, True)
    return wrapper


def recipe_of(thing: object) -> Recipe | None:
    """The recipe that a thing remembers; frozen settings of FastFed are their own."""
    found = getattr(thing, _ATTRIBUTE, None)
    if isinstance(found, Recipe):
        return found
    if not _is_settings(type(thing)):
        return None
    given = {field.name: getattr(thing, field.name) for field in fields(thing)}  # type: ignore[arg-type]
    try:
        arguments = {name: _remember(name, value) for name, value in given.items()}
    except NoRecipe:
        return None
    return Recipe(f"{_home(type(thing))}.{type(thing).__name__}", arguments)


def to_json(name: str, value: Any) -> Any:
    """A setting as JSON: plain values as they are, others by their recipe; `NoRecipe` where there is none."""
    return _to_json(name, _remember(name, value))


def from_json(value: Any) -> Any:
    """The setting that `to_json` wrote."""
    return _made(_from_json(value))


def _made(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_made, value))
    return value.make() if isinstance(value, Recipe) else value


def _home(kind: Any) -> str:
    return str(kind.__module__).removeprefix("fastfed.")


def _is_settings(kind: Any) -> bool:
    """A frozen dataclass of FastFed's that is no data: its fields say everything about it."""
    return (
        isinstance(kind, type)
        and is_dataclass(kind)
        and kind.__module__.startswith("fastfed.")
        and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
        and all(field.name != _ATTRIBUTE for field in fields(kind))
    )


def _attach(result: Any, recipe: Recipe | None) -> Any:
    if is_dataclass(result) and any(field.name == _ATTRIBUTE for field in fields(result)):
        return replace(result, **{_ATTRIBUTE: recipe})  # type: ignore[type-var]
    setattr(result, _ATTRIBUTE, recipe)
    return result


def _arguments(signature: inspect.Signature, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name: those of ``*args`` under "*", those of ``**kwargs`` one by one."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            found["*"] = tuple(_remember(name, one) for one in value)
        elif kind is inspect.Parameter.VAR_KEYWORD:
            found |= {key: _remember(key, one) for key, one in value.items()}
        else:
            found[name] = _remember(name, value)
    return found


def _remember(name: str, value: Any) -> Any:
    """A value that JSON can hold, or the recipe of one that was made by one."""
    own = recipe_of(value)
    if own is not None:
        return own
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, PathLike):
        return fspath(value)
    if isinstance(value, (list, tuple)):
        return tuple(_remember(name, one) for one in value)
    raise NoRecipe(f"{name}: {type(value).__name__} cannot be written as JSON")


def _to_json(name: str, value: Any) -> Any:
    if isinstance(value, Recipe):
        return value.json()
    return [_to_json(name, one) for one in value] if isinstance(value, tuple) else value


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        return Recipe.from_json(value)
    return tuple(_from_json(one) for one in value) if isinstance(value, list) else value
