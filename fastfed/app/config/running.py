"""The tables ``[run]`` and ``[schedule]``: what of a simulation has no table of its own."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from ...losses import LossName
from ...plan.availability import Availability
from ...plan.participation import Given, Poisson
from ...plan.sampled import Sampled
from ...plan.shares import Shares
from ...schedules import Schedule
from ...simulation import Simulation
from .document import DIGEST, FROM, functions_of, names_module
from .errors import ConfigError, keyed
from .options import Argument, arguments_of, checked, plain_model, table_model, unknown_key, written
from .own import OwnFunction, changed_source, digest_of, told_place
from .parts import CHOICES, SCHEDULE

OWN_NAME = Annotated[str, Field(pattern=":")]
_OTHERS = ("until", "checkpoint", "log", "tensorboard", "progress")  # arguments that no file gives
SIDES = ("client", "server")


def drawn_cohort(
    poisson: float | None = None,
    size: int | None = None,
    shares: Shares = None,
    availability: Availability = None,
    replacement: bool = False,
) -> Poisson | Sampled:
    """``cohort = {poisson = 0.1}``: every client takes part with this probability, independently of all others;
    ``cohort = {size = 10, replacement = true}``: as ``ff.plan.Sampled`` says."""
    if poisson is None:
        if size is None and availability is None:
            raise ValueError("size: must say how many clients take part (or poisson, with which probability each)")
        return Sampled(size, shares, availability, replacement)
    given = {"size": size, "shares": shares, "availability": availability, "replacement": replacement or None}
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name}: would be ignored with poisson; leave one of them out")
    try:
        return Poisson(poisson)
    except ValueError as error:
        raise ValueError(keyed(error, {"rate": "poisson"})) from None


# What the signatures say more loosely than a file may.
_TYPES: dict[str, Any] = {
    "cohort": int | table_model(drawn_cohort) | list[list[int]] | Literal["none"],
    "loss": LossName | OWN_NAME,
    "metrics": list[OWN_NAME] | dict[str, OWN_NAME] | Literal["none"],
    "device": str,
}


@cache
def arguments() -> Mapping[str, Argument]:
    """The keys of ``[run]``: arguments of ``Simulation`` and of its `run`, without those that have tables."""
    return _arguments_of(Simulation) | _arguments_of(Simulation.run)


def _arguments_of(function: Callable[..., Any]) -> dict[str, Argument]:
    known = {name: argument.type for name, argument in arguments_of(function).items()} | _TYPES
    return {
        name: Argument(name, known[name], parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
        if name in known and name not in (*CHOICES, "privacy", *_OTHERS)
    }


def model(besides: Mapping[str, Any] = MappingProxyType({})) -> type[BaseModel]:
    """The pydantic model of ``[run]``, with these keys besides."""
    return plain_model("run", "How long, with whom and on what it runs.", {**arguments(), **besides})


def read(table: Any) -> dict[str, Any]:
    """The arguments that ``[run]`` gives."""
    if isinstance(table, Mapping):
        table = {key: value for key, value in table.items() if key not in (FROM, DIGEST)}
    given = checked(model(), "run", table, "[run]", _owner)
    if given.get("rounds") is None and given.get("until_clock") is None:
        raise ConfigError("run.rounds: must be given, a whole number >= 0 (or until_clock, on a simulated clock)")
    return given


def _owner(key: str) -> str | None:
    return f"[schedule], as {key.removesuffix('_schedule')}" if key.endswith("_schedule") else None


def split(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What goes to ``Simulation``, and what to its `run`."""
    first = _arguments_of(Simulation)
    return {k: v for k, v in given.items() if k in first}, {k: v for k, v in given.items() if k not in first}


@dataclass(frozen=True)
class OwnFunctions:
    """The loss and the metrics that ``[run]`` names of the user's own, found in `home`; `digest` is that of all their
    modules."""

    functions: Mapping[str, OwnFunction | Mapping[str, OwnFunction]]
    home: str | None
    digest: str

    def check(self) -> None:
        """Refuses to run what is not what it was."""
        if self.home is not None and self.digest != _digest(self._names(), self.home):
            raise ConfigError(changed_source("run", " or ".join(self._names())))

    def settings(self) -> dict[str, Any]:
        """The settings, by name."""
        return dict(self.functions)

    def written(self) -> dict[str, Any]:
        """What the table has of it besides their names."""
        return told_place(self.home, self.digest)

    @property
    def name(self) -> str:
        return ", ".join(self._names())

    def _names(self) -> list[str]:
        held = [one if isinstance(one, Mapping) else {"": one} for one in self.functions.values()]
        return [function.name for functions in held for function in functions.values()]


def own(table: Any) -> dict[str, OwnFunctions]:
    """What ``[run]`` names of the user's own, under "run", if it does."""
    if not isinstance(table, Mapping):
        return {}
    names = [name for name in functions_of(table) if names_module(name)]
    if not names:
        return {}
    home, digest = table.get(FROM), table.get(DIGEST)
    found: dict[str, Any] = {}
    if names_module(table.get("loss")):
        found["loss"] = OwnFunction.of(table["loss"], home, "run.loss")
    metrics = table.get("metrics")
    if isinstance(metrics, list):
        metrics = _by_name(metrics)
    if isinstance(metrics, Mapping):
        found["metrics"] = {name: OwnFunction.of(function, home, "run.metrics") for name, function in metrics.items()}
    return {"run": OwnFunctions(found, home, _digest(names, home) if digest is None else digest)}


def _by_name(metrics: list[str]) -> dict[str, str]:
    """Metrics that are listed have the names of their functions."""
    named = {name.rpartition(":")[2]: name for name in metrics}
    if len(named) < len(metrics):
        raise ConfigError('run.metrics: two of them have the same name; give them as a table, as in {f1 = "mine:f1"}')
    return named


def _digest(names: Iterable[str], home: str | None) -> str:
    """Of the modules of these functions."""
    modules = sorted({name.partition(":")[0] for name in names})
    return hashlib.sha256("".join(digest_of(module, home) for module in modules).encode()).hexdigest()[:12]


def write(given: Mapping[str, Any]) -> dict[str, Any]:
    """The table, every key with its value."""
    return {name: _plain(given.get(name, argument.default)) for name, argument in arguments().items()}


def _plain(value: Any) -> Any:
    if isinstance(value, OwnFunction):
        return value.name
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, Poisson):
        return {"poisson": value.rate}
    return written(value.cohorts if isinstance(value, Given) else value)


def read_schedules(table: Any, rounds: int | None) -> dict[str, Schedule]:
    """The arguments `client_schedule` and `server_schedule` that ``[schedule]`` gives in a run of so many rounds."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"schedule: must be a table with client, server or both, got {table!r}")
    for side in table:
        if side not in SIDES:
            raise ConfigError(unknown_key(f"schedule.{side}", "[schedule]", SIDES))
    return {f"{side}_schedule": SCHEDULE.make(_over(rounds, table[side]), f"schedule.{side}") for side in table}


def _over(rounds: int | None, table: Any) -> Any:
    """A schedule that goes by shares of the rounds takes those of the run, unless it says how many there are."""
    kind = SCHEDULE.kinds.get(str(table.get("kind"))) if isinstance(table, Mapping) else None
    if rounds is None or kind is None or "rounds" not in arguments_of(kind):
        return table
    return {"rounds": rounds, **table}


def write_schedules(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The table of these settings' schedules."""
    found = {side: settings.get(f"{side}_schedule") for side in SIDES}
    return {side: SCHEDULE.written(made) for side, made in found.items() if made is not None}
