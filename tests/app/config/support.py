"""Small configurations, and values that fit an option's type."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from fastfed.app import config
from fastfed.app.config.options import REQUIRED, Option, options_of

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
    options = options_of(function).values()
    return {option.name: _any(option) for option in options if option.default is REQUIRED and option.name not in but}


def _any(option: Option) -> Any:
    return {"a number": 0.25, "a whole number": 3}.get(option.words, "somewhere")


def others(option: Option) -> list[Any]:
    """Values of an option that are not its default, where its type is a simple one."""
    if option.words.startswith("a number"):
        return [0.125, 0.75]
    if option.words.startswith("a whole number"):
        return [2, 7]
    return [not option.default] if option.type is bool else []


def read_again(made: config.Config) -> config.Config:
    """The configuration of the file that it writes."""
    return config.parse(tomllib.loads(made.toml()))
