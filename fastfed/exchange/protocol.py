"""What an exchange is: settings (`Exchange`), and what becomes of them in a run (`Exchanger`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from ..checks import fits
from ..train import Outcome, RoundWork
from ..train.split import Split
from .client_store import ClientStore


class VectorStore(Protocol):
    """What keeps a vector (d,) for every client that has been seen, by its id of 64 bits: `ClientStore`, in memory, or
    one of a host's own, on a disk or in a database."""

    def get(self, ids: Tensor, default: Tensor) -> Tensor:
        """A copy of the clients' vectors, (len(ids), d); `default` (d,) for clients not seen yet."""

    def find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """A copy of the vectors of those that have been seen, (m, d), and which of them is whose: (len(ids),) int64, -1
        for clients not seen yet."""

    def put(self, ids: Tensor, vectors: Tensor) -> None:
        """Keeps `vectors` (len(ids), d)."""

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds of it, under names that do not say "common"; nothing, if it lasts by itself."""

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Takes over what `tensors` gave."""


MakeStore = Callable[[int, torch.dtype, torch.device], VectorStore]  # d, of which numbers, where


def make_store(make: MakeStore | None, x: Tensor) -> VectorStore:
    """A store of vectors like `x` (d,): of a host's making, or in memory."""
    made = (ClientStore if make is None else make)(x.numel(), x.dtype, x.device)
    fits("store", made, VectorStore, "fastfed.exchange")
    return made


class Exchange(Protocol):
    """Settings of an exchange: how many vectors besides the model it sends `down` to a client and `up` from it, and how
    many a client has `kept` between its rounds. `any_timing`: it works where rounds are not synchronous, too."""

    down: int
    up: int
    kept: int
    any_timing: bool

    @property
    def split(self) -> Split | None:
        """Where the model must split (train/split.py), if its works ask for a contrast; None: it need not."""

    def check(self, client: Any, server: Any) -> None:
        """Refuses optimizers of ``ff.clients`` and servers that have no use for it."""

    def begin(self, x: Tensor, clients: int) -> Exchanger:
        """What it keeps for a run of a model like `x` (d,) with this many clients."""


class Exchanger(Protocol):
    """An exchange during a run. `keeps_deltas`: it wants to see every client's delta.

    `stores`, if it has that, are those of what its clients keep: if each is a `ClientStore`, it can be dealt to several
    ranks, of which each sees the deltas of its own clients (`Outcome.here`); what it keeps besides is the same on all.
    """

    keeps_deltas: bool

    def extras(self, cohort: Tensor, server_state: dict[str, Tensor]) -> dict[str, Any]:
        """Further fields of the round's work for these clients (n,)."""

    def absorb(self, work: RoundWork, outcome: Outcome) -> None:
        """Learns from a round, once the server has stepped."""

    def tensors(self) -> dict[str, Tensor]:
        """What it keeps, by name, for a checkpoint."""

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Takes over what `tensors` gave."""


class NoExchanger:
    """Of a run in which only the model travels."""

    keeps_deltas = False
    stores: tuple[VectorStore, ...] = ()

    def extras(self, cohort: Tensor, server_state: dict[str, Tensor]) -> dict[str, Any]:
        return {}

    def absorb(self, work: RoundWork, outcome: Outcome) -> None:
        """Nothing to learn."""

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Nothing to take over."""
