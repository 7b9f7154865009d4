"""The same training without clients: what a federated run is to be measured against."""

from __future__ import annotations

from typing import Any

import torch

from ...clients import SGD
from ...data import Federated, Federation
from ...plan.participation import Poisson
from ...plan.round import LocalWork
from ...plan.sampled import Sampled
from ...train.batches import examples_seen
from .config import Config, parse
from .errors import ConfigError
from .options import without_none
from .source import POOLED

_DROPPED = ("method", "method_options", "timing", "tuner", "privacy", "compression", "aggregation", "exchange")


def centralised(config: Config, fed: Federation) -> Config:
    """The run of a file with all clients' examples in one place: the same model, data and client optimizer, and in each
    round as many examples as a cohort sees on average, drawn from all in batches of the same size (smaller, where a
    round has fewer).

    The one client's model is the server's after each round. Only SGD can do that: what other optimizers remember would
    be lost from round to round. Whatever is between clients and server is left out.
    """
    client = config.settings["client"]
    if type(client) is not SGD:
        name = type(client).__name__
        raise ConfigError(f"client: --centralised trains by SGD, as {name} would forget its state after every round")
    if config.settings.get("tuner") is not None:
        raise ConfigError("tuner: --centralised has nothing to tune by; use it with the file's method as 'fedavg'")
    if not isinstance(fed, Federated):
        raise ConfigError(
            f"--centralised: {fed.name} makes its examples when they are asked for; there is no one place"
        )
    tables = config.resolved()
    run = tables["run"]
    examples = max(1, round(_cohort(config, len(fed), run) * _examples_of_a_client(config, fed, run)))
    batch_size = min(run["batch_size"], examples)
    left_out = (
        "cohort",
        "epochs",
        "weights",
        "divide_by_steps",
        "divide_by_epochs",
        "delta_clip",
        "across_epochs",
        "until_clock",
        "flush",
    )
    kept = {key: value for key, value in run.items() if key not in left_out}
    if kept["batch_norm"] == "local":  # of one client it would never reach the server
        kept["batch_norm"] = "average"
    schedule = {side: table for side, table in tables.get("schedule", {}).items() if side == "client"}
    made: dict[str, Any] = {
        **{key: table for key, table in tables.items() if key not in (*_DROPPED, "schedule")},
        **({"schedule": schedule} if schedule else {}),
        "data": {**tables["data"], POOLED: True},
        "client": {**tables["client"], "prox": 0.0},
        "server": {"rule": "sgd"},
        "run": {**kept, "cohort": 1, "batch_size": batch_size, "steps": max(1, round(examples / batch_size))},
    }
    return parse(without_none(made))


def _examples_of_a_client(config: Config, fed: Federation, run: dict[str, Any]) -> float:
    """How many a client looks at in a round, in the mean."""
    sizes, batch_size, timing = fed.sizes, run["batch_size"], config.settings.get("timing")
    randomness = getattr(timing, "randomness", None)
    epochs = None if run["steps"] is not None else run["epochs"] or getattr(timing, "epochs", None) or 1.0
    if randomness is not None and epochs is not None:  # any whole number of epochs from 1 on is as likely
        return float(sizes.double().mean()) * (1 + max(1.0, epochs * randomness)) / 2
    local = LocalWork(epochs=epochs, steps=run["steps"], batch_size=batch_size)
    steps = torch.where(sizes > 0, local.steps_of(torch.arange(len(sizes)), sizes, epochs, batch_size), 0)
    return float(examples_seen(steps, sizes, batch_size, None).double().mean())


def _cohort(config: Config, clients: int, run: dict[str, Any]) -> float:
    cohort = config.settings.get("cohort")
    if isinstance(cohort, int):
        return cohort
    if isinstance(cohort, Poisson):
        return cohort.rate * clients
    if isinstance(cohort, Sampled) and cohort.size is not None:
        return cohort.size
    buffer = getattr(config.settings.get("timing"), "buffer", None)
    if isinstance(buffer, int):
        return buffer
    raise ConfigError(f"run.cohort: --centralised does not know how many clients a round has, of {run['cohort']!r}")
