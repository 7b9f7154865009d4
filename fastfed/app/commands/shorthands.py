"""Options that are short for --set: the settings that everybody changes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

_KEYS: dict[str, tuple[str, type]] = {  # by the parameters that typer sees: the dotted key, and the type of its value
    "rounds": ("run.rounds", int),
    "seed": ("run.seed", int),
    "cohort": ("run.cohort", int),
    "epochs": ("run.epochs", float),
    "batch_size": ("run.batch_size", int),
    "client_lr": ("client.lr", float),
    "server_lr": ("server.lr", float),
    "device": ("run.device", str),
}
_SETS = "sets"  # the parameter of a command that is --set


def with_shorthands(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options; what they are given arrives in its `sets`, after those of --set."""

    @functools.wraps(command)
    def called(**given: Any) -> None:
        sets = list(given[_SETS] or ())
        for name, (key, _) in _KEYS.items():
            value = given.pop(name)
            if value is None:
                continue
            if any(text.partition("=")[0].strip() == key for text in sets):
                raise typer.BadParameter(f"{key} is given by --set too; give it once", param_hint=_option(name))
            sets.append(f"{key}={value}")
        command(**{**given, _SETS: sets})

    known = inspect.signature(command, eval_str=True)
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(name, key, kind))
        for name, (key, kind) in _KEYS.items()
    ]
    own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in known.parameters.values()]
    place = list(known.parameters).index(_SETS) + 1
    called.__signature__ = known.replace(parameters=[*own[:place], *added, *own[place:]])  # type: ignore[attr-defined]
    return called


def _annotation(name: str, key: str, kind: type) -> Any:
    metavar = {int: "N", float: "X", str: "NAME"}[kind]
    return Annotated[
        kind | None, typer.Option(_option(name), metavar=metavar, help=f"Short for --set {key}={metavar}.")
    ]


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
