"""Several processes, on one machine or on many, as one run: the ranks of ``torch.distributed``.

Started by torchrun, `join` makes the processes know each other; simulations that are made then deal every cohort to all
of them. Each rank plans, steps and tunes the same round to the same bits, and trains its own clients; the first one
alone writes. ``fastfed run`` joins by itself.

    torchrun --nproc-per-node 4 -m fastfed run digits.toml
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ._version import __version__
from .board import Board
from .torchrun import are_asked_for

__all__ = ["RankFailed", "RankLost", "Ranks", "are_asked_for", "current", "join"]

_Result = TypeVar("_Result")

TIMEOUT = 1800.0  # seconds that a rank waits for another, which may have much longer clients
_GRACE = 1.0  # seconds in which ranks that are alive say so


class RankLost(RuntimeError):
    """Another process of the run is gone: the message says which."""


class RankFailed(RuntimeError):
    """Another process of the run met an error: the message is that error's."""


_SHARED = "_fastfed_shared"  # the mark of an error that every rank has raised, its own or as RankFailed
_Error = TypeVar("_Error", bound=BaseException)


def shared(error: _Error) -> _Error:
    """The error, marked as one that all ranks raise at the same place."""
    setattr(error, _SHARED, True)
    return error


def is_shared(error: BaseException | None) -> bool:
    """Whether all ranks have raised this error, or what it was made of."""
    while error is not None and not getattr(error, _SHARED, False):
        error = error.__cause__
    return error is not None


_current: Ranks | None = None


def current() -> Ranks | None:
    """The ranks that this process has joined; None if it is alone, or the only one."""
    return _current


@contextmanager
def join(*, timeout: float = TIMEOUT) -> Iterator[Ranks | None]:
    """Makes this process, which torchrun started, one of the ranks of a run, until the end of the block.

    Simulations that are made or resumed in the block belong to all ranks together: every rank makes the same ones, in
    the same order. With one process, or without torchrun, they are what they always are, and the block is given None.

    Vectors on the CPU go by gloo. Where there are cards, those on a card go by NCCL, and "cuda" is for each process the
    card of its local rank. `timeout`: seconds that a rank waits for another before it gives up.
    """
    global _current
    if _current is not None:
        raise RuntimeError("join: this process is a rank already")
    if not 0 < timeout < float("inf"):
        raise ValueError(f"timeout: must be a number of seconds > 0, got {timeout!r}")
    if not are_asked_for():
        yield None
        return
    if dist.is_initialized():
        raise RuntimeError("join: this process has a process group of torch.distributed already; join before it begins")
    ranks = _begin(timeout)
    _current = ranks
    try:
        yield ranks
    finally:
        _current = None
        with suppress(Exception):  # of a group that has lost a rank nothing is left to be put in order
            dist.destroy_process_group()


def _begin(timeout: float) -> Ranks:
    # Its functions have the group that is there when they are imported among their defaults, and would keep it and its
    # threads beyond the end of the block: one that lets go of a tensor while Python ends takes the process with it.
    import torch.distributed.nn.functional

    cards = torch.cuda.device_count()
    if cards:  # never run: no machine with a card has been there
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % cards)
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if cards else "gloo", timeout=timedelta(seconds=timeout))
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise RankLost(f"the ranks did not find each other at {where}: {_first_line(error)}") from error
    ranks = Ranks(dist.get_rank(), dist.get_world_size())
    ranks.check_same("FastFed", __version__)
    ranks.check_same("torch", torch.__version__)
    ranks.board = Board.among(ranks, timeout)
    return ranks


class Ranks:
    """This process and the others: its number `rank` of `count`, and what they do together.

    Whatever all do together, all must do, in one order. An error of the network becomes `RankLost`.
    """

    def __init__(self, rank: int, count: int) -> None:
        self.rank, self.count = rank, count
        self.board: Board | None = None  # of ranks of one machine
        self.moved = 0  # numbers that this rank has sent to others, for benchmarks and tests
        self.interrupted = False  # whether some rank was asked to stop; all know of it after the same round
        self.speaks = rank == 0  # whether it is this rank that says what went wrong
        self._asked_to_stop = False
        self._each_speaks = False  # whether it is the one that fails, in what all do now

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes."""
        return self.rank == 0

    def __str__(self) -> str:
        return f"{self.count} ranks"

    # ---- small things -----------------------------------------------------------------------------------------------

    def told(self, value: Any) -> list[Any]:
        """What every rank has to say, by rank; anything that pickle takes."""
        found: list[Any] = [None] * self.count
        with self._together():
            dist.all_gather_object(found, value)
        return found

    def on_first(self, function: Callable[[], _Result]) -> _Result:
        """The first rank calls the function, and all have what it gives. Its error is an error of all."""
        self.agree()
        said: list[Any] = [None]
        error: Exception | None = None
        if self.is_first:
            try:
                said = [(True, function())]
            except Exception as met:
                error, said = met, [(False, f"{type(met).__name__}: {met}")]
        with self._together():
            dist.broadcast_object_list(said, src=0)
        done, result = said[0]
        if error is not None:
            raise shared(error)
        if not done:
            raise shared(RankFailed(f"rank 0: {result}"))
        return result

    def check_same(self, what: str, value: str) -> None:
        """Refuses ranks that differ in what must be the same everywhere."""
        self.agree()
        found = self.told(value)
        others = [f"rank {rank} has {one}" for rank, one in enumerate(found) if one != found[0]]
        if others:
            problem = f"must be the same on all ranks, but rank 0 has {found[0]} and {others[0]}"
            raise shared(ValueError(f"{what}: {problem}"))

    # ---- errors -----------------------------------------------------------------------------------------------------

    def heard(self, function: Callable[[], _Result]) -> _Result:
        """Every rank calls the function; an error of one is an error of all. What is done together in it begins with
        `agree`, so that a rank which has failed there is heard by those who went on."""
        error: BaseException | None = None
        try:
            result = function()
        except BaseException as met:  # somebody's sys.exit() would leave the others waiting too
            if isinstance(met, RankLost) or is_shared(met):
                raise
            error = met
        self.agree(error)
        return result

    def each(self, function: Callable[[], _Result]) -> _Result:
        """As `heard`, for what comes before a run, which nobody records: the first that fails says so itself."""
        self._each_speaks = True
        try:
            return self.heard(function)
        finally:
            self._each_speaks = False

    def agree(self, failure: BaseException | None = None) -> None:
        """Whether anybody has failed: then its error is raised there, and `RankFailed` on the others. All ranks ask."""
        flag = torch.tensor([failure is not None], dtype=torch.uint8)
        failed = [bool(one) for one in self._gathered(flag, [1] * self.count)]
        if self._each_speaks and any(failed):
            self.speaks = self.rank == failed.index(True)
        self.raise_if(failed, failure)

    def raise_if(self, failed: Sequence[bool], failure: BaseException | None) -> None:
        """Raises an error of ranks of which all know who has `failed`: their own, if that is this one's `failure`."""
        if not any(failed):
            return
        said = self.told(None if failure is None else f"{type(failure).__name__}: {failure}")
        if failure is not None:
            raise shared(failure)
        rank = list(failed).index(True)
        raise shared(RankFailed(f"rank {rank}: {said[rank]}"))

    # ---- vectors ----------------------------------------------------------------------------------------------------

    def gathered(self, numbers: Tensor, counts: Sequence[int]) -> list[Tensor]:
        """The `numbers` (k, ...) of every rank, of which rank r has counts[r] rows, by rank."""
        most, shape = max(counts, default=0), tuple(numbers.shape[1:])
        self.moved += most * math.prod(shape) * (self.count - 1)
        if not most * math.prod(shape):
            return [numbers.new_zeros(count, *shape) for count in counts]
        return self._gathered(numbers, counts)

    def _gathered(self, numbers: Tensor, counts: Sequence[int]) -> list[Tensor]:
        if self.board is not None and self.board.takes(numbers, sum(counts)):
            with self._together():
                return self.board.gathered(numbers, counts)
        own = numbers.new_zeros(max(counts), *numbers.shape[1:])
        own[: len(numbers)] = numbers
        every = [torch.empty_like(own) for _ in range(self.count)]
        with self._together():
            dist.all_gather(every, own)
        return [one[:count] for one, count in zip(every, counts, strict=True)]

    def dealt(self, rows: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
        """Gives rows[r] (k, m) to every rank r, and has what they give to this one: from rank r, (counts[r], m)."""
        size, like = rows[0].shape[1], rows[0]
        sent = torch.cat([one.reshape(-1) for one in rows])
        came = like.new_empty(sum(counts) * size)
        given = [one.numel() for one in rows]
        with self._together():
            dist.all_to_all_single(came, sent, [count * size for count in counts], given)
        self.moved += sum(given) - given[self.rank]
        return [one.view(-1, size) for one in came.split([count * size for count in counts])]

    def summed_in_slices(self, rows: Tensor, counts: Sequence[int], fold: Callable[[Tensor], Tensor]) -> Tensor:
        """The vector (d,) that `fold` makes of the rows (k, d) of all ranks, of which rank r has counts[r], one rank's
        after the other's. Every rank folds a slice of all rows: `fold` looks at one column at a time. A rank sends its
        rows once, and its slice of the result."""
        k, d = rows.shape
        size = -(-d // self.count)
        self.moved += (self.count - 1) * (k + 1) * size
        if self.board is not None and self.board.takes(rows, sum(counts) + 1):
            with self._together():
                return self.board.summed_in_slices(rows, counts, fold)
        padded = torch.nn.functional.pad(rows, (0, size * self.count - d)) if size * self.count > d else rows
        sent = padded.reshape(k, self.count, size).transpose(0, 1).contiguous()  # of one row, no copy
        every, whole = rows.new_empty(sum(counts), size), rows.new_empty(self.count * size)
        with self._together():
            dist.all_to_all_single(
                every.view(-1), sent.view(-1), [count * size for count in counts], [k * size] * self.count
            )
        mine = fold(every).to(rows.dtype).contiguous()
        with self._together():
            dist.all_gather(list(whole.view(self.count, size).unbind()), mine)
        return whole[:d]

    def passed_on(self, vector: Tensor, to: int) -> None:
        """Sends a vector to a rank that waits for it."""
        with self._together():
            dist.send(vector, to)
        self.moved += vector.numel()

    def received(self, vector: Tensor, source: int) -> None:
        """Waits for the vector that a rank sends, and puts it here."""
        with self._together():
            dist.recv(vector, source)

    def spread(self, vector: Tensor, source: int) -> None:
        """Puts the vector of one rank into everybody's."""
        with self._together():
            dist.broadcast(vector, source)
        self.moved += vector.numel() if self.rank == source else 0

    def spread_tensors(self, tensors: dict[str, Tensor] | None) -> dict[str, Tensor]:
        """What the first rank has of tensors on the CPU, on all."""
        kinds = self.on_first(lambda: {name: (tuple(t.shape), t.dtype) for name, t in (tensors or {}).items()})
        held = tensors or {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in kinds.items()}
        held = {name: tensor.contiguous() for name, tensor in held.items()}
        for tensor in held.values():
            if tensor.numel():
                self.spread(tensor.view(torch.uint8) if tensor.dim() else tensor.view(1).view(torch.uint8), 0)
        return held

    # ---- the end ----------------------------------------------------------------------------------------------------

    @property
    def is_asked_to_stop(self) -> bool:
        """Whether this process got Ctrl-C, or was told to end, since the run began."""
        return self._asked_to_stop

    @contextmanager
    def watched(self) -> Iterator[None]:
        """For the time of a run, Ctrl-C and a launcher's request to end wait for the end of a round, where all ranks
        know of it: one that left alone would take the others' checkpoint with it."""
        self._asked_to_stop = self.interrupted = False
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def note(number: int, frame: Any) -> None:
            self._asked_to_stop = True

        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def _together(self) -> Iterator[None]:
        """What goes wrong while all do something is a rank that does not."""
        if _current not in (None, self) or not dist.is_initialized():
            raise RuntimeError("ranks: the block of `join` has ended; what was made in it is used in it")
        try:
            yield
        except RuntimeError as error:
            raise RankLost(self._who_is_lost(error)) from error

    def _who_is_lost(self, error: Exception) -> str:
        """Those who still say that they are there, in the store that all share, are not."""
        goes_on = "the last checkpoint can be resumed, on any number of ranks"
        try:
            store = dist.distributed_c10d._get_default_store()
            store.set(f"fastfed/alive/{self.rank}", "1")
            time.sleep(_GRACE)
            lost = [rank for rank in range(self.count) if not store.check([f"fastfed/alive/{rank}"])]
        except Exception:  # the store was kept by the one that is gone
            lost = [0]
        if not lost:
            return f"the ranks lost each other ({_first_line(error)}); {goes_on}"
        named = f"rank {lost[0]} of {self.count} was"
        if len(lost) > 1:  # some of them may only be busy: who trains a long client says nothing meanwhile
            named = f"at least one of ranks {', '.join(map(str, lost))} of {self.count} was"
        self.speaks = self.rank == min(set(range(self.count)) - set(lost), default=0)
        return f"{named} lost (a process that ended, or a machine out of reach); {goes_on}"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
