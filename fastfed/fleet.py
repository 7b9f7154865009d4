"""The devices of the clients: how fast they compute and send, when they are available, how often they drop out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .data.arguments import check_real, check_whole
from .data.exact import exp
from .data.sampling import normals, uniforms
from .kernels import Stream
from .per_client import PerClient, check_count, expand, largest, per_client
from .purposes import Purpose

_SPEEDS, _BEGINS = 0, 1  # what the numbers of a FLEET stream are for: its word `round`
_PORTION = 1 << 16  # clients whose numbers are drawn at once: bounds the memory of the steps in between


@dataclass(frozen=True)
class Windows:
    """When clients are available: `length` seconds of every `period`, as at night. Client i from `begin` on.

    ``[begin_i + k * period, begin_i + k * period + length)`` for all k. `begin` in [0, period): one number for all,
    one per client, or None: drawn uniformly for each.
    """

    period: float = 86400.0
    length: float = 28800.0
    begin: PerClient | None = None

    def __post_init__(self) -> None:
        period = check_real("period", self.period, above=0.0)
        if check_real("length", self.length, above=0.0) >= period:
            raise ValueError(
                f"length: must be less than the period, {period:g} seconds, got {self.length!r}; "
                f"clients that are always available need no windows"
            )
        if self.begin is not None:
            begin = per_client("begin", self.begin)
            if bool((torch.as_tensor(begin) >= period).any()):
                raise ValueError(f"begin: must be less than the period, {period:g} seconds, got {largest(begin)!r}")
            object.__setattr__(self, "begin", begin)

    def begins(self, clients: int, seed: int) -> Tensor:
        """When each client's first window opens: (clients,) float64 seconds in [0, period)."""
        self.check(clients)
        if self.begin is not None:
            return expand(self.begin, clients)
        begins = torch.empty(clients, dtype=torch.float64)
        stream = Stream(seed, Purpose.FLEET, round=_BEGINS)
        for ids in torch.arange(clients).split(_PORTION):
            begins[ids] = torch.from_numpy(uniforms(1, stream, ids)[:, 0] * self.period)
        return begins

    def check(self, clients: int) -> None:
        """Refuses beginnings for another number of clients."""
        check_count("begin", self.begin, clients)


@dataclass(frozen=True)
class Fleet:
    """The clients' devices. Times are in seconds.

    * `step_seconds` for one local step: one per client, or the median of all. In that case `spread` > 0 gives every
      client its own speed, drawn once: log-normal, `spread` the deviation of the logarithm.
    * `network_seconds` for the model's way down and the update's way up together: one number for all or one per client;
      `bytes_per_second` adds the time that the bytes themselves take.
    * `dropout` in [0, 1): the probability that a client which starts never reports.
    * `windows`: when clients are available. None: always.
    """

    step_seconds: PerClient = 1.0
    spread: float = 0.0
    network_seconds: PerClient = 0.0
    bytes_per_second: float | None = None
    dropout: float = 0.0
    windows: Windows | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "step_seconds", per_client("step_seconds", self.step_seconds, above=0.0))
        object.__setattr__(self, "network_seconds", per_client("network_seconds", self.network_seconds))
        if check_real("spread", self.spread) > 0 and not isinstance(self.step_seconds, float):
            raise ValueError(
                f"spread: spreads one number of step_seconds over the clients; with one each it must be 0, "
                f"got {self.spread!r}"
            )
        if self.bytes_per_second is not None:
            check_real("bytes_per_second", self.bytes_per_second, above=0.0)
        if check_real("dropout", self.dropout) >= 1:
            raise ValueError(f"dropout: must be in [0, 1), got {self.dropout!r}")
        if self.windows is not None and not isinstance(self.windows, Windows):
            raise TypeError(f"windows: must be Windows or None, got {self.windows!r}")

    def seconds(self, steps: Tensor, bytes_moved: int, seed: int) -> Tensor:
        """How long each client's participation takes: (clients,) float64, > 0.

        `steps` (clients,) int64 local steps; `bytes_moved` down and up together, for each client.
        """
        if not isinstance(steps, Tensor) or steps.dim() != 1 or steps.dtype != torch.int64:
            raise ValueError(f"steps: must be an int64 tensor of shape (clients,), got {steps!r}")
        if bool((steps < 0).any()):
            raise ValueError(f"steps: must be >= 0, got {int(steps.min())}")
        bytes_moved = check_whole("bytes_moved", bytes_moved, 0)
        self.check(len(steps))
        seconds = self.training_seconds(steps, seed) + expand(self.network_seconds, len(steps))
        if self.bytes_per_second is not None:
            seconds += bytes_moved / self.bytes_per_second
        _check_durations(seconds, steps)
        return seconds

    def training_seconds(self, steps: Tensor, seed: int) -> Tensor:
        """How long the local steps (clients,) alone take: (clients,) float64."""
        return steps * self._seconds_a_step(len(steps), seed)

    def begins(self, clients: int, seed: int) -> Tensor | None:
        """When each client's first window opens: (clients,) float64 seconds; None where all are always available."""
        return None if self.windows is None else self.windows.begins(clients, seed)

    def check(self, clients: int) -> None:
        """Refuses settings that were given for another number of clients."""
        check_count("step_seconds", self.step_seconds, clients)
        check_count("network_seconds", self.network_seconds, clients)
        if self.windows is not None:
            self.windows.check(clients)

    def _seconds_a_step(self, clients: int, seed: int) -> Tensor:
        seconds = expand(self.step_seconds, clients)
        if self.spread > 0:
            stream = Stream(seed, Purpose.FLEET, round=_SPEEDS)
            for ids in torch.arange(clients).split(_PORTION):
                seconds[ids] *= torch.from_numpy(_log_normals(self.spread, stream, ids))
        return seconds


def _log_normals(spread: float, stream: Stream, ids: Tensor) -> NDArray[np.float64]:
    """(len(ids),) factors of median 1, the same bits on every machine; infinite where float64 does not reach."""
    logarithms = spread * normals(1, stream, ids)[:, 0]
    return np.where(logarithms < 709, exp(np.minimum(logarithms, 709.0)), np.inf)


def _check_durations(seconds: Tensor, steps: Tensor) -> None:
    bad = (~(seconds > 0) | seconds.isinf()).nonzero()
    if not len(bad):
        return
    client = int(bad[0])
    took = f"client {client} with {int(steps[client])} local steps takes {seconds[client].item():g} seconds"
    if seconds[client] > 0:
        raise ValueError(f"spread: {took}; a spread below 10 avoids that")
    raise ValueError(f"network_seconds: {took}; a participation must take some time, so give network_seconds > 0")
