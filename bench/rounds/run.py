"""`fastfed bench rounds`: whole federated rounds beside a plain PyTorch loop and torch.func.vmap, in one run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ...app.doctor import machine, versions
from ..common.choosing import choose
from ..common.neighbours import busy
from ..common.place import HOST, Place
from ..common.timing import Call, Timing, take_turns
from ..peers.rounds import Contender, whole_round
from . import memory
from .agreement import ALL_STEPS, FIRST_STEP, Disagreement, compare
from .memory import Growth
from .prepared import SLICE, Prepared
from .rows import CHUNKED, FASTFED, PLAIN, VMAP, RoundRow, ScalingRow
from .scaling import cohorts, scale
from .workloads import WORKLOADS, Peer, Workload

SGEMM = "sgemm"
SIDE, SIDE_ON_CARD = 1024, 4096  # of the square matrices whose product is the peak

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What to run: names of workloads, the scale of their cohorts, rounds, threads, the executor under test, where."""

    workloads: tuple[str, ...]
    scale: float = 1.0
    rounds: int = 7
    threads: int = 2
    scaling: bool = False
    executor: str = "native"
    place: Place = HOST

    @property
    def bouts(self) -> int:
        """How many lines of progress the run will tell."""
        return len(self.workloads) + self.measures_growth + len(cohorts(self))

    @property
    def measures_growth(self) -> bool:
        """Whether the memory of few and of many clients is compared: at full scale only, and on the host."""
        return self.scale >= 1 and not self.place.on_card and memory.GROWN in self.workloads


@dataclass(frozen=True)
class Results:
    """All that a run measured."""

    rows: list[RoundRow]
    growth: Growth | None = None
    scaling: list[ScalingRow] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {
            "rows": [row.as_dict() for row in self.rows],
            "growth": None if self.growth is None else self.growth.as_dict(),
            "scaling": [row.as_dict() for row in self.scaling],
        }


def choose_workloads(patterns: Sequence[str]) -> tuple[str, ...]:
    """The workloads that match any of the patterns (shell style, "W*"), in the table's order."""
    return choose(patterns, WORKLOADS)


def run(plan: Plan, tell: Tell = lambda line: None) -> Results:
    """Everything that the plan asks for; `tell` hears of every part before it starts."""
    torch.set_num_threads(plan.threads)  # of every contender
    if plan.place.on_card:
        torch.backends.cudnn.allow_tf32 = False  # nor elsewhere: nobody is timed in less than float32's precision
    rows: list[RoundRow] = []
    for name in plan.workloads:
        tell(f"{name}: {WORKLOADS[name].words}")
        rows += _bout(WORKLOADS[name], plan)
    growth = None
    if plan.measures_growth:
        tell(f"{memory.GROWN}: memory of {memory.FEW:,} and {memory.MANY:,} clients")
        growth = memory.grow(plan.threads, plan.executor)
    return Results(rows, growth, list(scale(plan, tell)))


# ---- one workload


def _bout(workload: Workload, plan: Plan) -> Iterator[RoundRow]:
    clients = workload.scaled(plan.scale)
    prepared = Prepared.of(workload, clients, plan.threads, plan.executor, plan.place)
    differences, unfit = _agreements(prepared, _variants(prepared.peers, clients))
    ours = prepared.our_round(clients)
    calls = {str(one): whole_round(one.of(prepared), prepared.start) for one in differences}
    before = busy()
    timings = take_turns(
        {FASTFED: ours, **calls, SGEMM: _sgemm(plan.place)},
        plan.rounds,
        slice_seconds=SLICE,
        synchronise=plan.place.synchronise,
    )
    others = max((share for share in (before, busy()) if share is not None), default=None)
    bout = _Bout(prepared, plan, clients, timings, differences, unfit, _memory(workload, plan, ours), others)
    return bout.rows()


def _memory(workload: Workload, plan: Plan, ours: Call) -> int | None:
    """By how many bytes the process, or what it has of the card, grows in a round."""
    if plan.place.on_card:
        return plan.place.grown_by(ours)
    clients = workload.scaled(plan.scale)
    return memory.measure(workload.name, clients, clients, plan.threads, plan.executor).of_round


class _Variant(NamedTuple):
    """A peer on its first `clients` clients, `chunk` of them at a time."""

    name: str
    clients: int
    chunk: int

    def of(self, prepared: Prepared, steps: int | None = None) -> Contender:
        return prepared.peer(self.name, self.chunk, self.clients, steps)


def _variants(peers: Mapping[str, Peer], cohort: int) -> list[_Variant]:
    """Every peer that runs, once for each chunk that its clients fill; half a cohort is the largest chunk of one."""
    found: list[_Variant] = []
    for name, peer in peers.items():
        clients = min(peer.clients, cohort)
        most = min(clients, max(1, cohort // 2)) if name == CHUNKED else clients
        chunks = () if peer.skipped else dict.fromkeys(min(chunk, most) for chunk in peer.chunks)
        found += [_Variant(name, clients, chunk) for chunk in chunks]
    return found


def _agreements(prepared: Prepared, variants: list[_Variant]) -> tuple[dict[_Variant, float], dict[str, str]]:
    """How far each variant is from FastFed; why others cannot be timed, by the peer's name."""
    found: dict[_Variant, float] = {}
    unfit: dict[str, str] = {}
    for one in variants:
        try:
            found[one] = _agree(prepared, one)
        except torch.OutOfMemoryError:
            unfit[one.name] = f"{one.chunk:,} clients at once do not fit into the card's memory"
    return found, unfit


def _agree(prepared: Prepared, peer: _Variant) -> float:
    """How far the peer's aggregate over its clients is from FastFed's; an error if too far to time either."""
    start = prepared.start
    try:
        for steps, limits in ((1, FIRST_STEP), (None, ALL_STEPS)):
            ours, theirs = prepared.ours(peer.clients, steps), peer.of(prepared, steps)
            apart = compare(prepared.packing, start, ours.aggregate(start), theirs.aggregate(start), limits)
    except Disagreement as error:
        raise RuntimeError(
            f"{prepared.workload.name}: the aggregates of {FASTFED} and {peer.name} after {steps or 'all'} local steps "
            f"{error}: one of them is wrong, so none is timed"
        ) from error
    return apart


def _side(place: Place) -> int:
    return SIDE_ON_CARD if place.on_card else SIDE


def _sgemm(place: Place) -> Call:
    side = _side(place)
    a, b, out = (torch.rand(side, side, device=place.device) for _ in range(3))
    return lambda: torch.mm(a, b, out=out)


def _ratio(speed: float | None, to: float | None) -> float | None:
    return None if speed is None or to is None else speed / to


@dataclass(frozen=True)
class _Bout:
    """What was measured of one workload."""

    prepared: Prepared
    plan: Plan
    clients: int
    timings: Mapping[str, Timing]
    differences: Mapping[_Variant, float]
    unfit: Mapping[str, str]
    grown: int | None
    others: float | None

    def rows(self) -> Iterator[RoundRow]:
        """FastFed, and the fastest variant of every peer; what was skipped too."""
        peers = {name: self._fastest(name) for name in self.prepared.peers}
        speeds = {FASTFED: self.clients / self.timings[FASTFED].median}
        speeds |= {name: self._speed(one) for name, one in peers.items() if one is not None}
        flops = self.prepared.flops()
        yield self._row(FASTFED, _Variant(FASTFED, self.clients, 1), self.timings[FASTFED], speeds, flops)
        for name, one in peers.items():
            yield self._row(name, one, None if one is None else self.timings[str(one)], speeds, flops)

    def _speed(self, one: _Variant) -> float:
        return one.clients / self.timings[str(one)].median

    def _fastest(self, name: str) -> _Variant | None:
        return max((one for one in self.differences if one.name == name), key=self._speed, default=None)

    def _difference(self, name: str, one: _Variant | None) -> float | None:
        if name == FASTFED:
            return max(self.differences.values(), default=None)
        return None if one is None else self.differences[one]

    def _row(
        self, name: str, one: _Variant | None, timing: Timing | None, speeds: Mapping[str, float], flops: float
    ) -> RoundRow:
        workload, speed = self.prepared.workload, speeds.get(name)
        return RoundRow(
            workload=workload.name,
            contender=name,
            clients=self.clients,
            timed=0 if one is None else one.clients,
            chunk=0 if one is None else one.chunk,
            examples=workload.examples,
            batch=workload.batch,
            parameters=self.prepared.packing.parameters,
            flops=flops,
            median=None if timing is None else timing.median,
            p20=None if timing is None else timing.p20,
            p80=None if timing is None else timing.p80,
            rounds=self.plan.rounds,
            loops=0 if timing is None else timing.loops,
            peak=2 * _side(self.plan.place) ** 3 / self.timings[SGEMM].median,
            difference=self._difference(name, one),
            memory=self.grown if name == FASTFED else None,
            to_plain=_ratio(speed, speeds.get(PLAIN)),
            to_vmap=_ratio(speed, speeds.get(VMAP)),
            to_chunked=_ratio(speed, speeds.get(CHUNKED)),
            skipped="" if one is not None else self.prepared.peers[name].skipped or self.unfit[name],
            busy=self.others,
            threads=self.plan.threads,
            machine=machine().words,
            versions=", ".join(f"{name} {version}" for name, version in versions().items()),
            device=self.plan.place.name,
        )


def save(results: Results, path: Path) -> None:
    """Writes all measurements as JSON: lists of flat objects under "rows" and "scaling", and "growth"."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results.as_dict(), indent=1) + "\n")
