"""What server and clients exchange or keep besides the model: control variates (SCAFFOLD), a preconditioner (FedAda2's
DJA), previous models (MOON).

Settings are frozen; what they keep during a run lives in a `Companion`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from . import kernels
from .client_store import ClientStore
from .clients import SGD, Client
from .kernels.table import CLIENT_RULES, SERVER_RULES
from .servers import Server
from .train import Contrast, Outcome, RoundWork
from .train.contrast import check_settings
from .train.policy import policy_weights
from .train.split import Split


class Exchange(Protocol):
    """Settings of an exchange: how many vectors besides the model it sends `down` to a client and `up` from it, and how
    many a client has `kept` between its rounds."""

    down: int
    up: int
    kept: int

    @property
    def split(self) -> Split | None:
        """Where the model must split (train/split.py), if its works ask for a contrast; None: it need not."""

    def check(self, client: Client, server: Server) -> None:
        """Refuses optimizers that have no use for it."""

    def begin(self, x: Tensor, clients: int) -> Companion:
        """What it keeps for a run of a model like `x` (d,) with this many clients."""


class Companion(Protocol):
    """An exchange during a run. `keeps_deltas`: it wants to see every client's delta."""

    keeps_deltas: bool

    def extras(self, cohort: Tensor, server_state: dict[str, Tensor]) -> dict[str, Any]:
        """Further fields of the round's work for these clients (n,)."""

    def absorb(self, work: RoundWork, outcome: Outcome) -> None:
        """Learns from a round, once the server has stepped."""

    def tensors(self) -> dict[str, Tensor]:
        """What it keeps, by name, for a checkpoint."""

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Takes over what `tensors` gave."""


@dataclass(frozen=True)
class Preconditioner:
    """Direct joint adaptivity (FedAda2): clients start their second moments from the server's v."""

    down = 1
    up = 0
    kept = 0
    split = None

    def check(self, client: Client, server: Server) -> None:
        if not CLIENT_RULES[client.rule].has_second_moment:
            raise ValueError(f"exchange: client rule {client.rule!r} has no second moment to start from the server's")
        if "v" not in SERVER_RULES[server.rule].moments:
            raise ValueError(f"exchange: server rule {server.rule!r} has no second moment to transmit")
        if getattr(client, "v0", None) is not None:
            raise ValueError("exchange: the second moment starts from the server's v, so v0 would be ignored")

    def begin(self, x: Tensor, clients: int) -> Companion:
        return _Transmitting()


class _Transmitting:
    keeps_deltas = False

    def extras(self, cohort: Tensor, server_state: dict[str, Tensor]) -> dict[str, Any]:
        return {"preconditioner": server_state["v"]}

    def absorb(self, work: RoundWork, outcome: Outcome) -> None:
        """Nothing to learn."""

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Nothing to take over."""


@dataclass(frozen=True)
class ControlVariates:
    """SCAFFOLD, option II: gradients are corrected by c - c_i, where c_i follows the client's mean gradient of its last
    round and c the clients' mean. Clients run plain SGD."""

    down = 1
    up = 1
    kept = 1
    split = None

    def check(self, client: Client, server: Server) -> None:
        if not isinstance(client, SGD):
            raise ValueError(
                f"exchange: SCAFFOLD reads gradients off SGD's moves; client rule {client.rule!r} will not do"
            )
        for name in ("warmup", "clip", "prox", "weight_decay"):
            if getattr(client, name):
                raise ValueError(f"{name}: SCAFFOLD reads gradients off the clients' moves, which {name} would distort")

    def begin(self, x: Tensor, clients: int) -> Companion:
        return _Controlling(x, clients)


class _Controlling:
    keeps_deltas = True

    def __init__(self, x: Tensor, clients: int) -> None:
        self.clients = clients
        self.common = torch.zeros_like(x)
        self.own = ClientStore(x.numel(), x.dtype, x.device)

    def extras(self, cohort: Tensor, server_state: dict[str, Tensor]) -> dict[str, Any]:
        return {"corrections": self.common - self.own.get(cohort, self.common)}

    def absorb(self, work: RoundWork, outcome: Outcome) -> None:
        assert outcome.deltas is not None
        steps = outcome.scalars["steps"].long()
        lr = self._learning_rates(work)
        counts = (steps > 0) & ~outcome.refused & (lr > 0)  # a client that did not move shows no gradient
        weights = torch.where(counts, policy_weights(work, steps), 0.0)
        if not bool(weights.sum() > 0):
            return
        weights /= weights.sum()
        cohort, deltas = work.ids[counts], outcome.deltas[counts]
        before = self.own.get(cohort, self.common)
        gradients = deltas.mul_((-1 / (steps * lr)[counts]).to(deltas)[:, None])  # the mean over local steps, corrected
        changes = gradients.sub_(self.common)
        self.own.put(cohort, before + changes)
        share = int(counts.sum()) / self.clients
        self.common += kernels.weighted_sum(changes, (share * weights[counts]).to(changes))

    def _learning_rates(self, work: RoundWork) -> Tensor:
        own: float = work.clients[0].lr  # type: ignore[attr-defined]
        return torch.full((len(work),), own, dtype=torch.float64) if work.lr is None else work.lr

    def tensors(self) -> dict[str, Tensor]:
        return {"common": self.common, **self.own.tensors()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.common.copy_(tensors["common"])
        self.own.load(tensors)


@dataclass(frozen=True)
class PreviousModels:
    """MOON: a term of weight `mu` in the clients' loss draws the features of their models to those of the model that
    they started from, and away from those of the model with which they ended their last round, which every client
    keeps. ``train/contrast.py`` has the formula. Features are what goes into the layer `head` (its name; None: the last
    nn.Linear of the model). With mu = 0 it is FedAvg.
    """

    mu: float
    temperature: float = 0.5
    head: str | None = None

    down = 0
    up = 0
    kept = 1

    def __post_init__(self) -> None:
        check_settings(self.mu, self.temperature, self.head)

    @property
    def split(self) -> Split | None:
        """Where the model must split, if features are compared at all."""
        return Split(self.head) if self.mu else None

    def check(self, client: Client, server: Server) -> None:
        """Any optimizers will do: only the loss is another."""

    def begin(self, x: Tensor, clients: int) -> Companion:
        return _Remembering(self, x)


class _Remembering:
    keeps_deltas = True

    def __init__(self, settings: PreviousModels, x: Tensor) -> None:
        self.settings = settings
        self.models = ClientStore(x.numel(), x.dtype, x.device)

    def extras(self, cohort: Tensor, server_state: dict[str, Tensor]) -> dict[str, Any]:
        s = self.settings
        return {"contrast": Contrast(s.mu, s.temperature, s.head, *self.models.find(cohort))} if s.mu else {}

    def absorb(self, work: RoundWork, outcome: Outcome) -> None:
        assert outcome.deltas is not None
        trained = ((outcome.scalars["steps"] > 0) & ~outcome.refused).nonzero().flatten()
        self.models.put(work.ids[trained], outcome.deltas[trained].add_(work.starts_of(trained)))

    def tensors(self) -> dict[str, Tensor]:
        return self.models.tensors()

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.models.load(tensors)
