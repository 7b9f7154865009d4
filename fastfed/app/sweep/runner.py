"""Carrying a sweep out: what is missing is run, what is there is kept, and all of it is told.

A sweep's directory holds sweep.json (what was asked for), points/NAME/ (a run directory for each point), and when it
ends results.csv, results.json and figures/.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ...files import write_whole
from .. import runs
from ..config import ConfigError
from ..counting import counted
from ..doctor import machine
from . import halving, transfer
from .outcome import DONE, ELSEWHERE, FAILED, INTERRUPTED, WAITING, PointOutcome, better, look
from .points import Plan, Point, shortened
from .pool import LocalPool, Pool, interrupts
from .shard import Shard

SWEEP, POINTS = "sweep.json", "points"


@dataclass(frozen=True)
class Event:
    """Something to tell: data that is being `loading`, a point that has `started` or `finished` (or was `kept` because
    it was there already), a `rung` of halving that has ended. `done` of `total` points have been run."""

    kind: Literal["loading", "started", "kept", "finished", "rung", "stopping"]
    done: int
    total: int
    text: str = ""
    outcome: PointOutcome | None = None
    best: PointOutcome | None = None
    pid: int | None = None


@dataclass(frozen=True)
class SweepOutcome:
    """What a sweep came to: an outcome for every point, in the plan's order. A sweep that is tuned on one task has none
    for the points that it need not run."""

    plan: Plan
    path: Path
    outcomes: list[PointOutcome]
    interrupted: bool = False
    rungs: list[str] = field(default_factory=list)  # what halving dropped when, in words

    @property
    def failed(self) -> list[PointOutcome]:
        """Points that failed. Those that diverged did not: that is a finding."""
        return [one for one in self.outcomes if one.status == FAILED]

    @property
    def elsewhere(self) -> list[PointOutcome]:
        """Points that other processes are at work on, or other shards have before them."""
        return [one for one in self.outcomes if one.status == ELSEWHERE]


Tell = Callable[[Event], None]
WHOLE = Shard()


def carry_out(
    plan: Plan,
    out: str | Path,
    *,
    resume: bool = False,
    jobs: int | None = None,
    threads: int | None = None,
    eta: int | None = None,
    shard: Shard = WHOLE,
    pool: str | None = None,
    tell: Tell = lambda event: None,
) -> SweepOutcome:
    """Runs a plan's points into a directory. With `resume`, those that are finished there are kept.

    `jobs` points run at once (default: as many as there are cores, or points) with `threads` threads each (default:
    the file's run.threads, or the cores that are left for each); neither changes a result. `eta` turns successive
    halving on. A point that fails is told and the others go on; Ctrl-C lets those in flight leave checkpoints, and the
    outcome says so.

    Several may be at work on one directory, of one machine or of several that share a disk: a point that another has
    is passed over ("elsewhere"). `shard` runs only a part of the points, and takes up a directory that holds the same
    sweep. `pool` is the address of a cluster that runs them, "dask://HOST:PORT".
    """
    home = Path(out)
    _check_goes_together(plan, eta, shard, pool, jobs)
    rungs: Sequence[int | None] = [None] if eta is None else halving.rungs(plan, eta)
    transfer.tuned_points(plan)  # refuses what is not there before a directory is made
    at_work = _pool(pool, len(shard.own(plan.points)), jobs, threads or plan.threads)
    resume = _prepare(home, plan, resume, shard)
    sweep = _Sweep(plan, home, tell, resume, eta, rungs, shard)
    with at_work, interrupts(sweep.stopper(at_work)):
        sweep.go(at_work)
    return sweep.outcome()


def _check_goes_together(plan: Plan, eta: int | None, shard: Shard, pool: str | None, jobs: int | None) -> None:
    if eta is not None and plan.spec.tune_on:
        raise ConfigError("--halve: does not go with sweep.tune_on, which runs some points after all others")
    if not shard.is_all and (eta is not None or plan.spec.tune_on):
        option = "sweep.tune_on" if eta is None else "--halve"
        raise ConfigError(f"--shard: does not go with {option}, which chooses among all points while it runs")
    if shard.total > len(plan.points):
        raise ConfigError(
            f"--shard: there are only {counted(len(plan.points), 'point')}, got {shard.number}/{shard.total}"
        )
    if pool is not None and jobs is not None:
        raise ConfigError("--jobs: is for this machine; with --pool as many points run at once as there are workers")


def _pool(address: str | None, points: int, jobs: int | None, threads: int | None) -> Pool:
    if address is None:
        return LocalPool(*shares(points, jobs, threads))
    from .dask_pool import DaskPool

    return DaskPool(address, threads)


def shares(points: int, jobs: int | None, threads: int | None, cores: int | None = None) -> tuple[int, int]:
    """How many points run at once, and the threads of each: together they fill the machine's cores."""
    cores = cores or machine().usable_cores
    if jobs is None:
        jobs = max(1, min(points, cores // (threads or 1)))
    return jobs, threads or max(1, cores // jobs)


class _Sweep:
    """The state of a sweep that is being carried out."""

    def __init__(
        self,
        plan: Plan,
        home: Path,
        tell: Tell,
        resume: bool,
        eta: int | None,
        rungs: Sequence[int | None],
        shard: Shard,
    ) -> None:
        self.plan, self.home, self.eta, self.rungs, self._tell, self._resume = plan, home, eta, rungs, tell, resume
        self._own = {point.name for point in shard.own(plan.points)}
        self.outcomes = {point.name: PointOutcome(point) for point in plan.points}
        self.words: list[str] = []
        self.done, self.total = 0, _expected(plan, eta, rungs)
        self.interrupted = False

    def outcome(self) -> SweepOutcome:
        outcomes = [self.outcomes[point.name] for point in self.plan.points if point.name in self.outcomes]
        return SweepOutcome(self.plan, self.home, outcomes, self.interrupted, self.words)

    def stopper(self, pool: Pool) -> Callable[[], None]:
        def stop() -> None:
            pool.stop()
            self.interrupted = True
            self._say("stopping")

        return stop

    def go(self, pool: Pool) -> None:
        """Rung by rung, of which there is one unless points are halved; then the other tasks, where one is tuned on."""
        alive = transfer.tuned_points(self.plan)
        self._climb(pool, alive)
        if self.plan.spec.tune_on and not self.interrupted:
            self._need_all(alive)
            self._transfer(pool, alive)

    def _transfer(self, pool: Pool, tuned: Sequence[Point]) -> None:
        """Runs the other tasks with what was chosen, and forgets the points that nobody needs then."""
        done = [self.outcomes[point.name] for point in tuned]
        others, untuned = transfer.other_points(self.plan, done), transfer.untuned(self.plan, done)
        needed = {point.name for point in (*tuned, *others, *(one.point for one in untuned))}
        self.outcomes = {name: one for name, one in self.outcomes.items() if name in needed}
        self.total = len(needed)
        self.outcomes |= {one.point.name: one for one in untuned}
        self.done += len(untuned)
        self._batch(pool, others, None, is_last=True)

    def _climb(self, pool: Pool, alive: list[Point]) -> None:
        for rounds in self.rungs:
            is_last = rounds == self.rungs[-1] and not self.plan.spec.tune_on
            self._batch(pool, alive, rounds, is_last)
            if self.interrupted:
                return
            if rounds != self.rungs[-1] and rounds is not None:
                self._need_all(alive)
                alive = self._halve(alive, rounds)

    def _need_all(self, points: Sequence[Point]) -> None:
        """Before something is chosen among points: none may be missing because another process has it."""
        away = [point for point in points if self.outcomes[point.name].status == ELSEWHERE]
        if away:
            has = f"another process is at work on {away[0].label}, seed {away[0].seed}"
            more = f" and {len(away) - 1} more" if len(away) > 1 else ""
            raise runs.RunFailed(f"{self.home}: {has}{more}, among which is to be chosen; --resume when it is done")

    def _batch(self, pool: Pool, points: Sequence[Point], rounds: int | None, is_last: bool) -> None:
        pending = self._missing(points, rounds)
        names = {point.name for point in pending}
        for point in points:
            if point.name not in names:
                self._finished(point, rounds, "kept")
        others = [point for point in pending if point.name not in self._own]
        for point in others:
            self.outcomes[point.name] = PointOutcome(point, ELSEWHERE)
        tasks = [(point, self._home(point)) for point in _by_data(pending) if point.name in self._own]
        for event in pool.run(tasks, rounds, is_last):
            if event["event"] == "loading":
                self._say("loading", text=event["data"])
            elif event["event"] == "started":
                self._say("started", outcome=self.outcomes[event["task"]], pid=event["pid"])
            elif event["event"] == "finished":
                self._finished(self.outcomes[event["task"]].point, rounds, "finished", event)
        for point in points:  # by now others may have run what they had
            if self.outcomes[point.name].status == ELSEWHERE and self._is_there(point, rounds):
                self._finished(point, rounds, "kept")

    def _finished(
        self, point: Point, rounds: int | None, kind: Literal["kept", "finished"], event: dict[str, Any] | None = None
    ) -> None:
        outcome = look(point, self._home(point), self.plan.spec, rounds)
        if event is not None and event["status"] == FAILED:
            outcome = replace(outcome, status=FAILED, error=event["error"])
        if event is not None and event["status"] == ELSEWHERE:
            outcome = PointOutcome(point, ELSEWHERE)  # how far it has come is its own matter
        self.outcomes[point.name] = outcome
        if outcome.status not in (INTERRUPTED, WAITING, ELSEWHERE):
            self.done += 1
        self._say(kind, outcome=outcome)

    def _missing(self, points: Iterable[Point], rounds: int | None) -> list[Point]:
        """The points that have not been run to that round, or to their end."""
        return [point for point in points if not (self._resume and self._is_there(point, rounds))]

    def _is_there(self, point: Point, rounds: int | None) -> bool:
        home = self._home(point)
        if not (home / runs.INFO).exists():
            return False
        config = shortened(self.plan.configs[point.name], rounds)
        try:
            if runs.is_finished(config, home):
                return True
            run = runs.read(home)
        except runs.DamagedRun:
            return False
        return rounds is not None and run.status == DONE and len(run.history) >= rounds

    def _halve(self, points: Sequence[Point], rounds: int) -> list[Point]:
        assert self.eta is not None
        kept = halving.survivors([self.outcomes[point.name] for point in points], self.eta)
        dropped = [point for point in points if point.cell not in kept]
        for point in dropped:
            outcome = self.outcomes[point.name]
            if outcome.status == DONE:
                self.outcomes[point.name] = replace(outcome, status=f"dropped at round {rounds}")
        goes_on = [point for point in points if point.cell in kept]
        self.words.append(
            f"after round {rounds}, {len(goes_on)} of {counted(len(points), 'run')} go on: {len(dropped)} dropped"
        )
        self._resume = True  # from here on there are runs to go on with
        self._say("rung", text=self.words[-1])
        return goes_on

    def _home(self, point: Point) -> Path:
        return self.home / POINTS / point.name

    def _say(self, kind: Any, **told: Any) -> None:
        self._tell(Event(kind, self.done, self.total, best=self._best(), **told))

    def _best(self) -> PointOutcome | None:
        known = [one for one in self.outcomes.values() if one.choice is not None and one.select is not None]
        return min(known, key=lambda one: better(str(one.select), one.choice), default=None)


def _by_data(points: Sequence[Point]) -> list[Point]:
    """Points of the same data one after the other, so that little of it is held at once."""
    return sorted(points, key=lambda point: json.dumps(point.tables["data"], sort_keys=True, default=str))


def _expected(plan: Plan, eta: int | None, rungs: Sequence[int | None]) -> int:
    """How many times a point is run, or run on."""
    if eta is None:
        return len(plan.points)
    cells: dict[tuple[str, str], set[str]] = {}
    for point in plan.points:
        cells.setdefault(halving.contest(point), set()).add(point.cell)
    total = 0
    for contest in cells.values():
        number = len(contest)
        for _ in rungs:
            total += number
            number = max(1, number // eta)
    return total * plan.spec.seeds


# ---- the directory --------------------------------------------------------------------------------------------------


def _prepare(home: Path, plan: Plan, resume: bool, shard: Shard) -> bool:
    """Makes the sweep's directory, or takes up the one that is there; whether it may hold points already. Others may be
    doing the same just now: what they write aside, hidden files, is none of ours."""
    if home.exists() and not home.is_dir():
        raise runs.RunExists(f"{home}: is a file, and a sweep needs a directory; use another --out")
    text = json.dumps(asked(plan), indent=1, default=str) + "\n"
    before = _text(home / SWEEP)
    if before is None and home.exists() and any(not path.name.startswith(".") for path in home.iterdir()):
        before = _text(home / SWEEP)  # unless it has come meanwhile
        if before is None:
            raise runs.RunExists(f"{home}: is not empty, and holds no sweep; use another --out")
    if before is not None and not resume:
        if shard.is_all:
            raise runs.RunExists(f"{home}: holds a sweep already; use --resume to go on, or another --out")
        if before != text:
            raise runs.RunExists(f"{home}: holds another sweep, of which this is no shard; use another --out")
    if before is not None and before != text:
        _check_keeps_all(home, before, plan)
    home.mkdir(parents=True, exist_ok=True)
    runs.check_locks(home)
    write_whole(home / SWEEP, text)
    return resume or not shard.is_all


def _check_keeps_all(home: Path, before: str, plan: Plan) -> None:
    """A sweep may grow. One that asks for less would write tables and pictures that lack what was run before."""
    try:
        there = [str(point["name"]) for point in json.loads(before)["points"]]
    except (ValueError, KeyError, TypeError):
        raise runs.DamagedRun(f"{home / SWEEP}: is damaged; use another --out") from None
    asked_for = {point.name for point in plan.points}
    lost = [name for name in there if name not in asked_for and runs.has_rows(home / POINTS / name)]
    if lost:
        others = f" and {counted(len(lost) - 1, 'more run', 'more runs')}" if len(lost) > 1 else ""
        raise runs.RunExists(
            f"{home}: holds results of {lost[0]}{others}, which this grid leaves out; "
            "--resume takes a grid that has them all, and may have more; or use another --out"
        )


def _text(file: Path) -> str | None:
    try:
        return file.read_text()
    except FileNotFoundError:
        return None


def holds_sweep(home: str | Path) -> bool:
    """Whether a directory is a sweep's."""
    return (Path(home) / SWEEP).exists()


def asked(plan: Plan) -> dict[str, Any]:
    """What a sweep was asked to do, as JSON."""
    spec = plan.spec
    return {
        "axes": {axis.key: list(axis.values) for axis in spec.axes},
        "variants": [
            {"name": one.name, "set": dict(one.sets), "axes": {axis.key: list(axis.values) for axis in one.axes}}
            for one in spec.variants
        ],
        "seeds": spec.seeds,
        "metric": spec.metric,
        "select": spec.select,
        "last": spec.window.evaluations,
        "last_rounds": spec.window.rounds,
        "tune_on": dict(spec.tune_on),
        "points": [
            {"name": point.name, "variant": point.variant, "settings": dict(point.settings), "seed": point.seed}
            for point in plan.points
        ],
    }
