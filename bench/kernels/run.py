"""`fastfed bench kernels`: every op beside its peers and this machine's streaming bound, in one run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ...app.doctor import machine, versions
from ...kernels import registry
from ..common.choosing import choose
from ..common.place import CPU, HOST, Place
from ..common.timing import Timing, take_turns
from . import bound
from .cases import CASES, Bout, Case
from .rows import Row

LATENCY_SIZE = 1_000
LATENCY_TURNS = 4  # times as many rounds: those of calls this short are over within one busy moment of a neighbour
BOUND = "streaming bound"


@dataclass(frozen=True)
class Plan:
    """What to run: nominal sizes, names of cases, rounds, threads, a backend, and where."""

    sizes: tuple[int, ...]
    ops: tuple[str, ...]
    rounds: int
    threads: int
    backend: str
    place: Place = HOST

    @property
    def bouts(self) -> list[tuple[Case, int]]:
        """Every (case, size); the size of the latency table is always among them."""
        return [(CASES[op], size) for size in sorted({*self.sizes, LATENCY_SIZE}) for op in self.ops]


def choose_ops(patterns: Sequence[str]) -> tuple[str, ...]:
    """The cases that match any of the patterns (shell style, "server*"), in the table's order."""
    return choose(patterns, CASES)


def choose_backend(name: str | None, device: torch.device = CPU) -> str:
    """The backend asked for, else the one that the device's tensors get; an error if it cannot run, or not on them."""
    return registry.pick(name, torch.empty(0, device=device)).name


def run(plan: Plan, progress: Callable[[str], None] = lambda line: None) -> Iterator[Row]:
    """The rows of the plan, as they are measured; `progress` hears of every bout before it starts."""
    _use_threads(plan.threads)
    probe = None if plan.place.on_card else bound.find_probe()
    if isinstance(probe, str):
        progress(probe)
    here = machine().words
    with_versions = ", ".join(f"{name} {version}" for name, version in versions().items())
    for case, size in plan.bouts:
        progress(f"{case.name}, d = {size:,}")
        bout = case.prepare(size, plan.backend, plan.place.device)
        rounds = plan.rounds * (LATENCY_TURNS if size <= LATENCY_SIZE else 1)
        timings = _time(case, bout, probe, rounds, plan)
        yield from _rows(case, size, bout, timings, plan, here, with_versions)


def _use_threads(threads: int) -> None:
    """Gives every contender the same number of threads; XLA reads NPROC when its first array is made."""
    os.environ["NPROC"] = str(threads)
    torch.set_num_threads(threads)


def _time(case: Case, bout: Bout, probe: bound.Probe | str | None, rounds: int, plan: Plan) -> dict[str, Timing]:
    contenders = {plan.backend: bout.ours, **bout.others}
    if probe is None:
        contenders[BOUND] = bound.on_device(bout.d, case.reads, case.updates, plan.place.device)
    elif not isinstance(probe, str):
        contenders[BOUND] = bound.contender(probe, bout.d, bout.reads or case.reads, case.updates)
    return take_turns(contenders, rounds, synchronise=plan.place.synchronise)


def _rows(
    case: Case, size: int, bout: Bout, timings: dict[str, Timing], plan: Plan, here: str, with_versions: str
) -> Iterator[Row]:
    fastest = timings[BOUND].median if BOUND in timings else None
    best = min(bout.others, key=lambda name: timings[name].median, default=None)
    for name, timing in timings.items():
        kind = "fastfed" if name == plan.backend else "bound" if name == BOUND else "peer"
        yield Row(
            op=case.name,
            kind=kind,
            backend=name,
            size=size,
            d=bout.d,
            median=timing.median,
            p20=timing.p20,
            p80=timing.p80,
            rounds=timing.rounds,
            loops=timing.loops,
            bytes_per_element=bound.bytes_per_element(case.reads, case.updates),
            bound=fastest,
            of_bound=None if fastest is None else fastest / timing.median,
            best=best,
            ratio=None if best is None else timings[best].median / timing.median,
            threads=plan.threads,
            machine=here,
            versions=with_versions,
            device=plan.place.name,
        )


def save(rows: Sequence[Row], path: Path) -> None:
    """Writes the rows as a JSON list of flat objects."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([row.as_dict() for row in rows], indent=1) + "\n")
