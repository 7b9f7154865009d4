"""The clock of asynchronous rounds: which client starts when, from which model, and whose updates arrive together.

Nothing is trained here. Training is lazy: only when enough updates have arrived are those clients trained, from the
versions of the model that they started from. So a million clients cost no more than their comings and goings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data.arguments import check_real, check_whole
from ..kernels import Stream, backends, uniform
from ..purposes import Purpose
from . import event_state
from .event_state import Floats

_BUDGET = 1 << 18  # turns of the compiled loop between two looks at Ctrl-C: some hundredths of a second
_DRAWS = 4096  # starts whose random numbers are drawn at once
_MOST_CLIENTS = 1 << 31


class EventQueue:
    """Asynchronous federated learning as a course of events, a function of the arguments alone.

    `seconds` (N,) float64 says how long each client's participation takes. `concurrency` clients are in flight at any
    time; a client that ends makes room for another, drawn uniformly among those that are available and neither in
    flight nor waiting in the buffer. Where nobody is, the slot stays free until a window opens. Every client starts
    from the model's `version` at that time, the number of `commit` so far. When `buffer` updates have arrived,
    `advance` returns True; the server takes its step and calls `commit`.

    At any moment arrivals come first, by client id, then free slots are filled. An update that makes the buffer full
    stops the clock at once: others of that moment arrive after `commit`, and slots are filled after them.

    * An update older than `max_age` versions is refused (`stale`).
    * With probability `dropout` a client never reports (`dropped`); it is idle again when it would have finished.
    * `windows` (begin (N,) float64 in [0, period), length, period), in seconds: client i is available in
      [begin_i + k period, begin_i + k period + length). If that ends before the client does, the update is lost at
      that moment (`lost`).
    * `epochs` (further (N,) float64, most): a client that starts draws 1 to `most` epochs, all as likely; each beyond
      the first adds its `further` seconds.
    * `waves`: synchronous rounds over the same clock. Clients start only when nobody is in flight and the buffer is
      empty: `concurrency` of them at once, or as many as are available then, at least one. The buffer also counts as
      full when all of the wave have ended and at least one has reported; `commit` stops those still in flight
      (`discarded`). If none reports, the next wave starts.

    Who starts is drawn by Philox from (seed, number of the start), in waves from (seed, wave, place in it): neither how
    `advance` is cut up nor saving and loading changes the course.
    """

    def __init__(
        self,
        seconds: Tensor,
        *,
        concurrency: int,
        buffer: int,
        max_age: int | None = None,
        waves: bool = False,
        dropout: float = 0.0,
        windows: tuple[Tensor, float, float] | None = None,
        epochs: tuple[Tensor, int] | None = None,
        seed: int,
    ) -> None:
        durations = _check_seconds("seconds", seconds)
        clients = len(durations)
        further, most_epochs = _check_epochs(epochs, clients)
        concurrency = _check_at_most("concurrency", concurrency, clients, "the number of clients")
        buffer = _check_at_most("buffer", buffer, clients, "the number of clients")
        begin, length, period = _check_windows(windows, clients)
        _check_waves(waves, max_age, buffer, concurrency)
        _check_windows_suffice(durations, length, 1 if waves else buffer)
        self._seed = Stream(seed).seed
        self._state = event_state.State(
            seconds=durations,
            further=further,
            most_epochs=most_epochs,
            begin=begin,
            order=np.argsort(begin, kind="stable").astype(np.int32),
            length=length,
            period=period,
            concurrency=concurrency,
            buffer=buffer,
            max_age=-1 if max_age is None else check_whole("max_age", max_age, 0),
            waves=waves,
            dropout=_check_dropout(dropout),
            now=np.zeros(1),
            counts=np.zeros(event_state.DRAWN + 1, np.int64),
            status=np.zeros(clients, np.uint8),
            draws=np.zeros((concurrency if waves else _DRAWS, 4), np.float32),
            epoch_draws=np.zeros((concurrency if waves else _DRAWS) if len(further) else 0, np.float32),
            epochs=np.zeros(len(further), np.int64),
            tree=np.zeros(-(-clients // event_state.GROUP) + 1, np.int32),
            due=np.zeros(concurrency),
            client=np.zeros(concurrency, np.int64),
            started=np.zeros(concurrency, np.int64),
            arrived=np.zeros(buffer, np.int64),
            arrived_version=np.zeros(buffer, np.int64),
        )
        self._loop = _compiled_loop()
        self._loop.settle(self._state)

    def advance(self, until: float = math.inf) -> bool:
        """Runs the clock until the buffer is full (True), or the next event would be later than `until` (False).

        The clock then stays at the last event: `now` is not `until`, and a later call goes on as if there had been no
        stop. With a full buffer nothing happens until `commit`: it is True again.
        """
        if not isinstance(until, (int, float)) or math.isnan(until):
            raise ValueError(f"until: must be a time in seconds, got {until!r}")
        outcome = event_state.UNFINISHED
        while outcome in (event_state.UNFINISHED, event_state.UNDRAWN):
            if outcome == event_state.UNDRAWN:
                self._draw()
            outcome = self._loop.run(self._state, float(until), _BUDGET)
        return outcome == event_state.FULL

    def _draw(self) -> None:
        """Random numbers for the next portion of starts, which is a wave or a number of them by their number."""
        state = self._state
        portion = int(state.counts[event_state.WANTED])
        drawn = uniform(state.draws.size, Stream(self._seed, Purpose.EVENTS, round=portion))
        state.draws[:] = drawn.numpy().reshape(-1, 4)
        if len(state.epoch_draws):
            state.epoch_draws[:] = uniform(len(state.epoch_draws), Stream(self._seed, Purpose.EPOCHS, portion)).numpy()
        state.counts[event_state.DRAWN] = portion

    def commit(self) -> None:
        """The server has taken a step: the version is one more, and the clients of the buffer are idle again.

        The buffer need not be full (the last step of a run), but something must have arrived.
        """
        if not self._state.counts[event_state.BUFFERED]:
            raise RuntimeError("commit: no update has arrived since the last one, so there is no step to take")
        self._loop.commit(self._state)

    @property
    def arrived(self) -> tuple[Tensor, Tensor]:
        """Who is in the buffer, in order of arrival, and the versions that they started from: (n,) int64 each."""
        n = int(self._state.counts[event_state.BUFFERED])
        clients, versions = self._state.arrived[:n], self._state.arrived_version[:n]
        return torch.from_numpy(clients.copy()), torch.from_numpy(versions.copy())

    @property
    def epochs(self) -> Tensor | None:
        """How many epochs those in the buffer have drawn, in the order of `arrived`: (n,) int64; None: none do."""
        return torch.from_numpy(self._state.epochs[self.arrived[0].numpy()]) if len(self._state.epochs) else None

    def versions_in_use(self) -> Tensor:
        """The versions that somebody will be trained from, and the current one: (n,) int64, each once, ascending.

        Those of the buffer, and of clients in flight whose update can still be accepted: with `max_age` there are
        never more than ``max_age + 1``.
        """
        state, version = self._state, self.version
        flying = state.started[: self.in_flight]
        oldest = max(0, version - state.max_age) if state.max_age >= 0 else 0
        used = np.concatenate((flying[flying >= oldest], self.arrived[1].numpy(), [version]))
        return torch.from_numpy(np.unique(used))

    @property
    def now(self) -> float:
        """The time of the last event in seconds, from 0."""
        return float(self._state.now[0])

    @property
    def version(self) -> int:
        """How many commits there have been."""
        return int(self._state.counts[event_state.VERSION])

    @property
    def events(self) -> int:
        """How many participations have ended: accepted, stale, dropped or lost."""
        return int(self._state.counts[event_state.EVENTS])

    @property
    def starts(self) -> int:
        """How many participations have begun."""
        return int(self._state.counts[event_state.STARTS])

    @property
    def dropped(self) -> int:
        """How many clients never reported."""
        return int(self._state.counts[event_state.DROPPED])

    @property
    def lost(self) -> int:
        """How many updates were lost because a window closed."""
        return int(self._state.counts[event_state.LOST])

    @property
    def stale(self) -> int:
        """How many updates were refused for their age."""
        return int(self._state.counts[event_state.STALE])

    @property
    def discarded(self) -> int:
        """How many clients were stopped because their wave had enough."""
        return int(self._state.counts[event_state.DISCARDED])

    @property
    def in_flight(self) -> int:
        """How many clients are at work."""
        return int(self._state.counts[event_state.IN_FLIGHT])

    def tensors(self) -> dict[str, Tensor]:
        """The state, for a checkpoint: `now` (1,), `counts` (8,), those in flight and those in the buffer."""
        state = self._state
        flying, waiting = self.in_flight, int(state.counts[event_state.BUFFERED])
        arrays = {
            "now": state.now,
            "counts": state.counts[: event_state.SAVED],
            "due": state.due[:flying],
            "client": state.client[:flying],
            "started": state.started[:flying],
            "arrived": state.arrived[:waiting],
            "arrived_version": state.arrived_version[:waiting],
        }
        if len(state.epochs):
            arrays |= {
                "epochs": state.epochs[state.client[:flying]],
                "arrived_epochs": state.epochs[state.arrived[:waiting]],
            }
        return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes over what `tensors` gave, from a queue with the same arguments."""
        state = self._state
        held = _check_saved(tensors, state)
        state.now[:] = held["now"]
        state.counts[: event_state.SAVED] = held["counts"]
        state.counts[event_state.IN_FLIGHT], state.counts[event_state.BUFFERED] = len(held["due"]), len(held["arrived"])
        for name in ("due", "client", "started", "arrived", "arrived_version"):
            getattr(state, name)[: len(held[name])] = held[name]
        if len(state.epochs):
            state.epochs[held["client"]], state.epochs[held["arrived"]] = held["epochs"], held["arrived_epochs"]
        self._loop.settle(state)


# ---- checks ---------------------------------------------------------------------------------------------------------


class _Loop(NamedTuple):
    """The compiled loop: what it does with a `State`."""

    run: Callable[[event_state.State, float, int], int]
    commit: Callable[[event_state.State], None]
    settle: Callable[[event_state.State], None]


def _compiled_loop() -> _Loop:
    """Of the extension; where it is missing, of numba, which is not imported before: that takes half a second."""
    if backends()["cpp"] is True:
        from .. import _core

        return _Loop(_core.run_events, _core.commit_events, _core.settle_events)
    from . import event_loop

    return _Loop(event_loop.run, event_loop.commit, event_loop.settle)


def _check_seconds(name: str, seconds: Tensor) -> Floats:
    """A copy: the caller's tensor may change, the course must not."""
    if not isinstance(seconds, Tensor) or seconds.dtype != torch.float64 or seconds.dim() != 1:
        raise ValueError(f"{name}: must be a float64 tensor of shape (clients,), got {_kind(seconds)}")
    if not 1 <= len(seconds) < _MOST_CLIENTS:
        raise ValueError(f"{name}: must be of 1 to {_MOST_CLIENTS - 1} clients, got {len(seconds)}")
    bad = (~(seconds > 0) | seconds.isinf()).nonzero()
    if len(bad):
        client = int(bad[0])
        raise ValueError(f"{name}: must be finite and > 0, got {seconds[client].item()!r} for client {client}")
    return np.array(seconds.detach().cpu().numpy(), order="C")


def _check_epochs(epochs: tuple[Tensor, int] | None, clients: int) -> tuple[Floats, int]:
    """The seconds of every further epoch, and the most epochs."""
    if epochs is None:
        return np.zeros(0), 1
    if not isinstance(epochs, tuple) or len(epochs) != 2:
        raise ValueError(f"epochs: must be (further, most), got {epochs!r}")
    further = _check_seconds("epochs: further", epochs[0])
    if len(further) != clients:
        raise ValueError(f"epochs: further must be of {clients} clients, got {len(further)}")
    return further, check_whole("epochs: most", epochs[1], 1)


def _check_at_most(name: str, value: int, most: int, what: str) -> int:
    whole = check_whole(name, value, 1)
    if whole > most:
        raise ValueError(f"{name}: must be at most {what}, {most}, got {value}")
    return whole


def _check_dropout(dropout: float) -> float:
    value = check_real("dropout", dropout)
    if value >= 1:
        raise ValueError(f"dropout: must be in [0, 1), got {dropout!r}")
    return value


def _check_windows(windows: tuple[Tensor, float, float] | None, clients: int) -> tuple[Floats, float, float]:
    if windows is None:
        return np.zeros(0), math.inf, math.inf
    if not isinstance(windows, tuple) or len(windows) != 3:
        raise ValueError(f"windows: must be (begin, length, period), got {windows!r}")
    begin, length, period = windows
    period = check_real("windows: period", period, above=0.0)
    if check_real("windows: length", length, above=0.0) >= period:
        raise ValueError(f"windows: length must be less than the period, {period:g}, got {length!r}")
    if not isinstance(begin, Tensor) or begin.dtype != torch.float64 or begin.shape != (clients,):
        raise ValueError(f"windows: begin must be a float64 tensor of shape ({clients},), got {_kind(begin)}")
    if not bool(((begin >= 0) & (begin < period)).all()):
        raise ValueError(f"windows: begin must be in [0, {period:g}) for every client")
    return np.array(begin.detach().cpu().numpy(), order="C"), float(length), period


def _check_waves(waves: bool, max_age: int | None, buffer: int, concurrency: int) -> None:
    if not isinstance(waves, bool):
        raise ValueError(f"waves: must be True or False, got {waves!r}")
    if waves and max_age is not None:
        raise ValueError(f"max_age: in waves every update is of age 0, so it would do nothing; got {max_age!r}")
    if waves and buffer > concurrency:
        raise ValueError(f"buffer: must be at most the wave's concurrency, {concurrency}, got {buffer}")


def _check_windows_suffice(seconds: Floats, length: float, needed: int) -> None:
    """Otherwise the clock would run for ever."""
    able = int((seconds <= length).sum())
    if able < needed:
        raise ValueError(
            f"windows: length must let at least {needed} clients finish, but {length:g} seconds are enough for {able}"
        )


_DTYPES = {
    "now": torch.float64,
    "counts": torch.int64,
    "due": torch.float64,
    "client": torch.int64,
    "started": torch.int64,
    "arrived": torch.int64,
    "arrived_version": torch.int64,
}


_DTYPES_OF_EPOCHS = {"epochs": torch.int64, "arrived_epochs": torch.int64}  # where they are drawn


def _check_saved(tensors: Mapping[str, Tensor], state: event_state.State) -> dict[str, NDArray[Any]]:
    """The arrays of a checkpoint, if this queue can go on from them: the compiled loop trusts every index."""
    dtypes = _DTYPES | (_DTYPES_OF_EPOCHS if len(state.epochs) else {})
    if set(tensors) != set(dtypes):
        raise ValueError(f"tensors: must be {', '.join(dtypes)}, got {', '.join(tensors) or 'none'}")
    for name, dtype in dtypes.items():
        if tensors[name].dtype != dtype or tensors[name].dim() != 1:
            raise ValueError(f"{name}: must be a vector of {dtype}, got {_kind(tensors[name])}")
    held = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
    flying, waiting = len(held["due"]), len(held["arrived"])
    for name, size in (("now", 1), ("counts", event_state.SAVED), ("client", flying), ("started", flying)):
        _check_size(name, held[name], size)
    _check_size("arrived_version", held["arrived_version"], waiting)
    if len(state.epochs):
        _check_size("epochs", held["epochs"], flying)
        _check_size("arrived_epochs", held["arrived_epochs"], waiting)
    if flying > state.concurrency or waiting > state.buffer:
        raise ValueError(
            f"tensors: must be of a queue with concurrency {state.concurrency} and buffer {state.buffer}, "
            f"got {flying} clients in flight and {waiting} in the buffer"
        )
    busy = np.concatenate((held["client"], held["arrived"]))
    if len(busy) and not (len(np.unique(busy)) == len(busy) and busy.min() >= 0 and busy.max() < len(state.seconds)):
        raise ValueError(f"tensors: client and arrived must be different ids below {len(state.seconds)}")
    now, counts = held["now"][0], held["counts"]
    if not 0 <= now < math.inf or counts.min() < 0 or not bool(np.all(held["due"] >= now)):
        raise ValueError("tensors: now and counts must be >= 0, and due not before now")
    return held


def _check_size(name: str, array: NDArray[Any], size: int) -> None:
    if len(array) != size:
        raise ValueError(f"{name}: must hold {size} numbers, got {len(array)}")


def _kind(value: object) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
