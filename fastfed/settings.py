"""Which settings of a simulation go together: what would be ignored, or cannot work, is refused before a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .aggregate import Reduction
from .checks import fits
from .clients import Blend, Client, optimizers
from .compression import Compression
from .data import Federation
from .exchange import Exchange
from .plan import Participation, Poisson
from .privacy import Privacy
from .servers import Server
from .timing import Timing
from .tune import Fathom, TunerSettings


def check_settings(settings: Mapping[str, Any], fed: Federation) -> None:
    """Refuses kinds that will not do, and settings that another one makes meaningless."""
    if len(fed) == 0:
        raise ValueError("fed: has no clients")
    _check_optimizers(settings, len(fed))
    _check_timing(settings)
    _check_exchange(settings)
    _check_tuner(settings)
    _check_sent(settings)
    _check_aggregation(settings)


def check_privacy(settings: Mapping[str, Any], participation: Participation | None) -> None:
    """The accounting holds for cohorts drawn by Poisson sampling, and for clients that all count alike."""
    if settings["privacy"] is None:
        return
    if not isinstance(settings["privacy"], Privacy):
        raise TypeError(f"privacy: must be fastfed.privacy.Privacy, got {settings['privacy']!r}")
    if not isinstance(participation, Poisson):
        raise ValueError("cohort: must be fastfed.plan.Poisson(rate) with privacy, whose accounting rests on it")
    if settings["weights"] != "uniform":
        raise ValueError(f"weights: must be 'uniform' with privacy, got {settings['weights']!r}")
    if settings["delta_clip"] is not None:
        raise ValueError("delta_clip: with privacy, deltas are clipped to privacy's own bound")
    if settings["exchange"] is not None and settings["exchange"].up > 0:
        raise ValueError("exchange: sends more than the clipped delta, which the accounting does not cover")
    if settings["tuner"] is not None:
        raise ValueError("tuner: FATHOM goes by the clients' own cosines, which the accounting does not cover")
    if settings["compression"] is not None and settings["privacy"].adaptive is not None:
        raise ValueError("compression: adaptive clipping goes by the norms of uncompressed deltas")
    client = settings["client"]
    if isinstance(client, Blend) and any(part.weight != 1 for part in client.parts):
        raise ValueError("weight: must be 1 for every part with privacy, where all clients count alike")


def _check_optimizers(settings: Mapping[str, Any], clients: int) -> None:
    client, server = settings["client"], settings["server"]
    if not isinstance(client, (Client, Blend)):
        raise TypeError(f"client: must be an optimizer of fastfed.clients, got {client!r}")
    if not isinstance(server, Server):
        raise TypeError(f"server: must be an optimizer of fastfed.servers, got {server!r}")
    for one in optimizers(client):
        if settings["client_schedule"] is not None and one.finds_step_size and one.rule != "delta_sgd":
            raise ValueError(f"client_schedule: client rule {one.rule!r} finds its step size itself")
    for name in ("client_schedule", "server_schedule"):
        if settings[name] is not None and not callable(settings[name]):
            raise TypeError(f"{name}: must be a function of the round, got {settings[name]!r}")
    if isinstance(client, Blend):
        if client.resources is not None and len(client.resources) != clients:
            raise ValueError(f"resources: must be one for each of the {clients} clients, got {len(client.resources)}")
        if settings["across_epochs"] and any(p.steps is not None or p.epochs is not None for p in client.parts):
            raise ValueError("across_epochs: the parts of the blend may not set their own steps or epochs with it")


def _check_timing(settings: Mapping[str, Any]) -> None:
    timing, cohort = settings["timing"], settings["cohort"]
    if timing is None:
        if cohort is None:
            raise ValueError("cohort: must say who takes part, as there is no timing that does")
        return
    fits("timing", timing, Timing, "fastfed.timing")
    if cohort is not None and cohort != timing.buffer:
        raise ValueError(f"cohort: with this timing a round has {timing.buffer} clients; leave cohort out")
    for name in ("epochs", "steps"):
        if timing.sets_epochs and settings[name] is not None:
            raise ValueError(f"{name}: the timing draws how long clients train; leave it out, or give it epochs=None")
    if settings["tuner"] is not None and timing.has_clock:
        raise ValueError("tuner: a simulated clock must know a client's steps beforehand, and a tuner changes them")


def _check_exchange(settings: Mapping[str, Any]) -> None:
    exchange = settings["exchange"]
    if exchange is None:
        return
    fits("exchange", exchange, Exchange, "fastfed.exchange")
    if isinstance(settings["client"], Blend):
        for one in optimizers(settings["client"]):
            exchange.check(one, settings["server"])
    else:
        exchange.check(settings["client"], settings["server"])
    if settings["timing"] is not None and not exchange.any_timing:
        raise ValueError(f"exchange: {type(exchange).__name__} belongs to synchronous rounds; leave timing out")


def _check_tuner(settings: Mapping[str, Any]) -> None:
    tuner = settings["tuner"]
    if tuner is None:
        return
    fits("tuner", tuner, TunerSettings, "fastfed.tune")
    tuner.check(settings["client"])
    name = "FATHOM" if isinstance(tuner, Fathom) else type(tuner).__name__
    if settings["steps"] is not None:
        raise ValueError(f"steps: {name} tunes epochs and batch size, from which the steps follow; give epochs")
    if settings["client_schedule"] is not None:
        raise ValueError(f"client_schedule: {name} tunes the clients' learning rate itself")
    if settings["timing"] is not None and settings["timing"].sets_epochs:
        raise ValueError(f"tuner: the timing draws how long clients train, which {name} tunes; give it epochs=None")


def _check_sent(settings: Mapping[str, Any]) -> None:
    compression = settings["compression"]
    if compression is None:
        return
    fits("compression", compression, Compression, "fastfed.compression")
    if settings["exchange"] is not None and settings["exchange"].up > 0:
        raise ValueError("compression: is for deltas, and this exchange sends another vector up, uncompressed")


def _check_aggregation(settings: Mapping[str, Any]) -> None:
    reduction = settings["aggregation"]
    if reduction is None:
        return
    fits("aggregation", reduction, Reduction, "fastfed.aggregate")
    name = type(reduction).__name__
    if getattr(reduction, "alike", False) and settings["weights"] != "uniform":
        raise ValueError(f'weights: in a {name} all clients count alike; give weights="uniform"')
    if settings["privacy"] is not None and not getattr(reduction, "in_passing", False):
        raise ValueError(f"aggregation: the accounting of privacy is that of a mean, and {name} is another reduction")
