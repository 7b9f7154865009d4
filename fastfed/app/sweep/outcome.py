"""What became of a point, as its run directory tells it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ...record.evaluate import higher_is_better
from ...record.history import History
from .. import runs
from ..report.summary import bytes_of, diverged_at
from .points import Point
from .spec import TRAIN_LOSS, Spec

DONE, FAILED, INTERRUPTED, WAITING, UNTUNED = "done", "failed", "interrupted", "waiting", "not tuned"
ELSEWHERE = "elsewhere"


@dataclass(frozen=True)
class PointOutcome:
    """`status` is "done", "diverged at round N", "dropped at round N" (by halving), "failed", "interrupted", "waiting",
    "elsewhere" (another process is at work on it, or it belongs to another shard and has not been run), or "not tuned"
    (`tune_on` found no settings for it); `error` a sentence that says why it failed. `value` is the mean
    of the last evaluations of the metric, None where there is none, one was not finite, or the run diverged (the model
    that it still evaluates is one from before); `best` the best of all. `choice` is the same of the column `select`, by
    which settings are chosen. `prior` is the metric of who learns nothing but frequencies. `curve` has [round, value]
    of every evaluation."""

    point: Point
    status: str = WAITING
    error: str | None = None
    metric: str | None = None
    value: float | None = None
    best: float | None = None
    select: str | None = None
    choice: float | None = None
    prior: float | None = None
    rounds: int = 0
    bytes: int = 0
    gradients: int | None = None
    seconds: float = 0.0
    curve: list[tuple[int, float | None]] = field(default_factory=list, repr=False)


def look(point: Point, home: Path, spec: Spec, until: int | None = None) -> PointOutcome:
    """The outcome of the point whose run directory is `home`, of its first `until` rounds where that is given."""
    try:
        run = runs.read(home)
    except runs.DamagedRun as error:
        return PointOutcome(point, FAILED, str(error)) if runs.holds_run(home) else PointOutcome(point)
    history = run.history if until is None else History([row for row in run.history if row["round"] <= until])
    name = spec.metric or run.metric
    select = spec.select or TRAIN_LOSS
    lost = diverged_at(history)
    status = {"running": INTERRUPTED}.get(run.status, run.status)  # nobody runs it any more
    return PointOutcome(
        point=point,
        status=f"diverged at round {lost}" if lost is not None and status == DONE else status,
        error=run.info.get("error"),
        metric=name,
        value=spec.window.final(history, name) if lost is None else None,
        best=history.best(name) if history.values(name) else None,
        select=select,
        choice=spec.window.final(history, select) if lost is None else None,
        prior=run.info.get("prior") if name == run.metric else None,
        rounds=len(history),
        bytes=bytes_of(history),
        gradients=None if any("gradients" not in row for row in history) else sum(row["gradients"] for row in history),
        seconds=float(run.info["seconds"]),
        curve=[(int(row["round"]), row[name]) for row in history if name in row],
    )


def better(metric: str, value: float | None) -> float:
    """What to sort by so that the best comes first and what has no value last."""
    if value is None:
        return float("inf")
    return -value if higher_is_better(metric) else value


def judged_by(outcomes: Iterable[PointOutcome]) -> str | None:
    """The metric that is reported."""
    return next((one.metric for one in outcomes if one.metric is not None), None)


def chosen_by(outcomes: Iterable[PointOutcome]) -> str | None:
    """The column that settings are chosen by."""
    return next((one.select for one in outcomes if one.select is not None), None)
