"""Numbers and findings in words: percentages, units, the sentence at the head of a report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from ...record.evaluate import higher_is_better
from ..counting import counted
from .entries import MISSING, Group
from .statistics import Estimate
from .summary import Summary, is_share, ranked, tied


def name_of(metric: str) -> str:
    """test_recall_at_5 as "test recall@5", test_mse as "test MSE"."""
    return metric.replace("recall_at_5", "recall@5").replace("mse", "MSE").replace("_", " ")


def value_of(metric: str, value: float) -> str:
    """A metric's value: a percentage, or four digits."""
    return f"{100 * value:.1f}%" if is_share(metric) else f"{value:.4g}"


def estimate_of(metric: str, one: Estimate | None) -> str:
    """With its 95% interval where there are several seeds."""
    if one is None:
        return MISSING
    if one.half is None:
        return value_of(metric, one.mean)
    if is_share(metric):
        return f"{100 * one.mean:.1f} ± {100 * one.half:.1f}%"
    return f"{one.mean:.4g} ± {one.half:.2g}"


def digits(value: float, number: int = 3) -> str:
    """That many significant digits, whole numbers with separators, no exponents where they can be avoided."""
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if size >= number - 1:
        return f"{value:,.0f}"
    return f"{value:.{number - 1 - size}f}" if size >= -4 else f"{value:.{number - 1}e}"


def column_of(means: Sequence[float | None]) -> list[str]:
    """Numbers below each other with as many decimals as the largest needs for three digits."""
    largest = max((abs(value) for value in means if value is not None), default=0.0)
    decimals = max(0, 2 - math.floor(math.log10(largest))) if largest else 0
    return [MISSING if value is None else f"{value:,.{decimals}f}" for value in means]


def rounds_to(summary: Summary) -> str:
    """The round that reached the target, the mean over seeds if all did, else how many did."""
    mean = summary.rounds_to
    if mean is not None:
        return f"{mean.mean:,.1f}".removesuffix(".0")
    some = sum(r is not None for r in summary.reached)
    return f"{some} of {counted(len(summary.reached), 'run')}" if some else MISSING


def evaluated(groups: Sequence[Group], metric: str) -> str:
    """When the metric was measured, which is when a target can be found to be reached."""
    rounds = [[row["round"] for row in e.history if row.get(metric) is not None] for one in groups for e in one.entries]
    steps = {after - before for one in rounds for before, after in pairwise([0, *one[:-1]])}
    if not steps or steps == {1}:
        return ""
    few, many = min(steps), max(steps)
    every = f"every {few}" if few == many else f"every {few} to {many}"
    return f"Rounds to the target are counted at evaluations, {every} rounds."


def listed(words: Sequence[str], most: int = 3) -> str:
    """ "a, b and c", or "a, b and 5 others"."""
    shown = list(words) if len(words) <= most else [*words[: most - 1], f"{len(words) - most + 1} others"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def headline(summaries: Sequence[Summary], metric: str | None) -> str:
    """The finding in one sentence."""
    if metric is None:
        return "No run has been evaluated yet."
    order = [one for one in ranked(_federated(summaries), metric) if one.final is not None]
    if not order:
        return f"No run ended with a finite {name_of(metric)}."
    first = order[0]
    sentence = f"{_reach(first, metric)} after {_rounds(first)}{_of_those_left(first)}"
    if len(order) == 1:
        return f"{sentence}{_over_seeds(first)}."
    second = order[1]
    if tied(first, second, metric):
        return f"{sentence}, but seeds leave it open whether that is ahead of {_held(second, metric)}."
    return f"{sentence}, {_lead(first, second, metric, len(order))}."


def supplement(summaries: Sequence[Summary], metric: str | None, target: float | None) -> str:
    """Who gets to the target first, by rounds and by bytes; empty where nobody does."""
    summaries = _federated(summaries)
    done = [one for one in summaries if one.rounds_to is not None]
    if metric is None or target is None or not done:
        return ""
    quickest = min(done, key=lambda one: _mean(one.rounds_to))
    lightest = min(done, key=lambda one: _mean(one.bytes_to_target))
    goal = value_of(metric, target) if not is_share(metric) else f"{100 * target:g}%"
    sentence = f"{goal} {name_of(metric)} is reached first by {quickest.group.label}, {_in_rounds(quickest)}"
    if len(done) == 1:
        return f"{sentence}; no other run gets there." if len(summaries) > 1 else f"{sentence}."
    sent = bytes_in_units(_mean(lightest.bytes_to_target))
    if _mean(lightest.bytes_to_target) == _mean(quickest.bytes_to_target):
        return f"{sentence} and {sent}."
    return f"{sentence}, and with the fewest bytes by {lightest.group.label}, {sent}."


def _in_rounds(one: Summary) -> str:
    """When a group got to the target that all of its runs reached."""
    told = rounds_to(one)
    return f"in {told} round{'' if told == '1' else 's'}"


def _federated(summaries: Sequence[Summary]) -> Sequence[Summary]:
    """Without training in one place, which is there to compare with; unless there is nothing else."""
    return [one for one in summaries if not one.group.entries[0].is_centralised] or summaries


def byte_unit(number: float) -> tuple[str, float]:
    """The unit in which a number of bytes has few digits before the point, and its size."""
    units = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
    return next(((unit, size) for unit, size in units if number >= size), ("B", 1.0))


def bytes_in_units(number: float) -> str:
    """12,300,000 as 12.3 MB."""
    unit, size = byte_unit(number)
    return f"{digits(number / size)} {unit}" if size > 1 else f"{number:.0f} {unit}"


def _mean(one: Estimate | None) -> float:
    return math.inf if one is None else one.mean


def _reach(one: Summary, metric: str) -> str:
    assert one.final is not None
    verb = "reaches" if higher_is_better(metric) else "ends at"
    return f"{one.group.label} {verb} {value_of(metric, one.final.mean)} {name_of(metric)}"


def _held(one: Summary, metric: str) -> str:
    assert one.final is not None
    return f"{one.group.label} with {value_of(metric, one.final.mean)}"


def _rounds(one: Summary) -> str:
    few, many = min(one.rounds), max(one.rounds)
    return counted(many, "round") if few == many else f"{few:,} to {many:,} rounds"


def _of_those_left(one: Summary) -> str:
    """Where even the best group lost runs, the sentence says so."""
    return f" in {one.ended_well} of {counted(len(one.rounds), 'run')}" if one.lost else ""


def _over_seeds(one: Summary) -> str:
    assert one.final is not None
    if len(one.rounds) == 1:
        return " (one seed)"
    return f" (the mean of {one.final.n} seeds)" if one.final.n > 1 and not one.lost else ""


def _lead(first: Summary, second: Summary, metric: str, number: int) -> str:
    assert first.final is not None
    assert second.final is not None
    ahead = abs(first.final.mean - second.final.mean)
    rival = second.group.label if number == 2 else f"the next, {second.group.label},"
    if _rounds(first) != _rounds(second):
        rival = f"{rival.rstrip(',')} ({_rounds(second)})"
    if ahead == 0:
        return f"level with {rival.rstrip(',')}"
    if not is_share(metric):
        return f"ahead of {rival} by {digits(ahead)}"
    points = f"{100 * ahead:.1f}"
    return f"level with {rival.rstrip(',')}" if points == "0.0" else f"ahead of {rival} by {points} points"


def prior_name(metric: str | None) -> str:
    """What a row is called that shows the metric of who learns nothing but frequencies."""
    return "always the five most frequent" if metric and "recall_at_5" in metric else "always the most frequent"
