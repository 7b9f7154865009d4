"""The rooms of a simulation, made from its settings; what cannot work is refused here, not in the first round."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from .aggregate import Mean
from .aggregate.chain import Chain
from .aggregate.noise import Noise
from .aggregate.result import Aggregator
from .aggregate.weights import Fixed, Relative, Weights
from .compression import Compressor
from .data import Federation
from .exchange import Exchanger, NoExchanger
from .packing import Packing
from .plan import LocalWork, Planner, PlanTemplate, Poisson, SyncPlanner, Tuning
from .privacy import Ledger, NoLedger
from .server import OwnServerModel, ServerModel
from .servers import Server, own_server, server_lr
from .settings import Settings, check_privacy
from .tune import Tuner, Untuned


class Room(Protocol):
    """What lasts from round to round: `tensors` and `load` carry it through a checkpoint."""

    def tensors(self) -> dict[str, Tensor]: ...

    def load(self, tensors: dict[str, Tensor]) -> None: ...


def make_planner(settings: Settings, fed: Federation, bytes_moved: int) -> Planner:
    """Who takes part and when; a client's round moves that many bytes."""
    local = LocalWork(
        epochs=settings.local_epochs,
        steps=settings.steps,
        batch_size=settings.batch_size,
        across_epochs=settings.across_epochs,
        drawn=settings.batches == "drawn",
        counting=(settings.tuner and settings.tuner.counting) or "epochs",
    )
    local.check(len(fed))
    template = PlanTemplate(
        sizes=fed.sizes,
        local=local,
        client=settings.client,
        server_lr=server_lr(settings.server),
        client_schedule=settings.client_schedule,
        server_schedule=settings.server_schedule,
        seed=settings.seed,
    )
    who = settings.participation
    check_privacy(settings, who)
    if settings.timing is not None:
        return settings.timing.begin(template, bytes_moved)
    assert who is not None
    who.check(len(fed))
    planner = SyncPlanner(template, who)
    planner.plan(0, Tuning())
    return planner


def make_aggregator(settings: Settings, clients: int, packing: Packing, device: torch.device) -> Aggregator:
    """From the deltas of some of that many clients to one vector."""
    weights: Weights = Relative(settings.weights, clients)
    noise, compressor = None, None
    if settings.privacy is not None:
        expected = _rate(settings) * clients
        weights = Fixed(1 / expected)
        noise = Noise(settings.privacy, expected, packing, settings.seed, device=device)
    if settings.compression is not None:
        compressor = Compressor(settings.compression, packing, packing.dtype, device=device)
    return Chain(
        Mean() if settings.aggregation is None else settings.aggregation,
        weights,
        settings.seed,
        divide_by_steps=settings.divide_by_steps,
        divide_by_epochs=settings.divide_by_epochs,
        clip=settings.delta_clip,
        compressor=compressor,
        noise=noise,
        multipliers=getattr(settings.server, "multipliers", None),
    )


def make_server(settings: Settings, x: Tensor, packing: Packing, clients: int) -> ServerModel:
    """The global model, which begins at `x` (d,), and what moves it in a run with that many clients."""
    own = own_server(settings.server)
    if own is not None:
        return OwnServerModel(own, x, packing, clients)
    assert isinstance(settings.server, Server)
    return ServerModel(settings.server, x)


def make_ledger(settings: Settings) -> Ledger | NoLedger:
    """What a run has spent of its privacy."""
    return NoLedger() if settings.privacy is None else Ledger(settings.privacy, _rate(settings))


def _rate(settings: Settings) -> float:
    """The probability of a client to be in a cohort, which privacy accounting rests on."""
    who = settings.participation
    assert isinstance(who, Poisson)
    return who.rate


def make_exchanger(settings: Settings, x: Tensor, clients: int) -> Exchanger:
    """What travels or is kept besides a model like `x` (d,)."""
    return NoExchanger() if settings.exchanged is None else settings.exchanged.begin(x, clients)


def make_tuner(settings: Settings, x: Tensor) -> Tuner:
    """Who changes settings from round to round, for a model like `x` (d,)."""
    if settings.tuner is None:
        return Untuned()
    lr: float = settings.client.lr  # type: ignore[union-attr]
    assert settings.local_epochs is not None
    return settings.tuner.begin(x, lr, float(settings.local_epochs), settings.batch_size)
