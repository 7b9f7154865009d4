"""The same training without clients: what a federated run is to be measured against."""

from __future__ import annotations

from typing import Any

from ...clients import SGD
from ...data import Federation
from ...plan.participation import Poisson
from .config import Config, parse
from .errors import ConfigError
from .options import without_none
from .source import POOLED

_DROPPED = ("method", "method_options", "timing", "tuner", "privacy", "compression", "aggregation", "exchange")


def centralised(config: Config, fed: Federation) -> Config:
    """The run of a file with all clients' examples in one place: the same model, data, client optimizer and batch size,
    and in each round as many examples as the cohort would see, drawn from all.

    The one client's model is the server's after each round. Only SGD can do that: what other optimizers remember would
    be lost from round to round. Whatever is between clients and server is left out.
    """
    client = config.settings["client"]
    if type(client) is not SGD:
        name = type(client).__name__
        raise ConfigError(f"client: --centralised trains by SGD, as {name} would forget its state after every round")
    tables = config.resolved()
    run = tables["run"]
    examples = _examples_in_a_round(config, fed, run)
    steps = max(1, round(examples / run["batch_size"]))
    left_out = ("cohort", "epochs", "weights", "divide_by_steps", "delta_clip", "across_epochs", "until_clock", "flush")
    kept = {key: value for key, value in run.items() if key not in left_out}
    schedule = {side: table for side, table in tables.get("schedule", {}).items() if side == "client"}
    made: dict[str, Any] = {
        **{key: table for key, table in tables.items() if key not in (*_DROPPED, "schedule")},
        **({"schedule": schedule} if schedule else {}),
        "data": {**tables["data"], POOLED: True},
        "client": {**tables["client"], "prox": 0.0},
        "server": {"rule": "sgd"},
        "run": {**kept, "cohort": 1, "steps": steps},
    }
    return parse(without_none(made))


def _examples_in_a_round(config: Config, fed: Federation, run: dict[str, Any]) -> float:
    """How many examples a cohort sees in the mean."""
    clients = _cohort(config, len(fed), run)
    if run["steps"] is not None:
        if not isinstance(run["steps"], int):
            raise ConfigError("run.steps: --centralised wants one number for all clients")
        return clients * run["steps"] * run["batch_size"]
    timing = config.settings.get("timing")
    epochs = run["epochs"] or getattr(timing, "epochs", None) or 1.0
    return clients * float(fed.sizes.double().mean()) * float(epochs)


def _cohort(config: Config, clients: int, run: dict[str, Any]) -> float:
    cohort = config.settings.get("cohort")
    if isinstance(cohort, int):
        return cohort
    if isinstance(cohort, Poisson):
        return cohort.rate * clients
    buffer = getattr(config.settings.get("timing"), "buffer", None)
    if isinstance(buffer, int):
        return buffer
    raise ConfigError(f"run.cohort: --centralised does not know how many clients a round has, of {run['cohort']!r}")
