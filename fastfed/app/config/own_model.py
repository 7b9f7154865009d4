"""Models of the user's own: a function or a class that a file names as "package.module:function".

A module is looked for beside the file that names it, then on the import path. Where that was is the key `from`, which a
run's directory keeps: no argument of a Python function can have that name.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

from torch import nn

from ..errors import first_line
from .document import FROM, FUNCTION
from .errors import ConfigError
from .options import NO_DEFAULT, Argument, NotToml, checked, list_of, plain_model, toml_type, written

_found_in: dict[str, set[str]] = {}  # by directory, the modules that were imported from it


@dataclass(frozen=True)
class OwnModel:
    """A function of the user's own that makes a module, and the arguments that a file gives it; `home` is the directory
    where it is looked for first, None for the import path alone."""

    name: str
    home: str | None
    function: Callable[..., Any]
    given: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> OwnModel:
        """The table ``[model]`` with such a name."""
        name, home = table["name"], table.get(FROM)
        if not FUNCTION.fullmatch(name):
            raise ConfigError(f'model.name: must be written "package.module:function", got {name!r}')
        if home is not None and not isinstance(home, str):
            raise ConfigError(f"model.{FROM}: must be the directory of the module, got {home!r}")
        named = cls(name, home, _imported(name, home))
        given = {key: value for key, value in table.items() if key not in ("name", FROM)}
        return cls(name, home, named.function, named._fitting(given))

    def _fitting(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as they are given on; those that the function does not take are refused."""
        subject, known = f"model {self.name!r}", self._signature.known
        checkable = {key: value for key, value in given.items() if key in known or not self._signature.is_open}
        model = plain_model(self.name.partition(":")[2], "", known)
        found = {**given, **checked(model, "model", checkable, subject)}
        for name in self._signature.needed:
            if name not in found:
                unsaid = "" if name in known else ", and no file can hold it; give it a default"
                raise ConfigError(f"model.{name}: {subject} needs it{unsaid}")
        return found

    @cached_property
    def _signature(self) -> _Signature:
        return _Signature.of(self.function, self.name)

    def arguments(self) -> dict[str, Any]:
        """All that a file can hold, and where the module was looked for."""
        known = self._signature.known.values()
        defaults = {one.name: () if one.spread else one.default for one in known if one.default is not NO_DEFAULT}
        told = {name: written(value) for name, value in {**defaults, **self.given}.items()}
        told = {name: value for name, value in told.items() if name in self.given or _is_plain(value)}
        return told if self.home is None else {FROM: self.home, **told}

    def make(self) -> nn.Module:
        """What the function makes; whatever it raises is one sentence."""
        named = dict(self.given)
        spread = [named.pop(one.name, ()) for one in self._signature.known.values() if one.spread]
        with _looking_in(self.home), _blaming(self.name, "raised"):
            made = self.function(*(spread[0] if spread else ()), **named)
        if not isinstance(made, nn.Module):
            raise ConfigError(f"model.name: {self.name} gives a {type(made).__name__}, not a torch.nn.Module")
        return made


@dataclass(frozen=True)
class _Signature:
    """What a file may say to a function: the arguments `known`, those `needed`, and whether it takes any other."""

    known: Mapping[str, Argument]
    needed: tuple[str, ...]
    is_open: bool

    @classmethod
    def of(cls, function: Callable[..., Any], name: str) -> _Signature:
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError) as error:
            raise ConfigError(f"model.name: nobody can tell what {name} takes: {first_line(error)}") from error
        hints, known, needed, is_open = _hints(function), dict[str, Argument](), list[str](), False
        for one in parameters:
            spread = one.kind is inspect.Parameter.VAR_POSITIONAL
            if one.kind is inspect.Parameter.VAR_KEYWORD:
                is_open = True
                continue
            if one.default is NO_DEFAULT and not spread:
                needed.append(one.name)
            try:
                kind = toml_type(hints[one.name]) if one.name in hints else Any
            except NotToml:
                continue
            known[one.name] = Argument(one.name, list_of(kind) if spread else kind, one.default, spread)
        return cls(known, tuple(needed), is_open)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Types of arguments, where they are told and there are such types."""
    constructor: Any = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    try:
        return get_type_hints(constructor)
    except Exception:  # whatever the user's annotations come to
        return {}


def _is_plain(value: Any) -> bool:
    """Whether a file can hold it."""
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(one) for key, one in value.items())
    return value is None or isinstance(value, (bool, int, float, str))


# ---- importing ------------------------------------------------------------------------------------------------------


def _imported(name: str, home: str | None) -> Callable[..., Any]:
    """The function of that name."""
    module_name, _, function_name = name.partition(":")
    with _looking_in(home):
        _refuse_other_of_that_name(module_name, home)
        module = _module(module_name, name, home)
    function = getattr(module, function_name, None)
    if not callable(function):
        what = "has no function or class" if function is None else f"has a {type(function).__name__}, no function, as"
        raise ConfigError(f"model.name: the module {module_name!r} ({_place(module)}) {what} {function_name!r}")
    return function


def _module(module_name: str, name: str, home: str | None) -> ModuleType:
    try:
        with _blaming(name, "could not be imported: it raised"):
            return importlib.import_module(module_name)
    except ConfigError as error:
        missing = error.__cause__
        of_it = isinstance(missing, ModuleNotFoundError) and f"{module_name}.".startswith(f"{missing.name}.")
        if not of_it:
            raise
        places = "on the import path" if home is None else f"in {home} or on the import path"
        raise ConfigError(f"model.name: there is no module {module_name!r} {places}") from missing


@contextmanager
def _blaming(name: str, did: str) -> Iterator[None]:
    """What the user's code raises, as a sentence that says so."""
    try:
        yield
    except Exception as error:
        raise ConfigError(f"model.name: {name} {did} {type(error).__name__}: {first_line(error)}") from error


@contextmanager
def _looking_in(home: str | None) -> Iterator[None]:
    """Imports look there first. Modules of other files' directories are forgotten: they may have the same names."""
    if home is None:
        yield
        return
    for other in [one for one in _found_in if one != home]:
        for name in _found_in.pop(other):
            sys.modules.pop(name, None)
    before = set(sys.modules)
    importlib.invalidate_caches()  # a file may be as new as the directory's last reading
    sys.path.insert(0, home)
    try:
        yield
    finally:
        sys.path.remove(home)
        new = {name for name in set(sys.modules) - before if _is_in(home, name.partition(".")[0])}
        _found_in.setdefault(home, set()).update(new)


def _is_in(home: str, top: str) -> bool:
    return importlib.machinery.PathFinder.find_spec(top, [home]) is not None


def _refuse_other_of_that_name(module_name: str, home: str | None) -> None:
    """A module that is there by then, of another place, would be taken for the user's."""
    top = module_name.partition(".")[0]
    there = sys.modules.get(top)
    if home is None or there is None or top in _found_in.get(home, ()) or not _is_in(home, top):
        return
    spec = importlib.machinery.PathFinder.find_spec(top, [home])
    if getattr(there, "__spec__", None) is None or spec is None or there.__spec__.origin != spec.origin:  # type: ignore[union-attr]
        raise ConfigError(
            f"model.name: another module {top!r} is in use ({_place(there)}); give the one in {home} another name"
        )


def _place(module: ModuleType) -> Path | str:
    return getattr(module, "__file__", None) or "built in"
