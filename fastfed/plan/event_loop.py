"""The loop of the event clock where the compiled extension is missing: plain functions over arrays, compiled by numba
at their first call, which takes half a minute. csrc/engine/events.cpp is its twin.

`events.py` has the rules in words, and everything that a caller sees; it imports this at the first queue, as importing
numba takes half a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ..extras import needed
from .event_state import (
    BUFFERED,
    CLOSED,
    CUT,
    DISCARDED,
    DRAWN,
    DROPPED,
    EVENTS,
    FULL,
    GROUP,
    IN_FLIGHT,
    LOST,
    OPENED,
    READY,
    STALE,
    STARTS,
    UNDRAWN,
    UNFINISHED,
    VERSION,
    WANTED,
    WAVES,
    Floats,
    Ints,
    State,
)

njit = needed("numba", extra="numba", by="the event clock, without the compiled extension,").njit
_Function = TypeVar("_Function", bound=Callable[..., Any])

_BUSY, _OPEN = 1, 2  # bits of a client's status: in flight or in the buffer; available. Ready to start: _OPEN alone
_DROPS, _LOSES = -1, -2  # in place of the version of a client that will not report, or whose window will close first

_NONE = -1

_Heap = tuple[Floats, Ints, Ints]  # when, who, from which version: (concurrency,) each

# Without numba's counting of references: counting those of every array at every call makes the loop three times slower.
# Nothing is allocated in it, and the state outlives it.
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "nogil": True, "_nrt": False}
# Only compiled code calls such a function, and from few places: nothing for Python to call, and no copies of the state.
_INSIDE: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "forceinline": True}


def _inside(function: _Function) -> _Function:
    """Compiled as a part of those that call it."""
    return cast(_Function, njit(**_OPTIONS, **_INSIDE)(function))


def _called(function: _Function) -> _Function:
    """Compiled for Python to call, once for all processes, until this file changes; anew in each where there is nowhere
    to write."""
    try:
        return cast(_Function, njit(cache=True, **_OPTIONS)(function))
    except RuntimeError:
        return cast(_Function, njit(**_OPTIONS)(function))


# ---- events ----------------------------------------------------------------------------------------------------------


@_called
def run(q: State, until: float, budget: int) -> int:
    """Events until the buffer is full, the next would be later than `until`, or the budget of turns is spent."""
    for _ in range(budget):
        if _is_full(q):
            return FULL
        if q.now[0] > until:
            return CUT
        if q.counts[IN_FLIGHT] > 0 and q.due[0] <= q.now[0]:
            _end_first(q)
            continue
        if not _fill(q):
            return UNDRAWN
        moment = _next_moment(q)
        if moment > until:
            return CUT
        q.now[0] = moment
        _turn_windows(q)
    return UNFINISHED


@_inside
def _is_full(q: State) -> bool:
    buffered = q.counts[BUFFERED]
    return buffered >= q.buffer or (q.waves and buffered > 0 and q.counts[IN_FLIGHT] == 0)


@_inside
def _end_first(q: State) -> None:
    """The first client of the heap ends: its update goes to the buffer, or nowhere."""
    client, started = q.client[0], q.started[0]
    _pop((q.due, q.client, q.started), q.counts[IN_FLIGHT])
    q.counts[IN_FLIGHT] -= 1
    q.counts[EVENTS] += 1
    if started == _DROPS:
        q.counts[DROPPED] += 1
    elif started == _LOSES:
        q.counts[LOST] += 1
    elif q.max_age >= 0 and q.counts[VERSION] - started > q.max_age:
        q.counts[STALE] += 1
    else:
        place = q.counts[BUFFERED]
        q.arrived[place] = client
        q.arrived_version[place] = started
        q.counts[BUFFERED] = place + 1
        return  # it stays busy
    _set_status(q, client, _BUSY, False)


@_inside
def _fill(q: State) -> bool:
    """Starts clients in all free slots while somebody is ready; False where random numbers must be drawn first."""
    if q.waves:
        return _fill_wave(q)
    while q.counts[IN_FLIGHT] < q.concurrency and q.counts[READY] > 0:
        number = q.counts[STARTS]
        if not _has_drawn(q, number // q.draws.shape[0]):
            return False
        _start(q, number % q.draws.shape[0])
    return True


@_inside
def _fill_wave(q: State) -> bool:
    if q.counts[IN_FLIGHT] > 0 or q.counts[BUFFERED] > 0 or q.counts[READY] == 0:
        return True
    if not _has_drawn(q, q.counts[WAVES]):
        return False
    for place in range(min(q.concurrency, q.counts[READY])):
        _start(q, place)
    q.counts[WAVES] += 1
    return True


@_inside
def _has_drawn(q: State, portion: int) -> bool:
    """Whether the random numbers of this portion of starts are there; they are wanted."""
    q.counts[WANTED] = portion
    return q.counts[DRAWN] == portion


@_inside
def _next_moment(q: State) -> float:
    """When the next client ends, or a window opens that a free slot waits for."""
    flying = q.counts[IN_FLIGHT]
    moment = q.due[0] if flying > 0 else np.inf
    waiting = (flying == 0 and q.counts[BUFFERED] == 0) if q.waves else flying < q.concurrency
    if waiting and q.begin.size > 0:
        moment = min(moment, _opening(q, q.counts[OPENED]))
    return moment


@_inside
def _start(q: State, place: int) -> None:
    """Starts a client drawn uniformly among those ready; what will become of it is settled at once."""
    rank = int(_fraction(q.draws[place, 0], q.draws[place, 1]) * q.counts[READY])
    client = _ready_client(q.status, q.tree, rank)
    due = q.now[0] + q.seconds[client]
    if q.further.size > 0:
        more = int(np.float64(q.epoch_draws[place]) * q.most_epochs)
        q.epochs[client] = 1 + more
        due += more * q.further[client]
    closing = _closing(q, client)
    started = q.counts[VERSION]
    if closing < due:
        due, started = closing, _LOSES
    elif _fraction(q.draws[place, 2], q.draws[place, 3]) < q.dropout:
        started = _DROPS
    _set_status(q, client, _BUSY, True)
    _push((q.due, q.client, q.started), q.counts[IN_FLIGHT], due, client, started)
    q.counts[IN_FLIGHT] += 1
    q.counts[STARTS] += 1


@_inside
def _fraction(coarse: float, fine: float) -> float:
    """A number in [0, 1) with 48 random bits, of two with 24: those alone would favour some of a million clients."""
    return np.float64(coarse) + np.float64(fine) * 2.0**-24


@_called
def commit(q: State) -> None:
    for place in range(q.counts[BUFFERED]):
        _set_status(q, q.arrived[place], _BUSY, False)
    q.counts[BUFFERED] = 0
    q.counts[VERSION] += 1
    if q.waves:
        for place in range(q.counts[IN_FLIGHT]):
            _set_status(q, q.client[place], _BUSY, False)
        q.counts[DISCARDED] += q.counts[IN_FLIGHT]
        q.counts[IN_FLIGHT] = 0


@_called
def settle(q: State) -> None:
    """Finds everybody's status at the time that it is, from who is in flight and in the buffer."""
    clients = q.status.size
    q.tree[:] = 0
    q.status[:] = 0
    q.counts[READY] = 0
    q.counts[DRAWN] = _NONE
    for place in range(q.counts[IN_FLIGHT]):
        q.status[q.client[place]] = _BUSY
    for place in range(q.counts[BUFFERED]):
        q.status[q.arrived[place]] = _BUSY
    if q.begin.size == 0:
        for client in range(clients):
            _set_status(q, client, _OPEN, True)
        return
    # Whatever is open now has opened in this period or the one before; one more for the rounding.
    turn = (int(np.floor(q.now[0] / q.period)) - 2) * clients
    q.counts[OPENED] = turn
    q.counts[CLOSED] = turn
    _turn_windows(q)


# ---- who is ready: a count per group of clients, summed in a Fenwick tree -------------------------------------------


@_inside
def _set_status(q: State, client: int, bit: int, on: bool) -> None:
    before = q.status[client]
    after = before | bit if on else before & ((_BUSY | _OPEN) ^ bit)
    q.status[client] = after
    change = int(after == _OPEN) - int(before == _OPEN)
    if change != 0:
        q.counts[READY] += change
        _add(q.tree, client // GROUP + 1, change)


@_inside
def _add(tree: NDArray[np.int32], node: int, change: int) -> None:
    while node < tree.size:
        tree[node] += change
        node += node & -node


@_inside
def _ready_client(status: NDArray[np.uint8], tree: NDArray[np.int32], rank: int) -> int:
    """The client with exactly `rank` ready ones of smaller id."""
    step = 1
    while 2 * step < tree.size:
        step *= 2
    group = 0
    while step > 0:
        if group + step < tree.size and tree[group + step] <= rank:
            group += step
            rank -= tree[group]
        step //= 2
    client = group * GROUP
    while rank > 0 or status[client] != _OPEN:
        rank -= int(status[client] == _OPEN)
        client += 1
    return client


# ---- windows: opening and closing one after another, in the order of their beginnings -------------------------------


@_inside
def _opening(q: State, turn: int) -> float:
    """When window number `turn` opens: the windows of a period are counted on from those of the period before."""
    return q.begin[q.order[turn % q.order.size]] + (turn // q.order.size) * q.period


@_inside
def _turn_windows(q: State) -> None:
    """Opens and closes all windows up to now."""
    clients = q.order.size
    while clients > 0:
        opening, closing = _opening(q, q.counts[OPENED]), _opening(q, q.counts[CLOSED]) + q.length
        if min(opening, closing) > q.now[0]:
            return
        if closing <= opening:
            _set_status(q, q.order[q.counts[CLOSED] % clients], _OPEN, False)
            q.counts[CLOSED] += 1
        else:
            _set_status(q, q.order[q.counts[OPENED] % clients], _OPEN, True)
            q.counts[OPENED] += 1


@_inside
def _closing(q: State, client: int) -> float:
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


@_inside
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


@_inside
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


@_inside
def _before(due: float, client: int, other_due: float, other_client: int) -> bool:
    return due < other_due or (due == other_due and client < other_client)
