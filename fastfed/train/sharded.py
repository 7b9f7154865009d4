"""An executor over several ranks: each trains some clients of the cohort, and all have the sum, bit for bit as one
process would have it.

Which clients are whose follows the way in which the executor adds deltas up. `native` folds lanes in a tree, `device`
adds eight of them in a row: ranks take neighbouring lanes, every rank folds a slice of all sums, and all gather the
slices. `eager` and `batched` add one client after the other: ranks take runs of clients, and the sum goes from rank to
rank. Nothing here knows what is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from ..program import Unsupported
from ..ranks import Ranks
from . import lane_tree
from .batched import Batched
from .batches import steps_taken
from .device import Device, SeveralDevices
from .device.engine import terms_of
from .device.lanes import MEASURED
from .eager import Eager
from .executors import Executor
from .peers import Alone, Dealt, Reduce, untouched_zeros
from .policy import DeltaSum, Portion, divided, fetch, policy_weights, rest
from .total import Total
from .work import SCALARS, Outcome, RoundWork, empty_scalars

SUM_PRICE = 32  # examples that could be trained while one vector of the model's size is sent and added up
WAITING_BYTES = 1 << 30  # deltas that wait on a rank for the sum of the clients before them
_Result = TypeVar("_Result")


class Sharded:
    """Runs rounds of an executor on all ranks together. Every rank calls `run` with the same round; its work need hold
    the examples and vectors of those clients only that are dealt to it."""

    def __init__(self, inner: Executor, ranks: Ranks) -> None:
        self.inner, self.ranks = inner, ranks
        self.name, self.why = inner.name, f"{inner.why}; every cohort is dealt to {ranks}"
        self.predict, self.predicts_itself, self.examples = inner.predict, inner.predicts_itself, inner.examples
        self._way = _way_of(inner, ranks)

    def settle(self) -> None:
        """What each rank has found on its own machine, and all deal by, becomes the same. All ranks ask, once they know
        that their executors are the same."""
        if isinstance(self.inner, Batched):
            found = self.ranks.told((self.inner.memory, self.inner.streamed_bytes))
            self.inner.memory = min(memory for memory, _ in found)
            self.inner.streamed_bytes = max(streamed for _, streamed in found)

    def deal(self, work: RoundWork) -> Dealt:
        """Who trains whom in a round: the same on all ranks. Examples are not looked at, nor what vectors hold."""
        return self._way.deal(work)

    def run(self, work: RoundWork) -> Outcome:
        """The round's weighted sum of deltas and its scalars, on all ranks; deltas that are kept are of those clients
        that were trained here."""
        dealt = self.deal(work) if work.dealt is None else work.dealt
        return self._way.run(work, dealt, Among(self.ranks, dealt))


class Among(Alone):
    """The ranks of a round, for whoever needs what others have trained. All of them ask, in one order."""

    def __init__(self, ranks: Ranks, dealt: Dealt) -> None:
        self.ranks = ranks
        self._places = [dealt.to(rank) for rank in range(ranks.count)]

    def here(self, clients: int) -> Tensor:
        return self._places[self.ranks.rank]

    def reduced(self, rows: Tensor, counts: Tensor, reduce: Reduce, *, by_column: bool = True) -> Tensor:
        places = [some[counts[some]] for some in self._places]
        order, numbers = torch.cat(places).argsort(), [len(some) for some in places]
        if by_column:
            return self.ranks.summed_in_slices(rows, numbers, lambda every: reduce(every[order]))
        return reduce(torch.cat(self.ranks.gathered(rows, numbers))[order])

    def whole(self, rows: Tensor) -> Tensor:
        every = self.ranks.gathered(rows, [len(some) for some in self._places])
        return torch.cat(every)[torch.cat(self._places).argsort()]

    def merged(
        self, scalars: dict[str, Tensor], refused: Tensor, failure: Exception | None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """The scalars of all clients, from those (n,) of each rank's own; an error of one is an error of all."""
        here = self._places[self.ranks.rank]
        own = torch.stack([*(scalars[name] for name in SCALARS), refused.double()], 1)
        first = own.new_zeros(1, own.shape[1])
        first[0, :2] = torch.tensor([failure is not None, self.ranks.is_asked_to_stop]).double()
        told = torch.cat([first, own[here]])
        every = self.ranks.gathered(told, [len(some) + 1 for some in self._places])
        self.ranks.raise_if([bool(one[0, 0]) for one in every], failure)
        self.ranks.interrupted |= any(bool(one[0, 1]) for one in every)
        own[torch.cat(self._places)] = torch.cat([one[1:] for one in every])
        return dict(zip(SCALARS, own.T.contiguous(), strict=False)), own[:, -1] > 0


def _tried(
    function: Callable[[], _Result], otherwise: Callable[[], _Result], failure: Exception | None = None
) -> tuple[_Result, Exception | None]:
    """What a function gives, or the error that it meets, which the other ranks must hear of before it is raised; after
    an earlier `failure` it is not called."""
    if failure is not None:
        return otherwise(), failure
    try:
        return function(), None
    except Exception as error:
        return otherwise(), error


# ---- ways of adding up ----------------------------------------------------------------------------------------------


class Way(Protocol):
    """How an executor's clients are dealt, and its sum is put together."""

    def deal(self, work: RoundWork) -> Dealt: ...

    def run(self, work: RoundWork, dealt: Dealt, among: Among) -> Outcome: ...


def _way_of(inner: Executor, ranks: Ranks) -> Way:
    if isinstance(inner, Eager | Batched):
        return InTurn(inner, ranks)
    if isinstance(inner, Device):
        return InLanes(inner, ranks)
    if isinstance(inner, SeveralDevices):
        raise Unsupported("device: with several ranks each takes one device; start a rank for every card")
    if inner.name == "native":
        return InTree(inner, ranks)
    raise Unsupported(f"executor: {inner.name!r} does not say how its clients could be dealt to ranks")


def _outcome(
    work: RoundWork, among: Among, own: Outcome, total: Tensor, found: tuple[dict[str, Tensor], Tensor]
) -> Outcome:
    """The outcome of all ranks; what is kept per client is cut down to those that were trained here."""
    (scalars, refused), here = found, among.here(len(work))

    def of_here(rows: Tensor | None) -> Tensor | None:
        return None if rows is None else rows[here.to(rows.device)]

    by = rest(work, policy_weights(work, steps_taken(work)), refused)
    kept: dict[str, Any] = {name: of_here(getattr(own, name)) for name in ("deltas", "statistics", "own")}
    if own.besides is not None:
        kept["besides"] = {name: of_here(rows) for name, rows in own.besides.items()}
    return Outcome(Total(divided(total, by)), scalars, refused, **kept, peers=among)


def _nothing(work: RoundWork, vectors: int) -> Outcome:
    """Of a rank that trains nobody, or has failed: so many sums, all of nothing."""
    n, d = len(work), work.start.shape[-1]
    deltas = untouched_zeros(work.start, n, d) if work.keep_deltas else None
    statistics = None if work.statistics is None else untouched_zeros(work.start, n, work.statistics.shape[-1])
    own = None if work.own is None else untouched_zeros(work.start, n, len(work.own))
    total = Total(untouched_zeros(work.start, vectors, d))
    return Outcome(total, empty_scalars(n), torch.zeros(n, dtype=torch.bool), deltas, statistics, own)


class InTree:
    """Of `native`: neighbouring lanes for each rank, which folds what it can of their tree."""

    def __init__(self, native: Any, ranks: Ranks) -> None:
        self.native, self.ranks = native, ranks

    def deal(self, work: RoundWork) -> Dealt:
        lanes, order = self.native.deal(work)
        lane_of = torch.empty_like(order)
        lane_of[order] = torch.arange(len(order)) % lanes
        costs = torch.zeros(lanes, dtype=torch.int64).index_add_(0, lane_of, _examples_trained(work))
        parts = lane_tree.even_cuts(costs.tolist(), self.ranks.count, SUM_PRICE)
        rank_of_lane = torch.empty(lanes, dtype=torch.int64)
        for rank, some in enumerate(parts):
            rank_of_lane[some.start : some.stop] = rank
        return Dealt(rank_of_lane[lane_of], (lanes, parts))

    def run(self, work: RoundWork, dealt: Dealt, among: Among) -> Outcome:
        lanes, parts = dealt.parts
        nodes = [lane_tree.roots(lanes, some) for some in parts]
        here, mine = parts[self.ranks.rank], nodes[self.ranks.rank]

        def nothing() -> Outcome:
            return _nothing(work, len(mine))

        def trained() -> Outcome:
            return self.native.run_lanes(work, here, len(mine)) if mine else nothing()

        own, failure = _tried(trained, nothing, dealt.failure)
        found = among.merged(own.scalars, own.refused, failure)
        every = [node for some in nodes for node in some]
        total = self.ranks.summed_in_slices(
            own.delta.view(len(mine), work.start.shape[-1]),
            [len(some) for some in nodes],
            lambda rows: lane_tree.folded(lanes, dict(zip(every, rows, strict=True))),
        )
        return _outcome(work, among, own, total.add_(0.0), found)  # -0 is where a rank had nothing


class InLanes:
    """Of `device`: neighbouring lanes for each rank; lanes are added one after another."""

    def __init__(self, engine: Device, ranks: Ranks) -> None:
        self.engine, self.ranks = engine, ranks

    def deal(self, work: RoundWork) -> Dealt:
        terms = terms_of(work)
        parts = terms.lanes.dealt(terms.steps[terms.order], self.ranks.count)
        rank_of = torch.zeros(len(work), dtype=torch.int64)
        for rank, lanes in enumerate(parts):
            places = terms.lanes.places(lanes)
            rank_of[terms.order[places.start : places.stop]] = rank
        return Dealt(rank_of, parts)

    def run(self, work: RoundWork, dealt: Dealt, among: Among) -> Outcome:
        parts: list[range] = dealt.parts
        lanes = parts[self.ranks.rank]

        def nothing(vectors: int) -> Outcome:
            return _nothing(replace(work, start=work.start.to(self.engine.device)), vectors)

        own, failure = _tried(lambda: self._train(work, lanes, nothing(0)), lambda: nothing(len(lanes)), dealt.failure)
        found = among.merged(own.scalars, own.refused, failure)
        total = self.ranks.summed_in_slices(own.delta, [len(some) for some in parts], _in_a_row)
        return _outcome(work, among, own, self.engine.layout.packed(total), found)

    def _train(self, work: RoundWork, lanes: range, nobody: Outcome) -> Outcome:
        self.engine.check(work)
        terms = terms_of(work)
        part = self.engine.lane_sum(terms, lanes, home=False)
        self.engine.train(part)
        scalars = empty_scalars(len(work))
        scalars |= {"examples": work.counts.double(), "steps": terms.steps.double()}
        scalars["delta_norm"].zero_()
        for name, values in zip(MEASURED, fetch(part.measured), strict=True):
            scalars[name][part.order] = values
        if nobody.deltas is not None and part.deltas is not None:
            nobody.deltas[part.order.to(nobody.deltas.device)] = part.deltas
        return replace(nobody, total=Total(part.sums), scalars=scalars, refused=~torch.isfinite(scalars["delta_norm"]))


def _in_a_row(rows: Tensor) -> Tensor:
    """The sum of rows (k, n), one after another."""
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total


class InTurn:
    """Of `eager` and `batched`: runs of clients for each rank; the sum goes from rank to rank, and the last tells all.

    What a rank has trained waits for the sum of the clients before. Where that would be too much to keep, the sum goes
    round several times, each rank with a shorter run in every lap.
    """

    def __init__(self, inner: Eager | Batched, ranks: Ranks) -> None:
        self.inner, self.ranks, self.waiting_bytes = inner, ranks, WAITING_BYTES

    def deal(self, work: RoundWork) -> Dealt:
        units, count = self.inner.units(work), self.ranks.count
        waiting = sum(map(len, units)) * work.start.shape[-1] * work.start.element_size()
        runs = _even_runs(units, self._costs(work, units), count * max(1, -(-waiting // (count * self.waiting_bytes))))
        rank_of = torch.zeros(len(work), dtype=torch.int64)
        for number, run in enumerate(runs):
            for unit in run:
                rank_of[unit] = number % count
        return Dealt(rank_of, runs)

    @staticmethod
    def _costs(work: RoundWork, units: Sequence[Tensor]) -> list[int]:
        examples = _examples_trained(work)
        return [int(examples[unit].sum()) for unit in units]

    def run(self, work: RoundWork, dealt: Dealt, among: Among) -> Outcome:
        runs: list[list[Tensor]] = dealt.parts
        device, rank, last = self.inner.device, self.ranks.rank, len(runs) - 1
        total = DeltaSum(work, steps_taken(work), device)
        scalars = {name: values.to(device) for name, values in empty_scalars(len(work)).items()}
        failure = dealt.failure
        for number in range(rank, len(runs), self.ranks.count):
            waiting: list[Portion]
            waiting, failure = _tried(
                lambda: list(self.inner.portions(work, runs[number])),  # noqa: B023
                list,
                failure,
            )
            if number > 0:
                self.ranks.received(total.sum, (number - 1) % self.ranks.count)
            for portion in waiting:
                portion.enter(total, scalars)
            if number < last:
                self.ranks.passed_on(total.sum, (number + 1) % self.ranks.count)
        self.ranks.spread(total.sum, last % self.ranks.count)
        own = total.outcome(scalars)
        told = {name: values.cpu() for name, values in {**empty_scalars(len(work)), **own.scalars}.items()}
        return _outcome(work, among, own, total.sum, among.merged(told, own.refused, failure))


def _examples_trained(work: RoundWork) -> Tensor:
    """How many examples each client goes through, about: (n,) int64."""
    return steps_taken(work) * work.counts.clamp(max=work.batch_size)


def _even_runs(units: Sequence[Tensor], costs: Sequence[int], runs: int) -> list[list[Tensor]]:
    """Units cut into so many runs of neighbours, about as costly as each other."""
    dealt: list[list[Tensor]] = [[] for _ in range(runs)]
    whole, before = sum(costs), 0
    for unit, cost in zip(units, costs, strict=True):
        dealt[min(runs - 1, runs * (2 * before + cost) // (2 * whole))].append(unit)
        before += cost
    return dealt
