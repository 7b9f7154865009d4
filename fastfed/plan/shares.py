"""How likely clients are to be drawn for a cohort, relative to one another: drawn once for a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from ..checks import check_weights
from ..data.arguments import check_real
from ..data.exact import Floats
from ..data.sampling import log_gammas, normals, shares
from ..kernels import Stream
from ..per_client import PerClient, check_count, expand, per_client
from ..purposes import Purpose


@dataclass(frozen=True)
class Dirichlet:
    """Shares from a symmetric Dirichlet distribution over all clients: the smaller `alpha`, the fewer take part."""

    alpha: float

    def __post_init__(self) -> None:
        check_real("alpha", self.alpha, above=0.0)

    def drawn(self, clients: int, seed: int) -> Floats:
        """(clients,) numbers >= 0, the largest 1."""
        shapes = np.array([float(self.alpha)])
        return shares(log_gammas(shapes, Stream(seed, Purpose.SHARES), torch.arange(clients))[:, 0])


@dataclass(frozen=True)
class LogNormal:
    """Shares whose logarithms are normal, with the deviation `spread`."""

    spread: float

    def __post_init__(self) -> None:
        check_real("spread", self.spread, above=0.0)

    def drawn(self, clients: int, seed: int) -> Floats:
        """(clients,) numbers >= 0, the largest 1."""
        return shares(self.spread * normals(1, Stream(seed, Purpose.SHARES), torch.arange(clients))[:, 0])


Shares = Sequence[float] | Tensor | Dirichlet | LogNormal | None


def check_shares(given: Shares) -> Shares:
    """Shares as settings keep them."""
    if given is None or isinstance(given, Dirichlet | LogNormal):
        return given
    kept = per_client("shares", given)
    if isinstance(kept, float):
        raise ValueError(f"shares: must be one per client, Dirichlet or LogNormal, got {given!r}")
    numbers = torch.as_tensor(kept, dtype=torch.float64)
    check_weights("shares", numbers)
    if not bool((numbers > 0).any()):
        raise ValueError("shares: must be > 0 for at least one client")
    return kept


def check_shares_of(given: Shares, clients: int) -> None:
    """Refuses shares that were given for another number of clients."""
    if not isinstance(given, Dirichlet | LogNormal):
        check_count("shares", given, clients, may_be_one=False)


def shares_of(given: Shares, clients: int, seed: int) -> Floats:
    """(clients,) numbers >= 0; all alike where none are given."""
    if isinstance(given, Dirichlet | LogNormal):
        return _drawn(given, clients, seed)
    alike: PerClient = 1.0
    return expand(alike if given is None else given, clients).numpy()


@lru_cache(maxsize=4)
def _drawn(kind: Dirichlet | LogNormal, clients: int, seed: int) -> Floats:
    """Kept, as every round asks for them."""
    return kind.drawn(clients, seed)
