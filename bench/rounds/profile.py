"""`fastfed bench rounds --profile`: where the seconds of a workload's round go, layer by layer and room by room."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ...app.doctor import machine
from ...program import Program, trace
from ...train.native import Native
from ...train.profile import Profile
from .. import rooms
from ..common.choosing import choose
from ..common.neighbours import busy
from ..common.timing import take_turns
from . import flops
from .bounds import Bound, Peaks, bound_of, bytes_of_client, cache_size, peak_calls, peaks_of
from .prepared import SLICE, Prepared
from .workloads import PEERED, WORKLOADS, Workload

KNOWN = {**WORKLOADS, **PEERED}
TESTED = 6  # of so many examples of the cohort one is tested besides, as of MNIST's


@dataclass(frozen=True)
class LayerRow:
    """A layer's share of a round: seconds of threads forward and backward (with plain SGD's update), and how much of
    what its products take at the threads' share of the peak that is; None where it has none."""

    name: str
    op: str
    shapes: str
    forward: float
    backward: float
    of_bound: float | None

    @property
    def seconds(self) -> float:
        return self.forward + self.backward


@dataclass(frozen=True)
class ProfileRow:
    """A round of all clients: `seconds` with the server's step, and `asked` while the engine tells where they go, both
    medians over turns. `layers` and `duties` are seconds of threads, of a round; `around` those outside the engine.
    `rooms` are seconds of a whole simulation's round. `bound` is what the machine's peaks allow."""

    workload: str
    words: str
    clients: int
    parameters: int
    seconds: float
    asked: float
    bound: Bound
    layers: list[LayerRow]
    duties: dict[str, float]
    reading: float
    around: float
    rooms: rooms.RoomsRow
    peaks: Peaks
    threads: int
    busy: float | None
    machine: str

    @property
    def of_bound(self) -> float:
        """How much of the round the bound is."""
        return self.bound.seconds / self.seconds

    @property
    def of_threads(self) -> float:
        """The seconds of all threads."""
        return sum(one.seconds for one in self.layers) + sum(self.duties.values()) + self.around

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "peaks": self.peaks._asdict(), "of_bound": self.of_bound}


def choose_workloads(patterns: Sequence[str]) -> tuple[str, ...]:
    """Of `bench rounds` and of `bench peers`, those that match any of the patterns."""
    return choose(patterns, KNOWN)


def run(
    workloads: Sequence[str], scale: float, rounds: int, threads: int, tell: Callable[[str], None] = lambda line: None
) -> list[ProfileRow]:
    """A profile of each; `tell` hears of every one before it starts."""
    torch.set_num_threads(threads)
    found = []
    for name in workloads:
        tell(f"{name}: {KNOWN[name].words}")
        found.append(measure(KNOWN[name], KNOWN[name].scaled(scale), rounds, threads))
    return found


def measure(workload: Workload, clients: int, rounds: int, threads: int) -> ProfileRow:
    """The profile of one workload: rounds that are asked where their seconds go take turns with others."""
    prepared, before = Prepared.of(workload, clients, threads, "native"), busy()
    engine = prepared.executor
    assert isinstance(engine, Native)
    profile, ours = Profile(engine.program), prepared.our_round(clients)

    walls: list[float] = []  # of all rounds that were asked, as the engine has it

    def asked() -> None:
        engine.profile = profile
        began = time.perf_counter()
        ours()
        walls.append(time.perf_counter() - began)
        engine.profile = None

    timings = take_turns({"ours": ours, "asked": asked, **peak_calls()}, rounds, slice_seconds=SLICE)
    peaks, products = peaks_of(timings), _products(prepared, clients)
    data = bytes_of_client(workload, prepared.examples, 0, threads, cache_size())
    moved = bytes_of_client(workload, prepared.examples, _moved_whole(engine.program), threads, cache_size())
    layers = [
        LayerRow(
            one.name,
            one.op,
            one.shapes,
            one.forward / profile.rounds,
            one.backward / profile.rounds,
            _share(operations * threads / peaks.flops, one.seconds / profile.rounds),
        )
        for one, operations in zip(profile.layers, products, strict=True)
    ]
    tested = max(1, clients * workload.examples // TESTED)
    others = max((share for share in (before, busy()) if share is not None), default=None)
    return ProfileRow(
        workload=workload.name,
        words=workload.words,
        clients=clients,
        parameters=prepared.packing.parameters,
        seconds=timings["ours"].median,
        asked=timings["asked"].median,
        bound=bound_of(sum(products), clients * moved, peaks),
        layers=layers,
        duties={name: seconds / profile.rounds for name, seconds in profile.duties.items()},
        reading=clients * data * threads / peaks.bytes,
        around=threads * (sum(walls) - profile.wall) / profile.rounds,
        rooms=rooms.measure(workload, clients, tested, 1, threads),
        peaks=peaks,
        threads=threads,
        busy=others,
        machine=machine().words,
    )


def _products(prepared: Prepared, clients: int) -> list[float]:
    """Operations of a round, by layer."""
    workload, inputs = prepared.workload, prepared.examples.inputs
    program = trace(workload.make_module(), inputs, workload.loss)
    seen = clients * workload.epochs * workload.examples
    return [seen * each for each in flops.by_layer(program, inputs)]


def _moved_whole(program: Program) -> int:
    """The parameters that every step goes through; of a sparse layer's weights it sees few rows."""
    tables = [step for step in program.instructions if step.op == "sparse_linear"]
    sizes = [math.prod(program.values[step.inputs[0]].shape + program.values[step.output].shape) for step in tables]
    return program.packing.parameters - sum(sizes)


def _share(least: float, seconds: float) -> float | None:
    return None if least == 0 or seconds == 0 else least / seconds


def save(rows: Sequence[ProfileRow], path: Path) -> None:
    """Writes all of it as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([row.as_dict() for row in rows], indent=1) + "\n")
