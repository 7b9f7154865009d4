"""Small configurations, and values that fit an option's type."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from fastfed.app import config
from fastfed.app.config.options import NO_DEFAULT, Argument, arguments_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DATA = {"name": "digits", "partition": "iid", "clients": 20}
MODEL = {"name": "mlp", "sizes": [64, 8, 10]}


def tables(**changed: Any) -> dict[str, Any]:
    """A configuration of two rounds, with other tables in place of these."""
    plain = {
        "data": DATA,
        "model": MODEL,
        "client": {"rule": "sgd", "lr": 0.1},
        "server": {"rule": "sgd"},
        "run": {"rounds": 2, "cohort": 4},
    }
    return {key: value for key, value in {**plain, **changed}.items() if value is not None}


def needed(function: Callable[..., Any], *but: str) -> dict[str, Any]:
    """Some value for every argument without a default."""
    wanted = [argument for argument in arguments_of(function).values() if argument.default is NO_DEFAULT]
    return {argument.name: _any(argument) for argument in wanted if argument.name not in but}


def _any(argument: Argument) -> Any:
    return {"a number": 0.25, "a whole number": 3}.get(argument.words, "somewhere")


def others(argument: Argument) -> list[Any]:
    """Values of an option that are not its default, where its type is a simple one."""
    if argument.words.startswith("a number"):
        return [0.125, 0.75]
    if argument.words.startswith("a whole number"):
        return [2, 7]
    return [not argument.default] if argument.type is bool else []


def read_again(made: config.Config) -> config.Config:
    """The configuration of the file that it writes."""
    return config.parse(tomllib.loads(made.toml()))
