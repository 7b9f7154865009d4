"""`fastfed bench peers`: FastFed's whole rounds beside other frameworks', each in its own environment, in turns."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ...app.doctor import machine
from ...packing import Packing
from ..common.choosing import choose
from ..common.neighbours import busy
from ..rounds.agreement import ALL_STEPS, FIRST_STEP, Disagreement, compare
from ..rounds.workloads import PEERED, Workload
from .contender import Contender, ContenderFailed
from .handing import hand_over, read_model
from .line_up import ENTRANTS, OURS, Entrant, Variant, home_of_environments
from .rows import PeerRow, WholeRow, summary
from .tasks import WHOLE_TASKS
from .whole_tasks import run_whole

SLICE = 0.5  # seconds: a turn repeats rounds that are shorter

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What to run: names of workloads (or whole tasks) and of peers, the scale of cohorts, turns, threads.

    `environments` has the folders `.venv-...`, `data` the real files of whole tasks.
    """

    workloads: tuple[str, ...]
    peers: tuple[str, ...]
    scale: float = 1.0
    turns: int = 5
    threads: int = 2
    environments: Path = field(default_factory=home_of_environments)
    data: Path = field(default_factory=lambda: home_of_environments().parent / "shared" / "data")

    @property
    def bouts(self) -> int:
        """How many lines of progress the run will tell."""
        return len(self.workloads)


@dataclass(frozen=True)
class Results:
    """All that a run measured."""

    rows: list[PeerRow] = field(default_factory=list)
    whole: list[WholeRow] = field(default_factory=list)


def choose_workloads(patterns: Sequence[str]) -> tuple[str, ...]:
    """The workloads and whole tasks that match any of the patterns (shell style, "W*"), in the table's order."""
    return choose(patterns, (*PEERED, *WHOLE_TASKS))


def choose_peers(patterns: Sequence[str]) -> tuple[str, ...]:
    """The frameworks that match any of the patterns, in the table's order."""
    return choose(patterns, ENTRANTS)


def run(plan: Plan, tell: Tell = lambda line: None) -> Results:
    """Everything that the plan asks for; `tell` hears of every workload before it starts."""
    found = Results()
    with _on_cores(plan.threads):
        for name in plan.workloads:
            if name in WHOLE_TASKS:
                tell(f"{name}: {WHOLE_TASKS[name].words}")
                found.whole.extend(run_whole(WHOLE_TASKS[name], plan))
                continue
            tell(f"{name}: {PEERED[name].words}")
            with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
                found.rows.extend(_Bout(PEERED[name], plan, Path(folder), running).rows())
    return found


def save(results: Results, path: Path) -> None:
    """Writes all measurements as JSON: lists of flat objects under "rows" and "whole"."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({name: [row.as_dict() for row in rows] for name, rows in vars(results).items()}, indent=1)
    )


@contextmanager
def _on_cores(count: int) -> Iterator[None]:
    """Keeps this process and those that it starts to so many cores, where the system lets us: JAX takes all it sees."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


# ---- one workload


@dataclass
class _Ready:
    """A contender that agrees with FastFed: its first round's seconds, a later one's, and how far its model is."""

    variant: Variant
    contender: Contender
    first: float
    later: float
    difference: float
    seconds: list[float] = field(default_factory=list)  # of a round, turn by turn

    @property
    def loops(self) -> int:
        """How many rounds fill a turn."""
        return max(1, round(SLICE / max(self.later, 1e-9)))


@dataclass(frozen=True)
class _Refused:
    """Why a framework is not timed."""

    reason: str
    disagrees: bool = False


class _Bout:
    """One workload: everybody is made ready and compared with FastFed, then all take turns."""

    def __init__(self, workload: Workload, plan: Plan, folder: Path, running: ExitStack) -> None:
        self.workload, self.plan, self.running = workload, plan, running
        self.clients = workload.scaled(plan.scale)
        self.task, self._model = folder / "task", folder / "model.npz"
        self._moved: dict[int, Sequence[Tensor]] = {}  # by numbers of clients, how FastFed's model moved

    def rows(self) -> Iterator[PeerRow]:
        """FastFed's row first, then everybody's; FastFed's alone, with the reason, if it cannot run this."""
        try:
            self.packing: Packing = hand_over(self.workload, self.clients, self.task)
            self.start = read_model(self.packing, self.task / "start.npz")
            ours = self._ready(OURS, Variant(self.clients, 0))
        except (LookupError, ContenderFailed) as error:
            yield self._row(OURS.name, _Refused(_sentence(error)), None, None)
            return
        found: dict[str, _Ready | _Refused] = {OURS.name: ours}
        found |= {name: self._fastest(ENTRANTS[name]) for name in self.plan.peers}
        others = self._take_turns(found)
        speed = self.clients / statistics.median(ours.seconds)
        for name, one in found.items():
            yield self._row(name, one, speed, others)

    def _take_turns(self, found: dict[str, _Ready | _Refused]) -> float | None:
        """Times everybody who is ready; the share of the machine that others used meanwhile."""
        before = busy()
        for _ in range(self.plan.turns):
            for name, one in found.items():
                if isinstance(one, _Ready):
                    try:
                        one.seconds.append(one.contender.run(one.loops) / one.loops)
                    except ContenderFailed as error:
                        if name == OURS.name:
                            raise
                        found[name] = _Refused(str(error))
        return max((share for share in (before, busy()) if share is not None), default=None)

    def _fastest(self, entrant: Entrant) -> _Ready | _Refused:
        """The quickest of an entrant's variants in one trial each; the others end."""
        missing = entrant.missing(self.plan.environments)
        if missing:
            return _Refused(missing)
        variants = entrant.variants(self.workload, self.clients, self.plan.threads)
        best: _Ready | _Refused = _Refused("nothing of this workload is to be run side by side")
        for variant in variants:
            one = self._tried(entrant, variant)
            if isinstance(one, _Refused) and one.disagrees:
                return one
            if isinstance(one, _Ready) and (not isinstance(best, _Ready) or one.later < best.later):
                if isinstance(best, _Ready):
                    best.contender.end()
                best = one
            elif isinstance(one, _Ready):
                one.contender.end()
            elif isinstance(best, _Refused):
                best = one
        return best

    def _tried(self, entrant: Entrant, variant: Variant) -> _Ready | _Refused:
        try:
            return self._ready(entrant, variant)
        except ContenderFailed as error:
            return _Refused(str(error))
        except Disagreement as error:
            return _Refused(f"its model and FastFed's {error}: not timed", disagrees=True)

    def _ready(self, entrant: Entrant, variant: Variant) -> _Ready:
        """Starts a variant and compares its model with FastFed's after one round: of all steps, and of one."""
        contender = entrant.start(variant, self.task, self.plan.threads, self.plan.environments)
        self.running.callback(contender.end)
        contender.begin(None)
        first = contender.run(1)
        moved = [self._change(contender)]
        contender.begin(1)
        contender.run(1)
        moved.append(self._change(contender))
        contender.begin(None)
        if entrant is OURS:
            self._moved[variant.clients] = moved
        apart = [
            compare(self.packing, self.start, ours, theirs, limits)
            for ours, theirs, limits in zip(self._ours(variant.clients), moved, (ALL_STEPS, FIRST_STEP), strict=True)
        ]
        return _Ready(variant, contender, first, contender.run(1), apart[0])

    def _ours(self, clients: int) -> Sequence[Tensor]:
        """How FastFed's model moves with so many clients: in a round of all steps, and of one."""
        if clients not in self._moved:
            self._ready(OURS, Variant(clients, 0)).contender.end()
        return self._moved[clients]

    def _change(self, contender: Contender) -> Tensor:
        """How far a contender's model is from the start, (d,)."""
        contender.model(self._model)
        try:
            return read_model(self.packing, self._model) - self.start
        except ValueError as error:
            raise ContenderFailed(str(error)) from error

    def _row(self, name: str, one: _Ready | _Refused, speed: float | None, others: float | None) -> PeerRow:
        ready = one if isinstance(one, _Ready) else None
        refused = one if isinstance(one, _Refused) else None
        median, p20, p80 = summary(ready.seconds) if ready else (None, None, None)
        timed = ready.variant.clients if ready else 0
        return PeerRow(
            workload=self.workload.name,
            peer=name,
            clients=self.clients,
            timed=timed,
            side_by_side=ready.variant.words if ready else "",
            examples=self.workload.examples,
            batch=self.workload.batch,
            epochs=self.workload.epochs,
            parameters=self.packing.parameters if hasattr(self, "packing") else 0,
            median=median,
            p20=p20,
            p80=p80,
            turns=self.plan.turns,
            loops=ready.loops if ready else 0,
            first=ready.first if ready else None,
            difference=ready.difference if ready else None,
            ratio=None if median is None or speed is None else speed * median / timed,
            skipped=refused.reason if refused else "",
            disagrees=refused.disagrees if refused else False,
            busy=others,
            threads=self.plan.threads,
            machine=f"{machine().words}, {torch.backends.cpu.get_cpu_capability()}",
            versions=_words(ready.contender.versions) if ready else "",
        )


def _sentence(error: Exception) -> str:
    """What an error says, without the quotes that a KeyError puts around it."""
    return str(error.args[0]) if error.args else type(error).__name__


def _words(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
