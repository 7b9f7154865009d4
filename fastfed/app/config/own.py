"""What is the user's own: functions and classes that a file names as "package.module:function".

A module is looked for beside the file that names it, then on the import path. Where that was is the key `from`, what it
said the key `source-digest`, both of which a run's directory keeps: no argument of a Python function has these names.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.machinery
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

from torch import nn

from ...checks import missing
from ...data import Dataset, Federation
from ..errors import first_line
from .document import DIGEST, FROM, FUNCTION
from .errors import ConfigError
from .options import NO_DEFAULT, Argument, NotToml, checked, list_of, plain_model, toml_type, written

_found_in: dict[str, set[str]] = {}  # by directory, the modules that were imported from it
_digests: dict[tuple[str, str], str] = {}  # by directory and module, of what was imported


@dataclass(frozen=True)
class Own:
    """A function of the user's own that a file names under a dotted `key`, such as "model.name", and the arguments that
    the same table gives it; `home` is the directory where it is looked for first, None for the import path alone.
    `digest` is that of the module's source as the table tells it, or as it is."""

    key: str
    name: str
    home: str | None
    function: Callable[..., Any]
    given: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""

    @classmethod
    def of(cls, table: Mapping[str, Any], key: str = "model.name") -> Any:
        """The function that a table names, with the rest of the table as its arguments."""
        name_key = key.rpartition(".")[2]
        name, home = table[name_key], table.get(FROM)
        function, digest = imported(name, home, key)
        named = cls(key, name, home, function)
        given = {one: value for one, value in table.items() if one not in (name_key, FROM, DIGEST)}
        return cls(key, name, home, function, named._fitting(given), table.get(DIGEST, digest))

    @property
    def table(self) -> str:
        """The table that names it."""
        return self.key.partition(".")[0]

    def _fitting(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as they are given on; those that the function does not take are refused."""
        subject, known = f"{self.table} {self.name!r}", self._signature.known
        checkable = {key: value for key, value in given.items() if key in known or not self._signature.is_open}
        model = plain_model(self.name.partition(":")[2], "", known)
        found = {**given, **checked(model, self.table, checkable, subject)}
        for name in self._signature.needed:
            if name not in found:
                unsaid = "" if name in known else ", and no file can hold it; give it a default"
                raise ConfigError(f"{self.table}.{name}: {subject} needs it{unsaid}")
        return found

    @cached_property
    def _signature(self) -> _Signature:
        return _Signature.of(self.function, self.name, self.key)

    def takes(self, argument: str) -> bool:
        """Whether it names an argument so."""
        return argument in self._signature.known

    def arguments(self) -> dict[str, Any]:
        """All that a file can hold, where the module was looked for, and what it said."""
        known = self._signature.known.values()
        defaults = {one.name: () if one.spread else one.default for one in known if one.default is not NO_DEFAULT}
        told = {name: written(value) for name, value in {**defaults, **self.given}.items()}
        told = {name: value for name, value in told.items() if name in self.given or _is_plain(value)}
        return {**told_place(self.home, self.digest), **told}

    def make(self) -> Any:
        """What the function makes; whatever it raises is one sentence."""
        check_digest(self.name, self.home, self.digest, self.table)
        return self._called()

    def _called(self) -> Any:
        named = dict(self.given)
        spread = [named.pop(one.name, ()) for one in self._signature.known.values() if one.spread]
        with _looking_in(self.home), _blaming(self.key, self.name, "raised"):
            return self.function(*(spread[0] if spread else ()), **named)


class OwnModel(Own):
    """A function that makes a module."""

    def make(self) -> nn.Module:
        made = super().make()
        if not isinstance(made, nn.Module):
            raise ConfigError(f"{self.key}: {self.name} gives a {type(made).__name__}, not a torch.nn.Module")
        return made


class OwnData(Own):
    """A function that loads data: dealt to clients, or to be dealt by a partition."""

    def check(self, made: Any, is_dealt: bool) -> None:
        """Refuses what a partition cannot deal, and what nobody deals."""
        kind = type(made).__name__
        if is_dealt and not isinstance(made, Dataset):
            raise ConfigError(
                f"{self.key}: {self.name} gives a {kind}, and a partition deals an ff.data.Dataset; leave "
                "data.partition out where the data comes with clients"
            )
        if not is_dealt and isinstance(made, Dataset):
            raise ConfigError(
                f"{self.key}: {self.name} gives data without clients; data.partition says how it is dealt"
            )
        if not is_dealt and missing(made, Federation):
            raise ConfigError(f"{self.key}: {self.name} gives a {kind}, not data of clients (see ff.data)")


class OwnPart(Own):
    """What one of the tables of settings names: a class (or a function that makes one) of a client algorithm, a server
    or an aggregation; a server may be a function that steps."""

    def check(self) -> None:
        """Refuses to run what is not what it was."""
        check_digest(self.name, self.home, self.digest, self.table)

    def written(self) -> dict[str, Any]:
        """The table."""
        return {self.key.rpartition(".")[2]: self.name, **self.arguments()}

    def settings(self) -> dict[str, Any]:
        """The setting that it makes, by name."""
        return {self.table: self.function if self._steps else self._called()}

    @property
    def _steps(self) -> bool:
        return self.table == "server" and _is_step(self.function)

    def _fitting(self, given: Mapping[str, Any]) -> dict[str, Any]:
        if not self._steps:
            return super()._fitting(given)
        for key in given:
            raise ConfigError(f"{self.table}.{key}: {self.name} is a step, not a class: it has no options")
        return {}

    def arguments(self) -> dict[str, Any]:
        return told_place(self.home, self.digest) if self._steps else super().arguments()


def _is_step(function: Callable[..., Any]) -> bool:
    """Whether a function of the user's own is a server's step: four arguments without defaults, and no class."""
    if isinstance(function, type):
        return False
    parameters = inspect.signature(function).parameters.values()
    return sum(one.default is NO_DEFAULT and one.kind is one.POSITIONAL_OR_KEYWORD for one in parameters) == 4


@dataclass(eq=False)
class OwnFunction:
    """A function that is called as it is, such as a loss or a metric: by its name, and the digest of its module."""

    name: str
    digest: str

    @classmethod
    def of(cls, name: str, home: Any, key: str) -> OwnFunction:
        """The function that a file names under this key."""
        function, digest = imported(name, home, key)
        own = cls(name, digest)
        own.function = function
        return own

    def __post_init__(self) -> None:
        self.function: Callable[..., Any] = lambda *arguments: None  # until `of` has found it

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def told_place(home: str | None, digest: str) -> dict[str, Any]:
    """How a table says where a module was looked for, and what it said."""
    return {} if home is None else {FROM: home, DIGEST: digest}


def check_digest(name: str, home: str | None, digest: str, table: str) -> None:
    """Refuses to run what is not what it was."""
    if home is not None and digest != digest_of(name.partition(":")[0], home):
        raise ConfigError(changed_source(table, name))


def changed_source(table: str, name: str) -> str:
    """The sentence for a module that is another one now."""
    return f"{table}.{DIGEST}: {name} is not what it was: its module, or one that it imports, has changed since"


def digest_of(module_name: str, home: str | None) -> str:
    """Tells the source of a module from any other: of its file, and of those in `home` that it imports. "" where the
    module is not there."""
    digest = hashlib.sha256()
    files = [] if home is None else _files_of([module_name], home)
    for name, file in files:
        digest.update(f"{name}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:12] if files else ""


def _files_of(module_names: Iterable[str], home: str) -> list[tuple[str, Path]]:
    """The files in a directory that these modules are made of, with what they import from there, by name."""
    found: dict[str, Path] = {}
    waiting = list(module_names)
    while waiting:
        parts = waiting.pop().split(".")
        for depth in range(1, len(parts) + 1):
            name, place = ".".join(parts[:depth]), Path(home, *parts[:depth])
            file = next((one for one in (place / "__init__.py", place.with_suffix(".py")) if one.is_file()), None)
            if file is not None and name not in found:
                found[name] = file
                waiting += _imports(file, name if file.name == "__init__.py" else name.rpartition(".")[0])
    return sorted(found.items())


def _imports(file: Path, package: str) -> Iterator[str]:
    """The names of modules, and of what may be one, that a file imports."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # who imports it says what is wrong
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            whole = ".".join([*filter(None, above), *([node.module] if node.module else [])])
            yield from (f"{whole}.{alias.name}" if whole else alias.name for alias in node.names)


@dataclass(frozen=True)
class _Signature:
    """What a file may say to a function: the arguments `known`, those `needed`, and whether it takes any other."""

    known: Mapping[str, Argument]
    needed: tuple[str, ...]
    is_open: bool

    @classmethod
    def of(cls, function: Callable[..., Any], name: str, key: str) -> _Signature:
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{key}: nobody can tell what {name} takes: {first_line(error)}") from error
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


def imported(name: Any, home: Any, key: str) -> tuple[Callable[..., Any], str]:
    """The function of that name, which a file gives under this key, and the digest of its module's source."""
    if not isinstance(name, str) or not FUNCTION.fullmatch(name):
        raise ConfigError(f'{key}: must be written "package.module:function", got {name!r}')
    if home is not None and not isinstance(home, str):
        raise ConfigError(f"{key.partition('.')[0]}.{FROM}: must be the directory of the module, got {home!r}")
    module_name, _, function_name = name.partition(":")
    digest = digest_of(module_name, home)
    if home is not None and _digests.setdefault((home, module_name), digest) != digest:  # changed since it was imported
        _forget(home)
        _digests[home, module_name] = digest
    with _looking_in(home):
        _refuse_other_of_that_name(module_name, home, key)
        module = _module(module_name, name, home, key)
    function = getattr(module, function_name, None)
    if not callable(function):
        what = "has no function or class" if function is None else f"has a {type(function).__name__}, no function, as"
        raise ConfigError(f"{key}: the module {module_name!r} ({_place(module)}) {what} {function_name!r}")
    return function, digest


def _module(module_name: str, name: str, home: str | None, key: str) -> ModuleType:
    try:
        with _blaming(key, name, "could not be imported: it raised"):
            return importlib.import_module(module_name)
    except ConfigError as error:
        absent = error.__cause__
        of_it = isinstance(absent, ModuleNotFoundError) and f"{module_name}.".startswith(f"{absent.name}.")
        if not of_it:
            raise
        places = "on the import path" if home is None else f"in {home} or on the import path"
        raise ConfigError(f"{key}: there is no module {module_name!r} {places}") from absent


@contextmanager
def _blaming(key: str, name: str, did: str) -> Iterator[None]:
    """What the user's code raises, as a sentence that says so."""
    try:
        yield
    except Exception as error:
        raise ConfigError(f"{key}: {name} {did} {type(error).__name__}: {first_line(error)}") from error


def _forget(home: str) -> None:
    """The modules of a directory are imported anew when they are asked for again."""
    for name in _found_in.pop(home, ()):
        sys.modules.pop(name, None)


@contextmanager
def _looking_in(home: str | None) -> Iterator[None]:
    """Imports look there first. Modules of other files' directories are forgotten: they may have the same names. No
    bytecode is kept: Python takes it for that of a file which was changed within the second and is as long as before.
    """
    if home is None:
        yield
        return
    for other in [one for one in _found_in if one != home]:
        _forget(other)
    before = set(sys.modules)
    importlib.invalidate_caches()  # a file may be as new as the directory's last reading
    sys.path.insert(0, home)
    keeps_none, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = keeps_none
        sys.path.remove(home)
        new = {name for name in set(sys.modules) - before if _is_in(home, name.partition(".")[0])}
        _found_in.setdefault(home, set()).update(new)


def _is_in(home: str, top: str) -> bool:
    return importlib.machinery.PathFinder.find_spec(top, [home]) is not None


def _refuse_other_of_that_name(module_name: str, home: str | None, key: str) -> None:
    """A module that is there by then, of another place, would be taken for the user's."""
    top = module_name.partition(".")[0]
    there = sys.modules.get(top)
    if home is None or there is None or top in _found_in.get(home, ()) or not _is_in(home, top):
        return
    spec = importlib.machinery.PathFinder.find_spec(top, [home])
    if getattr(there, "__spec__", None) is None or spec is None or there.__spec__.origin != spec.origin:  # type: ignore[union-attr]
        raise ConfigError(
            f"{key}: another module {top!r} is in use ({_place(there)}); give the one in {home} another name"
        )


def _place(module: ModuleType) -> Path | str:
    return getattr(module, "__file__", None) or "built in"
