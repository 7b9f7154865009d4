"""What is drawn, as data: the page's script and the figures on paper draw the same charts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ...record.history import ROOMS
from .entries import Entry, Group, own_metrics
from .look import Look
from .series import Abscissa, Series, by_bits, by_clock, by_epsilon, by_round, line, spread
from .summary import is_share
from .words import name_of

Format = Literal["number", "percent", "whole"]
Log = Literal["no", "offered", "on"]
_MOST_BINS = 20
_SHOWN_CLIENTS = 40  # of a partition: more are dots that cannot be told apart


@dataclass(frozen=True)
class ChartAxis:
    """`log`: whether a logarithmic axis is offered, or shown first."""

    label: str
    format: Format = "number"
    log: Log = "no"
    limits: tuple[float, float] | None = None  # what the axis shows, where somebody says so


@dataclass(frozen=True)
class Chart:
    """Lines by a number; or bars by a category, beside each other ("bars") or in one row each ("stacked")."""

    id: str
    title: str
    x: ChartAxis
    y: ChartAxis
    series: list[Series]
    kind: Literal["lines", "bars", "stacked"] = "lines"
    note: str = ""
    categories: list[str] = field(default_factory=list)
    band: str = "95% interval"  # what a line's band is
    size: tuple[float, float] | None = None  # inches on paper, where somebody says so


@dataclass(frozen=True)
class Partition:
    """How many examples of each class the clients have; `counts` is (clients, classes), empty without labels."""

    id: str
    title: str
    clients: list[int]
    classes: list[str]
    counts: list[list[int]]
    sizes: list[int]
    note: str
    kind: Literal["partition"] = "partition"


def as_looked(chart: Chart, look: Look) -> Chart:
    """With the size, the bands and, where it shows the metric, the axis that somebody asks for."""
    shown = replace(chart, size=look.size)
    if look.ylim is not None and chart.id.startswith(f"{look.metric}_by_"):
        shown = replace(shown, y=replace(chart.y, limits=look.ylim, log="no"))
    if not look.bands:
        shown = replace(shown, series=[replace(one, low=None, high=None) for one in chart.series])
    return shown


def progress(groups: Sequence[Group], metric: str | None) -> list[Chart]:
    """The metric and the losses by round, by transmitted bits, and by the simulated clock."""
    own = own_metrics(groups, metric)
    columns = [column for column in (metric, *own, "test_loss", "train_loss") if column is not None]
    charts = []
    for column in dict.fromkeys(columns):
        y = _metric_axis(column)
        charts.append(_lines(groups, column, y, "round"))
        if column not in (*own, "train_loss") or metric == "train_loss":
            charts += [_lines(groups, column, y, by) for by in ("bits", "clock")]
    return _drawn(charts)


def step_sizes(groups: Sequence[Group]) -> list[Chart]:
    """The clients' step sizes with the range over clients, if any run's move."""
    if not any(_moves(entry) for group in groups for entry in group.entries):
        return []
    series = [spread(group, "step_size", "step_size_min", "step_size_max") for group in groups]
    y = ChartAxis("step size", log="on" if _spans(series) else "offered")
    note = "The line is the mean over a round's clients, the band reaches from the smallest to the largest."
    return _drawn(
        [_chart("step_size_by_round", "Step size", ChartAxis("round", "whole"), y, series, note, "min to max")]
    )


def tuning(groups: Sequence[Group]) -> list[Chart]:
    """What a tuner set: learning rate, epochs, batch size."""
    tuned = [group for group in groups if group.has("client_lr")]
    axes = {
        "client_lr": ChartAxis("client learning rate", log="offered"),
        "epochs": ChartAxis("local epochs", log="offered"),
        "batch_size": ChartAxis("batch size"),
    }
    return _drawn([_lines(tuned, column, y, "round", y.label.capitalize()) for column, y in axes.items()])


def asynchrony(groups: Sequence[Group]) -> list[Chart]:
    """How old updates were, and how many the server took at once."""
    late = [group for group in groups if group.has("ages")]
    varying = [group for group in groups if group in late or len(_cohorts(group)) > 1]
    charts = [
        _bars("ages", "Age of the updates", "server steps since the client's model", late, _ages),
        _bars("cohorts", "Updates in a server step", "updates", varying, _cohorts),
        _lines(late, "age_mean", ChartAxis("mean age, server steps"), "round", "Mean age by round"),
    ]
    return _drawn(charts)


def privacy(groups: Sequence[Group], metric: str | None) -> list[Chart]:
    """The privacy spent by round, and what it bought."""
    private = [group for group in groups if group.has("epsilon")]
    charts = [_lines(private, "epsilon", ChartAxis("ε spent"), "round", "Privacy spent")]
    if metric is not None:
        charts.append(_lines(private, metric, _metric_axis(metric), "epsilon"))
    return _drawn(charts)


def refusals(groups: Sequence[Group]) -> list[Chart]:
    """Clients whose deltas were refused, by round, if any was."""
    hit = [group for group in groups if any(sum(entry.history.values("skipped")) for entry in group.entries)]
    return _drawn([_lines(hit, "skipped", ChartAxis("clients refused", "whole"), "round", "Clients refused by round")])


def seconds(groups: Sequence[Group]) -> list[Chart]:
    """Milliseconds of a round in each room, the mean over rounds and seeds."""
    rooms = [room for room in (*ROOMS, "evaluate") if any(group.has(f"seconds_{room}") for group in groups)]
    timed = [group for group in groups if any(group.has(f"seconds_{room}") for room in rooms)]
    if not timed:
        return []
    places = [float(i) for i in range(len(timed))]
    series = [
        Series(f"room-{room}", room, i, 1, places, [_milliseconds(group, room) for group in timed])
        for i, room in enumerate(rooms)
    ]
    return [
        Chart(
            "seconds_per_room",
            "Time of a round by room",
            ChartAxis(""),
            ChartAxis("milliseconds per round"),
            series,
            kind="stacked",
            note="Means over all rounds; evaluation is spread over the rounds between two evaluations.",
            categories=[group.label for group in timed],
        )
    ]


def partitions(groups: Sequence[Group], most: int = 4) -> list[Partition]:
    """Who has what, once for each different division of the data."""
    found: dict[str, tuple[Entry, list[str]]] = {}
    for group in groups:
        for entry in group.entries[:1]:
            if entry.clients and entry.clients.get("sizes"):
                _, owners = found.setdefault(str(entry.clients), (entry, []))
                owners.append(group.label)
    several = len(found) > 1
    return [
        _partition(i, entry.clients or {}, owners if several else [])
        for i, (entry, owners) in enumerate(list(found.values())[:most])
    ]


# ---- lines ----------------------------------------------------------------------------------------------------------


def _lines(groups: Sequence[Group], column: str, y: ChartAxis, by: str, title: str = "") -> Chart:
    abscissas: dict[str, Abscissa] = {"round": by_round, "bits": by_bits, "clock": by_clock, "epsilon": by_epsilon}
    scale, x = _x_axis(groups, by)
    series = [line(group, column, abscissas[by], scale) for group in groups]
    if by in ("bits", "clock"):  # one that moves nothing, or has no clock, has no place there
        series = [one if one is not None and any(one.x) else None for one in series]
    name = name_of(column)
    heading = title or f"{name[0].upper()}{name[1:]} by {_BY[by]}"
    return _chart(f"{column}_by_{by}", heading, x, y, series)


_BY = {"round": "round", "bits": "transmitted bits", "clock": "simulated time", "epsilon": "privacy spent"}


def _chart(
    id: str,
    title: str,
    x: ChartAxis,
    y: ChartAxis,
    series: Sequence[Series | None],
    note: str = "",
    band: str = "95% interval",
) -> Chart:
    return Chart(id, title, x, y, [one for one in series if one is not None], note=note, band=band)


def _drawn(charts: Sequence[Chart]) -> list[Chart]:
    """Those that have anything to show."""
    return [chart for chart in charts if any(y is not None for one in chart.series for y in one.y)]


def _x_axis(groups: Sequence[Group], by: str) -> tuple[float, ChartAxis]:
    """By what to divide, and the axis in that unit."""
    if by == "round":
        return 1.0, ChartAxis("round", "whole")
    if by == "epsilon":
        return 1.0, ChartAxis("ε spent")
    rows = [entry.history.rounds for group in groups for entry in group.entries if len(entry.history)]
    if by == "bits":
        largest = max((by_bits(one)[-1] or 0.0 for one in rows), default=0.0)
        units = ((1e12, "terabits"), (1e9, "gigabits"), (1e6, "megabits"), (1e3, "kilobits"), (1.0, "bits"))
        scale, unit = next(((size, name) for size, name in units if largest >= 0.5 * size), units[-1])
        return scale, ChartAxis(f"transmitted {unit}", log="offered")
    largest = max((one[-1].get("clock") or 0.0 for one in rows), default=0.0)
    spans = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
    scale, unit = next(((size, name) for size, name in spans if largest >= 2 * size), spans[-1])
    return scale, ChartAxis(f"simulated {unit}")


def _metric_axis(column: str) -> ChartAxis:
    return ChartAxis(name_of(column), "percent") if is_share(column) else ChartAxis(name_of(column), log="offered")


def _moves(entry: Entry) -> bool:
    """Whether step sizes differ between clients or rounds, beyond rounding."""
    ends = [value for name in ("step_size_min", "step_size_max") for value in entry.history.values(name)]
    return bool(ends) and max(ends) - min(ends) > 1e-6 * abs(max(ends))


def _spans(series: Sequence[Series | None]) -> bool:
    """Whether values differ by orders, so that a linear axis would hide the small ones."""
    values = [y for one in series if one for y in (*one.y, *(one.low or ()), *(one.high or ())) if y is not None]
    return bool(values) and min(values) > 0 and max(values) > 20 * min(values)


# ---- bars -----------------------------------------------------------------------------------------------------------


def _ages(group: Group) -> Counter[int]:
    """How many updates of each age."""
    pairs = [pair for entry in group.entries for row in entry.history for pair in row.get("ages") or ()]
    found: Counter[int] = Counter()
    for age, number in pairs:
        found[int(age)] += int(number)
    return found


def _cohorts(group: Group) -> Counter[int]:
    """How many rounds had that many clients."""
    return Counter(int(row["clients"]) for entry in group.entries for row in entry.history if "clients" in row)


def _bars(id: str, title: str, label: str, groups: Sequence[Group], count: Callable[[Group], Counter[int]]) -> Chart:
    """Shares of each group, in at most some tens of bins of equal width."""
    counted = [(group, found) for group in groups if (found := count(group))]
    values = [value for _, found in counted for value in found]
    low, high = min(values, default=0), max(values, default=0)
    width = -(-(high - low + 1) // _MOST_BINS)
    starts = list(range(low, high + 1, width))
    series = []
    for group, found in counted:
        total = sum(found.values())
        shares: list[float | None] = [sum(found[v] for v in range(s, s + width)) / total for s in starts]
        places = [float(i) for i in range(len(starts))]
        series.append(Series(group.key, group.label, group.style, len(group.entries), places, shares))
    named = [str(start) if width == 1 else f"{start}-{start + width - 1}" for start in starts]
    what = "updates" if id == "ages" else "server steps"
    return Chart(
        id, title, ChartAxis(label), ChartAxis(f"share of {what}", "percent"), series, kind="bars", categories=named
    )


def _milliseconds(group: Group, room: str) -> float:
    rounds = sum(len(entry.history) for entry in group.entries)
    spent = sum(sum(entry.history.values(f"seconds_{room}")) for entry in group.entries)
    return 1000 * spent / max(1, rounds)


# ---- partitions -----------------------------------------------------------------------------------------------------


def _partition(number: int, told: Mapping[str, Any], owners: Sequence[str]) -> Partition:
    """Of what ``runs.who_has_what`` told: classes are known of some clients, sizes perhaps of more."""
    shown, counts, sizes = _shown(told)
    classes = [str(name) for name in told.get("classes") or ()] if counts else []
    everybody = sorted(int(size) for size in told["sizes"])
    total = int(told.get("clients") or len(everybody))
    of_all = f"{len(shown)} of {total:,} clients, spread evenly" if len(shown) < total else f"all {total:,} clients"
    largest = max((n for row in counts for n in row), default=0)
    least, median, most = everybody[0], everybody[len(everybody) // 2], everybody[-1]
    each = f"A client has {least:,} to {most:,} examples, the median {median:,}." if least < most else ""
    bubbles = f"Bubbles (shades where room is short) are examples, at most {largest:,}; bars are totals. "
    return Partition(
        id="partition" if number == 0 else f"partition_{number + 1}",
        title=f"Who has what{': ' + ', '.join(owners) if owners else ''}",
        clients=shown,
        classes=classes,
        counts=counts,
        sizes=sizes,
        note=f"{bubbles if counts else ''}Shown: {of_all}. {each or f'Every client has {most:,} examples.'}",
    )


def _shown(told: Mapping[str, Any]) -> tuple[list[int], list[list[int]], list[int]]:
    """Some clients' ids, their examples of each class (empty where nobody knows), and their sizes."""
    if told.get("counts"):
        places = _evenly(len(told["counts"]))
        counts = [[int(n) for n in told["counts"][i]] for i in places]
        return [int(told["shown"][i]) for i in places], counts, [sum(row) for row in counts]
    sizes, total = told["sizes"], int(told.get("clients") or len(told["sizes"]))
    places = _evenly(len(sizes))
    ids = [round(i * (total - 1) / max(1, len(sizes) - 1)) for i in places]  # the sizes too are spread over all
    return ids, [], [int(sizes[i]) for i in places]


def _evenly(number: int) -> list[int]:
    most = min(number, _SHOWN_CLIENTS)
    return [round(i * (number - 1) / max(1, most - 1)) for i in range(most)]
