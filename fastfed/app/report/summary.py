"""What a group of runs came to: its final and best metric, rounds to a target, bytes, seconds, how it ended."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ...record.evaluate import higher_is_better
from ...record.history import ROOMS, History
from .entries import Entry, Group
from .statistics import Estimate, clearly_apart, estimate


@dataclass(frozen=True)
class Summary:
    """Of one group. An estimate is None where no run of it has the number; `final` is of the runs that ended in a
    finite number, `ended_well` how many these are; `reached` has the first round of each run that is as good as the
    target, None for a run that never is."""

    group: Group
    rounds: list[int]
    final: Estimate | None
    best: Estimate | None
    ended_well: int
    reached: list[int | None]
    bytes_to_target: Estimate | None  # of the runs that reach it, where all do
    gradients_to_target: Estimate | None  # as well; None too where a run's rows do not tell
    bytes: Estimate | None  # None of centralised runs, which send nothing
    seconds: Estimate | None
    status: str

    @property
    def lost(self) -> bool:
        """Whether some run ended without a finite metric: a mean over the others flatters."""
        return self.ended_well < len(self.rounds)

    @property
    def rounds_to(self) -> Estimate | None:
        """None unless all runs reach the target."""
        rounds = [float(r) for r in self.reached if r is not None]
        return estimate(rounds) if rounds and len(rounds) == len(self.reached) else None


def by_task(summaries: Sequence[Summary]) -> list[list[Summary]]:
    """The groups of each task together, in the order of the first of each."""
    found: dict[str, list[Summary]] = {}
    for one in summaries:
        found.setdefault(one.group.entries[0].task, []).append(one)
    return list(found.values())


def summarise(groups: Sequence[Group], metric: str | None, target: float | None) -> list[Summary]:
    return [_summary(group, metric, target) for group in groups]


def ranked(summaries: Sequence[Summary], metric: str | None) -> list[Summary]:
    """The best final metric first; then groups of which some runs have none, then those without one."""
    sign = -1 if metric is not None and higher_is_better(metric) else 1
    return sorted(
        summaries, key=lambda one: (one.lost, math.inf if one.final is None else sign * one.final.mean)
    )  # fmt: skip


def choose_target(groups: Sequence[Group], metric: str | None) -> float | None:
    """A round number that at least half of the groups reach: a little short of the median of their bests."""
    if metric is None:
        return None
    bests = [one.best.mean for one in summarise(groups, metric, None) if one.best is not None]
    if not bests:
        return None
    if is_share(metric):
        return _floor(statistics.median_low(bests) * 0.985)
    middle = statistics.median_high(bests) * (0.985 if higher_is_better(metric) else 1.015)
    return _two_digits(middle, up=not higher_is_better(metric))


_SHARES = {"accuracy", "f1", "precision", "recall", "auc", "auroc", "iou", "dice"}


def is_share(metric: str) -> bool:
    """Whether a metric is a part of one, told in percent: by the words of its name."""
    return metric.endswith("recall_at_5") or not _SHARES.isdisjoint(metric.lower().split("_"))


def final_values(group: Group, metric: str) -> list[float]:
    """The last evaluation of each run that did not diverge."""
    return [value for entry in group.entries if (value := _final(entry.history, metric)) is not None]


def final_of(group: Group, metric: str) -> Estimate | None:
    """What the runs of a group end with."""
    return _estimated(final_values(group, metric))


def tied(a: Summary, b: Summary, metric: str) -> bool:
    """Whether seeds leave open which of two groups ends better."""
    return not clearly_apart(final_values(a.group, metric), final_values(b.group, metric))


def diverged_at(history: History) -> int | None:
    """The first of the rounds at the end without a finite loss, because every client was refused or the model's own
    loss was not finite; None if the run ended well."""
    first = None
    for row in history:
        refused = row.get("train_loss") is None and (row.get("skipped") or 0) > 0
        blown = any(name in row and row[name] is None for name in ("test_loss", "validation_loss"))
        recovered = row.get("train_loss") is not None and not blown
        if recovered:
            first = None
        elif (refused or blown) and first is None:
            first = int(row["round"])
    return first


def seconds_of(entry: Entry) -> float | None:
    """Of the whole run, or of its rooms where nobody timed the whole."""
    told = entry.info.get("seconds")
    if isinstance(told, (int, float)):
        return float(told)
    rooms = [sum(entry.history.values(f"seconds_{room}")) for room in (*ROOMS, "evaluate")]
    return sum(rooms) or None


def bytes_of(history: History, until: int | None = None) -> int:
    """Sent down and up by all clients, in all rounds or until one."""
    rows = history.rounds if until is None else [row for row in history if row["round"] <= until]
    return sum((row.get("bytes_down") or 0) + (row.get("bytes_up") or 0) for row in rows)


def _summary(group: Group, metric: str | None, target: float | None) -> Summary:
    histories = [entry.history for entry in group.entries]
    named = [] if metric is None else [(history, metric) for history in histories if history.values(metric)]
    finals = [] if metric is None else final_values(group, metric)
    reached = [None if target is None else _reached(history, metric, target) for history in histories]
    alone = any(entry.is_centralised for entry in group.entries)
    sent = [float(bytes_of(h, until)) for h, until in zip(histories, reached, strict=True) if until is not None]
    known = [] if target is None else [h.gradients_to(name, target) for h, name in named]
    gradients = [float(number) for number in known if number is not None]
    seconds = [value for entry in group.entries if (value := seconds_of(entry)) is not None]
    return Summary(
        group=group,
        rounds=[len(history) for history in histories],
        final=_estimated(finals),
        best=_estimated([history.best(name) for history, name in named]),
        ended_well=len(finals),
        reached=reached,
        bytes_to_target=_estimated(sent) if len(sent) == len(histories) and not alone else None,
        gradients_to_target=_estimated(gradients) if len(gradients) == len(histories) else None,
        bytes=None if alone else estimate([float(bytes_of(history)) for history in histories]),
        seconds=_estimated(seconds),
        status=_status(group),
    )


def _reached(history: History, metric: str | None, target: float) -> int | None:
    return history.rounds_to(metric, target) if metric is not None and history.values(metric) else None


def _estimated(values: Sequence[float]) -> Estimate | None:
    return estimate(values) if values else None


def _final(history: History, metric: str) -> float | None:
    """The newest evaluation. A run that diverged has none: what it still evaluates is the model of before."""
    values = [row[metric] for row in history if metric in row] if diverged_at(history) is None else []
    return float(values[-1]) if values and values[-1] is not None else None


def _status(group: Group) -> str:
    """What became of the runs: "done", or "2 done, 1 diverged at round 7"."""
    words = Counter(map(_ending, group.entries))
    if len(words) == 1:
        return next(iter(words))
    return ", ".join(f"{number} {word}" for word, number in words.items())


def _ending(entry: Entry) -> str:
    lost = diverged_at(entry.history)
    if lost is not None:
        return f"diverged at round {lost}"
    return str(entry.info.get("status") or ("done" if len(entry.history) else "no rounds"))


def _floor(value: float) -> float:
    """To a multiple of five percent; of one percent where there is little."""
    step = 0.05 if value >= 0.2 else 0.01
    return max(step, round(math.floor(value / step + 1e-9) * step, 10))


def _two_digits(value: float, up: bool) -> float:
    if value == 0 or not math.isfinite(value):
        return value
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    return float(f"{(math.ceil if up else math.floor)(value / unit) * unit:.12g}")
