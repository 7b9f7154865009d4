"""The clock of asynchronous rounds: which client starts when, from which model, and whose updates arrive together.

Nothing is trained here. Training is lazy: only when enough updates have arrived are those clients trained, from the
versions of the model that they started from. So a million clients cost no more than their comings and goings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .data.arguments import check_real, check_whole
from .kernels import Stream, uniform
from .purposes import Purpose

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# What a queue counts: the first ones make up its state, the others follow from it.
_VERSION, _EVENTS, _DROPPED, _LOST, _STALE, _DISCARDED, _STARTS, _WAVES = range(8)
_SAVED = 8
_IN_FLIGHT, _BUFFERED, _READY, _OPENED, _CLOSED, _WANTED, _DRAWN = range(_SAVED, _SAVED + 7)

_BUSY, _OPEN = 1, 2  # bits of a client's status: in flight or in the buffer; available. Ready to start: _OPEN alone
_DROPS, _LOSES = -1, -2  # in place of the version of a client that will not report, or whose window will close first

_BLOCK = 64  # clients counted together by the tree of those ready: one line of the cache holds their status
_CUT, _FULL, _UNFINISHED, _UNDRAWN = range(4)
_BUDGET = 1 << 18  # turns of the compiled loop between two looks at Ctrl-C: some hundredths of a second
_DRAWS = 4096  # starts whose random numbers are drawn at once
_NONE = -1
_MOST_CLIENTS = 1 << 31

_Heap = tuple[Floats, Ints, Ints]  # when, who, from which version: (concurrency,) each


class _State(NamedTuple):
    """What the compiled loop works on: settings first, then what changes. N clients."""

    seconds: Floats  # (N,) how long each takes
    begin: Floats  # (N,) when its first window opens, in [0, period); (0,) where all are always available
    order: NDArray[np.int32]  # the clients by the beginning of their windows, like `begin`
    length: float
    period: float
    concurrency: int
    buffer: int
    max_age: int  # negative: any
    waves: bool
    dropout: float

    now: Floats  # (1,)
    counts: Ints  # by the names above
    status: NDArray[np.int8]  # (N,)
    draws: NDArray[np.float32]  # (starts, 4) random numbers of the starts of portion counts[_DRAWN]
    tree: NDArray[np.int32]  # a Fenwick tree over blocks of clients: how many are ready
    due: Floats  # (concurrency,) a binary heap with the next two: when, ...
    client: Ints  # ... who, ...
    started: Ints  # ... and from which version (or _DROPS, _LOSES)
    arrived: Ints  # (buffer,) who has reported, ...
    arrived_version: Ints  # ... from which version


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
        seed: int,
    ) -> None:
        durations = _check_seconds(seconds)
        clients = len(durations)
        concurrency = _check_at_most("concurrency", concurrency, clients, "the number of clients")
        buffer = _check_at_most("buffer", buffer, clients, "the number of clients")
        begin, length, period = _check_windows(windows, clients)
        _check_waves(waves, max_age, buffer, concurrency)
        _check_windows_suffice(durations, length, 1 if waves else buffer)
        self._seed = Stream(seed).seed
        _compile()
        self._state = _State(
            seconds=durations,
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
            counts=np.zeros(_DRAWN + 1, np.int64),
            status=np.zeros(clients, np.int8),
            draws=np.zeros((concurrency if waves else _DRAWS, 4), np.float32),
            tree=np.zeros(-(-clients // _BLOCK) + 1, np.int32),
            due=np.zeros(concurrency),
            client=np.zeros(concurrency, np.int64),
            started=np.zeros(concurrency, np.int64),
            arrived=np.zeros(buffer, np.int64),
            arrived_version=np.zeros(buffer, np.int64),
        )
        _settle(self._state)

    def advance(self, until: float = math.inf) -> bool:
        """Runs the clock until the buffer is full (True), or the next event would be later than `until` (False).

        The clock then stays at the last event: `now` is not `until`, and a later call goes on as if there had been no
        stop. With a full buffer nothing happens until `commit`: it is True again.
        """
        if not isinstance(until, (int, float)) or math.isnan(until):
            raise ValueError(f"until: must be a time in seconds, got {until!r}")
        outcome = _UNFINISHED
        while outcome in (_UNFINISHED, _UNDRAWN):
            if outcome == _UNDRAWN:
                self._draw()
            outcome = _run(self._state, float(until), _BUDGET)
        return outcome == _FULL

    def _draw(self) -> None:
        """Random numbers for the next portion of starts, which is a wave or a number of them by their number."""
        state = self._state
        portion = int(state.counts[_WANTED])
        drawn = uniform(state.draws.size, Stream(self._seed, Purpose.EVENTS, round=portion))
        state.draws[:] = drawn.numpy().reshape(-1, 4)
        state.counts[_DRAWN] = portion

    def commit(self) -> None:
        """The server has taken a step: the version is one more, and the clients of the buffer are idle again.

        The buffer need not be full (the last step of a run), but something must have arrived.
        """
        if not self._state.counts[_BUFFERED]:
            raise RuntimeError("commit: no update has arrived since the last one, so there is no step to take")
        _commit(self._state)

    @property
    def arrived(self) -> tuple[Tensor, Tensor]:
        """Who is in the buffer, in order of arrival, and the versions that they started from: (n,) int64 each."""
        n = int(self._state.counts[_BUFFERED])
        clients, versions = self._state.arrived[:n], self._state.arrived_version[:n]
        return torch.from_numpy(clients.copy()), torch.from_numpy(versions.copy())

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
        return int(self._state.counts[_VERSION])

    @property
    def events(self) -> int:
        """How many participations have ended: accepted, stale, dropped or lost."""
        return int(self._state.counts[_EVENTS])

    @property
    def starts(self) -> int:
        """How many participations have begun."""
        return int(self._state.counts[_STARTS])

    @property
    def dropped(self) -> int:
        """How many clients never reported."""
        return int(self._state.counts[_DROPPED])

    @property
    def lost(self) -> int:
        """How many updates were lost because a window closed."""
        return int(self._state.counts[_LOST])

    @property
    def stale(self) -> int:
        """How many updates were refused for their age."""
        return int(self._state.counts[_STALE])

    @property
    def discarded(self) -> int:
        """How many clients were stopped because their wave had enough."""
        return int(self._state.counts[_DISCARDED])

    @property
    def in_flight(self) -> int:
        """How many clients are at work."""
        return int(self._state.counts[_IN_FLIGHT])

    def tensors(self) -> dict[str, Tensor]:
        """The state, for a checkpoint: `now` (1,), `counts` (8,), those in flight and those in the buffer."""
        state = self._state
        flying, waiting = self.in_flight, int(state.counts[_BUFFERED])
        arrays = {
            "now": state.now,
            "counts": state.counts[:_SAVED],
            "due": state.due[:flying],
            "client": state.client[:flying],
            "started": state.started[:flying],
            "arrived": state.arrived[:waiting],
            "arrived_version": state.arrived_version[:waiting],
        }
        return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes over what `tensors` gave, from a queue with the same arguments."""
        state = self._state
        held = _check_saved(tensors, state)
        state.now[:] = held["now"]
        state.counts[:_SAVED] = held["counts"]
        state.counts[_IN_FLIGHT], state.counts[_BUFFERED] = len(held["due"]), len(held["arrived"])
        for name in ("due", "client", "started", "arrived", "arrived_version"):
            getattr(state, name)[: len(held[name])] = held[name]
        _settle(state)


# ---- checks ---------------------------------------------------------------------------------------------------------


def _check_seconds(seconds: Tensor) -> Floats:
    """A copy: the caller's tensor may change, the course must not."""
    if not isinstance(seconds, Tensor) or seconds.dtype != torch.float64 or seconds.dim() != 1:
        raise ValueError(f"seconds: must be a float64 tensor of shape (clients,), got {_kind(seconds)}")
    if not 1 <= len(seconds) < _MOST_CLIENTS:
        raise ValueError(f"seconds: must be of 1 to {_MOST_CLIENTS - 1} clients, got {len(seconds)}")
    bad = (~(seconds > 0) | seconds.isinf()).nonzero()
    if len(bad):
        client = int(bad[0])
        raise ValueError(f"seconds: must be finite and > 0, got {seconds[client].item()!r} for client {client}")
    return np.array(seconds.detach().cpu().numpy(), order="C")


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


def _check_saved(tensors: Mapping[str, Tensor], state: _State) -> dict[str, NDArray[Any]]:
    """The arrays of a checkpoint, if this queue can go on from them: the compiled loop trusts every index."""
    if set(tensors) != set(_DTYPES):
        raise ValueError(f"tensors: must be {', '.join(_DTYPES)}, got {', '.join(tensors) or 'none'}")
    for name, dtype in _DTYPES.items():
        if tensors[name].dtype != dtype or tensors[name].dim() != 1:
            raise ValueError(f"{name}: must be a vector of {dtype}, got {_kind(tensors[name])}")
    held = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
    flying, waiting = len(held["due"]), len(held["arrived"])
    for name, size in (("now", 1), ("counts", _SAVED), ("client", flying), ("started", flying)):
        _check_size(name, held[name], size)
    _check_size("arrived_version", held["arrived_version"], waiting)
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


# ---- the loop: plain functions, compiled by numba in their place ----------------------------------------------------


def _run(q: _State, until: float, budget: int) -> int:
    """Events until the buffer is full, the next would be later than `until`, or the budget of turns is spent."""
    for _ in range(budget):
        if _is_full(q):
            return _FULL
        if q.now[0] > until:
            return _CUT
        if q.counts[_IN_FLIGHT] > 0 and q.due[0] <= q.now[0]:
            _end_first(q)
            continue
        if not _fill(q):
            return _UNDRAWN
        moment = _next_moment(q)
        if moment > until:
            return _CUT
        q.now[0] = moment
        _turn_windows(q)
    return _UNFINISHED


def _is_full(q: _State) -> bool:
    buffered = q.counts[_BUFFERED]
    return buffered >= q.buffer or (q.waves and buffered > 0 and q.counts[_IN_FLIGHT] == 0)


def _end_first(q: _State) -> None:
    """The first client of the heap ends: its update goes to the buffer, or nowhere."""
    client, started = q.client[0], q.started[0]
    _pop((q.due, q.client, q.started), q.counts[_IN_FLIGHT])
    q.counts[_IN_FLIGHT] -= 1
    q.counts[_EVENTS] += 1
    if started == _DROPS:
        q.counts[_DROPPED] += 1
    elif started == _LOSES:
        q.counts[_LOST] += 1
    elif q.max_age >= 0 and q.counts[_VERSION] - started > q.max_age:
        q.counts[_STALE] += 1
    else:
        place = q.counts[_BUFFERED]
        q.arrived[place] = client
        q.arrived_version[place] = started
        q.counts[_BUFFERED] = place + 1
        return  # it stays busy
    _set_status(q, client, _BUSY, False)


def _fill(q: _State) -> bool:
    """Starts clients in all free slots while somebody is ready; False where random numbers must be drawn first."""
    if q.waves:
        return _fill_wave(q)
    while q.counts[_IN_FLIGHT] < q.concurrency and q.counts[_READY] > 0:
        number = q.counts[_STARTS]
        if not _has_drawn(q, number // q.draws.shape[0]):
            return False
        _start(q, number % q.draws.shape[0])
    return True


def _fill_wave(q: _State) -> bool:
    if q.counts[_IN_FLIGHT] > 0 or q.counts[_BUFFERED] > 0 or q.counts[_READY] == 0:
        return True
    if not _has_drawn(q, q.counts[_WAVES]):
        return False
    for place in range(min(q.concurrency, q.counts[_READY])):
        _start(q, place)
    q.counts[_WAVES] += 1
    return True


def _has_drawn(q: _State, portion: int) -> bool:
    """Whether the random numbers of this portion of starts are there; they are wanted."""
    q.counts[_WANTED] = portion
    return q.counts[_DRAWN] == portion


def _next_moment(q: _State) -> float:
    """When the next client ends, or a window opens that a free slot waits for."""
    flying = q.counts[_IN_FLIGHT]
    moment = q.due[0] if flying > 0 else np.inf
    waiting = (flying == 0 and q.counts[_BUFFERED] == 0) if q.waves else flying < q.concurrency
    if waiting and q.begin.size > 0:
        moment = min(moment, _opening(q, q.counts[_OPENED]))
    return moment


def _start(q: _State, place: int) -> None:
    """Starts a client drawn uniformly among those ready; what will become of it is settled at once."""
    rank = int(_fraction(q.draws[place, 0], q.draws[place, 1]) * q.counts[_READY])
    client = _ready_client(q.status, q.tree, rank)
    due = q.now[0] + q.seconds[client]
    closing = _closing(q, client)
    started = q.counts[_VERSION]
    if closing < due:
        due, started = closing, _LOSES
    elif _fraction(q.draws[place, 2], q.draws[place, 3]) < q.dropout:
        started = _DROPS
    _set_status(q, client, _BUSY, True)
    _push((q.due, q.client, q.started), q.counts[_IN_FLIGHT], due, client, started)
    q.counts[_IN_FLIGHT] += 1
    q.counts[_STARTS] += 1


def _fraction(coarse: float, fine: float) -> float:
    """A number in [0, 1) with 48 random bits, of two with 24: those alone would favour some of a million clients."""
    return np.float64(coarse) + np.float64(fine) * 2.0**-24


def _commit(q: _State) -> None:
    for place in range(q.counts[_BUFFERED]):
        _set_status(q, q.arrived[place], _BUSY, False)
    q.counts[_BUFFERED] = 0
    q.counts[_VERSION] += 1
    if q.waves:
        for place in range(q.counts[_IN_FLIGHT]):
            _set_status(q, q.client[place], _BUSY, False)
        q.counts[_DISCARDED] += q.counts[_IN_FLIGHT]
        q.counts[_IN_FLIGHT] = 0


def _settle(q: _State) -> None:
    """Finds everybody's status at the time that it is, from who is in flight and in the buffer."""
    clients = q.status.size
    q.tree[:] = 0
    q.status[:] = 0
    q.counts[_READY] = 0
    q.counts[_DRAWN] = _NONE
    for place in range(q.counts[_IN_FLIGHT]):
        q.status[q.client[place]] = _BUSY
    for place in range(q.counts[_BUFFERED]):
        q.status[q.arrived[place]] = _BUSY
    if q.begin.size == 0:
        for client in range(clients):
            _set_status(q, client, _OPEN, True)
        return
    # Whatever is open now has opened in this period or the one before; one more for the rounding.
    turn = (int(np.floor(q.now[0] / q.period)) - 2) * clients
    q.counts[_OPENED] = turn
    q.counts[_CLOSED] = turn
    _turn_windows(q)


# ---- who is ready: a count per block of clients, summed in a Fenwick tree -------------------------------------------


def _set_status(q: _State, client: int, bit: int, on: bool) -> None:
    before = q.status[client]
    after = before | bit if on else before & ~bit
    q.status[client] = after
    change = int(after == _OPEN) - int(before == _OPEN)
    if change != 0:
        q.counts[_READY] += change
        _add(q.tree, client // _BLOCK + 1, change)


def _add(tree: NDArray[np.int32], node: int, change: int) -> None:
    while node < tree.size:
        tree[node] += change
        node += node & -node


def _ready_client(status: NDArray[np.int8], tree: NDArray[np.int32], rank: int) -> int:
    """The client with exactly `rank` ready ones of smaller id."""
    step = 1
    while 2 * step < tree.size:
        step *= 2
    block = 0
    while step > 0:
        if block + step < tree.size and tree[block + step] <= rank:
            block += step
            rank -= tree[block]
        step //= 2
    client = block * _BLOCK
    while rank > 0 or status[client] != _OPEN:
        rank -= int(status[client] == _OPEN)
        client += 1
    return client


# ---- windows: opening and closing one after another, in the order of their beginnings -------------------------------


def _opening(q: _State, turn: int) -> float:
    """When window number `turn` opens: the windows of a period are counted on from those of the period before."""
    return q.begin[q.order[turn % q.order.size]] + (turn // q.order.size) * q.period


def _turn_windows(q: _State) -> None:
    """Opens and closes all windows up to now."""
    clients = q.order.size
    while clients > 0:
        opening, closing = _opening(q, q.counts[_OPENED]), _opening(q, q.counts[_CLOSED]) + q.length
        if min(opening, closing) > q.now[0]:
            return
        if closing <= opening:
            _set_status(q, q.order[q.counts[_CLOSED] % clients], _OPEN, False)
            q.counts[_CLOSED] += 1
        else:
            _set_status(q, q.order[q.counts[_OPENED] % clients], _OPEN, True)
            q.counts[_OPENED] += 1


def _closing(q: _State, client: int) -> float:
    """When the window closes that is open now, the same number to the last bit as `_turn_windows` has."""
    if q.begin.size == 0:
        return np.inf
    begin, now = q.begin[client], q.now[0]
    period = np.floor((now - begin) / q.period)
    if begin + (period + 1) * q.period <= now:  # the quotient was rounded
        period += 1
    if begin + period * q.period > now:
        period -= 1
    return begin + period * q.period + q.length


# ---- those in flight: a binary heap by time, then client id ---------------------------------------------------------


def _push(heap: _Heap, size: int, due: float, client: int, started: int) -> None:
    times, clients, versions = heap
    place = size
    while place > 0:
        parent = (place - 1) // 2
        if not _before(due, client, times[parent], clients[parent]):
            break
        times[place], clients[place], versions[place] = times[parent], clients[parent], versions[parent]
        place = parent
    times[place], clients[place], versions[place] = due, client, started


def _pop(heap: _Heap, size: int) -> None:
    """Removes the first: the last one takes its place and sinks."""
    times, clients, versions = heap
    last = size - 1
    due, client, started = times[last], clients[last], versions[last]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= last:
            break
        if child + 1 < last and _before(times[child + 1], clients[child + 1], times[child], clients[child]):
            child += 1
        if not _before(times[child], clients[child], due, client):
            break
        times[place], clients[place], versions[place] = times[child], clients[child], versions[child]
        place = child
    times[place], clients[place], versions[place] = due, client, started


def _before(due: float, client: int, other_due: float, other_client: int) -> bool:
    return due < other_due or (due == other_due and client < other_client)


# ---- compiling ------------------------------------------------------------------------------------------------------

_DOORS: tuple[Callable[..., Any], ...] = (_run, _commit, _settle)
_ROOMS: tuple[Callable[..., Any], ...] = (
    _is_full, _end_first, _fill, _fill_wave, _has_drawn, _next_moment, _start, _fraction, _set_status, _add,
    _ready_client, _opening, _turn_windows, _closing, _push, _pop, _before,
)  # fmt: skip
# Without numba's counting of references: counting those of every array at every call makes the loop three times slower.
# Nothing is allocated in it, and the state outlives it.
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "nogil": True, "_nrt": False}
# Only compiled code calls a room, and from few places: no door for Python to compile, and no copies of the state.
_INSIDE: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "forceinline": True}
_compiling = Lock()
_compiled: dict[str, Any] = {}


def _compile() -> None:
    """Puts compiled functions in place of the plain ones, at the first queue: importing numba takes half a second."""
    with _compiling:
        if _compiled:
            return
        from numba import njit

        rooms = {room.__name__: njit(**_OPTIONS, **_INSIDE)(room) for room in _ROOMS}
        doors = {door.__name__: _kept_on_disk(door) for door in _DOORS}
        globals().update(rooms, **doors)
        _compiled.update(rooms, **doors)


def _kept_on_disk(door: Callable[..., Any]) -> Any:
    """Compiled once for all processes, until this file changes; anew in each where there is nowhere to write."""
    from numba import njit

    try:
        return njit(cache=True, **_OPTIONS)(door)
    except RuntimeError:
        return njit(**_OPTIONS)(door)
