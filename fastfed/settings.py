"""The settings of a simulation, and which of them go together: what would be ignored, or cannot work, is refused before
a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from torch import Tensor

from .aggregate import Reduction
from .batch_norm import Extra, Mode
from .checks import fits
from .clients import Blend, Client, OwnClient, optimizers
from .compression import Compression
from .data import Federation
from .exchange import Exchange
from .exchange.own import exchange_of
from .losses import Loss, LossReduction
from .metrics import Metrics
from .plan import Participation, Poisson, participation
from .privacy import Privacy
from .schedules import Schedule
from .servers import OwnServer, Server, StepFunction, own_server, server_name
from .timing import Timing
from .tune import Fathom, TunerSettings


@dataclass(frozen=True, eq=False, kw_only=True)
class Settings:
    """What a simulation was given; ``Simulation`` explains every setting and states its default."""

    client: Client | Blend | OwnClient
    server: Server | OwnServer | StepFunction
    cohort: Any
    epochs: float | None
    steps: int | Sequence[int] | Tensor | None
    batch_size: int
    across_epochs: bool
    batches: Literal["epochs", "drawn"]
    loss: Loss
    loss_reduction: LossReduction
    metrics: Metrics | None
    batch_norm: Mode
    weights: Literal["examples", "uniform"] | Sequence[float] | Tensor
    divide_by_steps: bool
    divide_by_epochs: bool
    delta_clip: float | None
    aggregation: Reduction | None
    client_schedule: Schedule | None
    server_schedule: Schedule | None
    exchange: Exchange | None
    timing: Timing | None
    tuner: TunerSettings | None
    privacy: Privacy | None
    compression: Compression | None
    seed: int
    executor: str
    threads: int | None
    device: str

    def by_name(self) -> dict[str, Any]:
        """The settings as they are, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def local_epochs(self) -> float | None:
        """How many epochs clients train for: 1 if nothing is said; None where `steps` are given."""
        return 1.0 if self.epochs is None and self.steps is None else self.epochs

    @property
    def participation(self) -> Participation | None:
        """Who takes part in a round; None where the timing says so."""
        return participation(self.cohort) if self.timing is None else None

    @property
    def exchanged(self) -> Exchange | None:
        """What travels or is kept besides the model: as `exchange` says, or a client algorithm of one's own."""
        return exchange_of(self.client, self.exchange)

    @property
    def repeats_clients(self) -> bool:
        """Whether a client may take part several times in one round."""
        who = self.participation if self.timing is None else self.timing
        return bool(getattr(who, "replacement", False))


def check_settings(settings: Settings, fed: Federation) -> None:
    """Refuses kinds that will not do, and settings that another one makes meaningless."""
    if len(fed) == 0:
        raise ValueError("fed: has no clients")
    if settings.batches not in ("epochs", "drawn"):
        raise ValueError(f"batches: must be 'epochs' or 'drawn', got {settings.batches!r}")
    _check_optimizers(settings, len(fed))
    _check_timing(settings)
    _check_exchange(settings)
    _check_tuner(settings)
    _check_sent(settings)
    _check_aggregation(settings)
    _check_division(settings)
    _check_repeats(settings)


def check_privacy(settings: Settings, participation: Participation | None) -> None:
    """The accounting holds for cohorts drawn by Poisson sampling, and for clients that all count alike."""
    if settings.privacy is None:
        return
    if not isinstance(settings.privacy, Privacy):
        raise TypeError(f"privacy: must be fastfed.privacy.Privacy, got {settings.privacy!r}")
    if not isinstance(participation, Poisson):
        raise ValueError("cohort: must be fastfed.plan.Poisson(rate) with privacy, whose accounting rests on it")
    if settings.weights != "uniform":
        raise ValueError(f"weights: must be 'uniform' with privacy, got {settings.weights!r}")
    if settings.delta_clip is not None:
        raise ValueError("delta_clip: with privacy, deltas are clipped to privacy's own bound")
    if own_server(settings.server) is not None:
        raise ValueError(
            f"server: the accounting of privacy does not cover what {server_name(settings.server)} may read of "
            "clients' steps and norms; take one of fastfed.servers"
        )
    if settings.exchanged is not None and settings.exchanged.up > 0:
        sends = "exchange:" if settings.exchange is not None else f"client: {_exchange_name(settings.exchanged)}"
        raise ValueError(f"{sends} sends more than the clipped delta, which the accounting does not cover")
    if settings.tuner is not None:
        raise ValueError("tuner: FATHOM goes by the clients' own cosines, which the accounting does not cover")
    if settings.compression is not None and settings.privacy.adaptive is not None:
        raise ValueError("compression: adaptive clipping goes by the norms of uncompressed deltas")
    client = settings.client
    if isinstance(client, Blend) and any(part.weight != 1 for part in client.parts):
        raise ValueError("weight: must be 1 for every part with privacy, where all clients count alike")


def _check_optimizers(settings: Settings, clients: int) -> None:
    client, server = settings.client, settings.server
    own = own_server(server)
    if own is not None and hasattr(own, "check"):
        own.check(client)
    for one in optimizers(client):
        if settings.client_schedule is not None and not one.takes_lr:
            raise ValueError(f"client_schedule: client rule {one.rule!r} finds its step size itself")
    schedules = {"client_schedule": settings.client_schedule, "server_schedule": settings.server_schedule}
    for name, schedule in schedules.items():
        if schedule is not None and not callable(schedule):
            raise TypeError(f"{name}: must be a function of the round, got {schedule!r}")
    if isinstance(client, Blend):
        if client.resources is not None and len(client.resources) != clients:
            raise ValueError(f"resources: must be one for each of the {clients} clients, got {len(client.resources)}")
        if settings.across_epochs and any(p.steps is not None or p.epochs is not None for p in client.parts):
            raise ValueError("across_epochs: the parts of the blend may not set their own steps or epochs with it")


def _check_timing(settings: Settings) -> None:
    timing, cohort = settings.timing, settings.cohort
    if timing is None:
        if cohort is None:
            raise ValueError("cohort: must say who takes part, as there is no timing that does")
        return
    fits("timing", timing, Timing, "fastfed.timing")
    if cohort is not None and cohort != timing.buffer:
        raise ValueError(f"cohort: with this timing a round has {timing.buffer} clients; leave cohort out")
    for name, given in {"epochs": settings.epochs, "steps": settings.steps}.items():
        if timing.sets_epochs and given is not None:
            raise ValueError(f"{name}: the timing draws how long clients train; leave it out, or give it epochs=None")
    if settings.across_epochs and timing.has_clock and timing.sets_epochs:
        raise ValueError("across_epochs: a simulated clock counts the batches of whole epochs where it draws them")
    if settings.tuner is not None and timing.has_clock:
        raise ValueError("tuner: a simulated clock must know a client's steps beforehand, and a tuner changes them")


def _check_exchange(settings: Settings) -> None:
    exchange = settings.exchanged
    if exchange is None:
        return
    fits("exchange", exchange, Exchange, "fastfed.exchange")
    for one in optimizers(settings.client):
        exchange.check(one, settings.server)
    if settings.timing is not None and not exchange.any_timing:
        raise ValueError(f"exchange: {type(exchange).__name__} belongs to synchronous rounds; leave timing out")


def _check_tuner(settings: Settings) -> None:
    tuner = settings.tuner
    if tuner is None:
        return
    fits("tuner", tuner, TunerSettings, "fastfed.tune")
    tuner.check(settings.client)
    name = "FATHOM" if isinstance(tuner, Fathom) else type(tuner).__name__
    if settings.steps is not None:
        raise ValueError(f"steps: {name} tunes epochs and batch size, from which the steps follow; give epochs")
    if settings.client_schedule is not None:
        raise ValueError(f"client_schedule: {name} tunes the clients' learning rate itself")
    if settings.timing is not None and settings.timing.sets_epochs:
        raise ValueError(f"tuner: the timing draws how long clients train, which {name} tunes; give it epochs=None")


def _check_sent(settings: Settings) -> None:
    compression = settings.compression
    if compression is None:
        return
    fits("compression", compression, Compression, "fastfed.compression")
    if settings.exchanged is not None and settings.exchanged.up > 0:
        who = "this exchange" if settings.exchange is not None else _exchange_name(settings.exchanged)
        raise ValueError(f"compression: is for deltas, and {who} sends another vector up, uncompressed")


def _check_aggregation(settings: Settings) -> None:
    reduction = settings.aggregation
    if reduction is None:
        return
    fits("aggregation", reduction, Reduction, "fastfed.aggregate")
    name = type(reduction).__name__
    if getattr(reduction, "alike", False) and settings.weights != "uniform":
        raise ValueError(f'weights: in a {name} all clients count alike; give weights="uniform"')
    if settings.privacy is not None and not getattr(reduction, "in_passing", False):
        raise ValueError(f"aggregation: the accounting of privacy is that of a mean, and {name} is another reduction")


def _check_division(settings: Settings) -> None:
    if isinstance(settings.client, Blend) and hasattr(settings.server, "multipliers"):
        raise ValueError(
            f"server: {server_name(settings.server)} multiplies deltas by their optimizer; a blend has many"
        )
    for name in ("divide_by_steps", "divide_by_epochs"):
        if getattr(settings, name) and hasattr(settings.server, "multipliers"):
            raise ValueError(f"{name}: {server_name(settings.server)} divides deltas itself; leave it out")
    if not settings.divide_by_epochs:
        return
    if settings.divide_by_steps:
        raise ValueError("divide_by_epochs: deltas are divided by steps already; give divide_by_steps=False")
    if settings.delta_clip is not None or settings.privacy is not None:
        bound = "privacy" if settings.privacy is not None else "delta_clip"
        raise ValueError(f"divide_by_epochs: the norm that {bound} bounds is of a move per step; use divide_by_steps")


def _check_repeats(settings: Settings) -> None:
    """What a client keeps from round to round has no order within one, where it may take part twice."""
    if not settings.repeats_clients:
        return
    exchange, compression = settings.exchanged, settings.compression
    if exchange is not None and exchange.kept > 0:
        keeps = f"a client of {_exchange_name(exchange)} keeps a vector from round to round"
        raise ValueError(f"replacement: {keeps}, and may not be drawn twice for one")
    if compression is not None and getattr(compression, "feedback", False):
        keeps = f"a client keeps what {type(compression).__name__} leaves out for its next round"
        raise ValueError(f"replacement: {keeps}, and may not be drawn twice for one; give feedback=False")
    if settings.batch_norm == "local":
        raise ValueError("replacement: with batch_norm 'local' a client keeps its layers, and may not be drawn twice")


def _exchange_name(exchange: Exchange) -> str:
    """What it is called: by its class, or as the client algorithm that asks for it."""
    return str(getattr(exchange, "name", type(exchange).__name__))


def check_statistics(settings: Settings, extra: Extra) -> None:
    """Refuses what running statistics of batch norms, if they change at all, do not go with."""
    if extra == Extra():
        return
    exchange = settings.exchanged
    if settings.privacy is not None:
        raise ValueError("batch_norm: must be 'frozen' with privacy, whose accounting covers no running statistics")
    if exchange is not None and exchange.split is not None:
        raise ValueError("batch_norm: must be 'frozen' where features of several models are compared (MOON)")
    alike = settings.aggregation is None or getattr(settings.aggregation, "in_passing", False)
    if settings.batch_norm == "average" and not alike:
        name = type(settings.aggregation).__name__
        raise ValueError(f"batch_norm: 'average' is the clients' mean, which no {name} guards; use 'local' or 'frozen'")
