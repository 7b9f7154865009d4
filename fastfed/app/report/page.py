"""The page: one HTML file that needs nothing else, its charts drawn by its own script from data inside it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from importlib import resources
from typing import Any

from ..._version import __version__
from ..counting import counted
from . import charts, tables
from .charts import Chart, Partition
from .entries import Entry, Group, group, main_metric
from .grid import Grid, as_html
from .summary import choose_target, summarise
from .words import headline, listed, name_of, supplement

MARKER = '<meta name="generator" content="FastFed report">'
_PLACE = re.compile(r"<!--([A-Z]+)-->|/\*([A-Z]+)\*/")  # of page.html, to be filled


@dataclass(frozen=True)
class Section:
    """A heading with a sentence, charts and tables."""

    id: str
    title: str
    lead: str = ""
    charts: Sequence[Chart | Partition] = field(default_factory=tuple)
    table: Grid | None = None
    html: str = ""

    @property
    def empty(self) -> bool:
        return not self.charts and self.table is None and not self.html


@dataclass(frozen=True)
class Report:
    """Everything a page says, before it is drawn."""

    title: str
    headline: str
    supplement: str
    facts: str
    groups: list[Group]
    sections: list[Section]

    @property
    def charts(self) -> list[Chart | Partition]:
        return [chart for section in self.sections for chart in section.charts]


def page(entries: Sequence[Entry], title: str | None = None, target: float | None = None) -> str:
    """The page of some runs as HTML. `target` is the metric's value to which rounds are counted; by default a round
    number that half of the runs reach."""
    return render(compose(entries, title, target))


def results(entries: Sequence[Entry], target: float | None = None) -> Grid:
    """The table of results alone, as the page has it; `target` likewise."""
    groups, metric = group(entries), main_metric(entries)
    goal = choose_target(groups, metric) if target is None else target
    return tables.results(summarise(groups, metric, goal), metric, goal)


def compose(entries: Sequence[Entry], title: str | None = None, target: float | None = None) -> Report:
    """Groups the runs and collects what there is to say of them; a section that no run has data for is left out."""
    if not entries:
        raise ValueError("entries: must be at least one run, got none")
    groups = group(entries)
    metric = main_metric(entries)
    goal = choose_target(groups, metric) if target is None else target
    summaries = summarise(groups, metric, goal)
    return Report(
        title=title or _title(entries, groups),
        headline=headline(summaries, metric),
        supplement=supplement(summaries, metric, goal),
        facts=_facts(entries, groups),
        groups=groups,
        sections=[one for one in _sections(groups, metric, tables.results(summaries, metric, goal)) if not one.empty],
    )


def render(report: Report, figures: Mapping[str, Sequence[str]] | None = None) -> str:
    """The HTML. `figures` has, for a chart's id, the files beside the page that show it too."""
    parts = {
        "MARKER": MARKER,
        "TITLE": escape(report.title),
        "HEADLINE": escape(report.headline),
        "SUPPLEMENT": f"<p>{escape(report.supplement)}</p>" if report.supplement else "",
        "FACTS": escape(report.facts),
        "CONTENTS": "".join(f'<a href="#{one.id}">{escape(one.title)}</a>' for one in report.sections),
        "SECTIONS": "".join(map(_section, report.sections)),
        "VERSION": escape(__version__),
        "STYLE": _file("page.css"),
        "SCRIPT": _file("page.js"),
        "DATA": embed({"charts": {c.id: _rounded(asdict(c)) for c in report.charts}, "figures": dict(figures or {})}),
    }
    # in one pass: what is put in is never searched for places
    return _PLACE.sub(lambda found: parts[found[1] or found[2]], _file("page.html"))


def embed(data: object) -> str:
    """JSON that can stand in a script element: no character of it can end the element."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _sections(groups: list[Group], metric: str | None, results: Grid) -> list[Section]:
    metric_name = name_of(metric) if metric else "loss"
    late = any(group.has("ages") for group in groups)
    return [
        Section("results", "Results", _results_lead(groups), table=results),
        Section("progress", "Progress", _bands_lead(groups), charts.progress(groups, metric)),
        Section("steps", "Step sizes", "", charts.step_sizes(groups)),
        Section("tuning", "Tuning", "What the tuner set, round by round.", charts.tuning(groups)),
        Section("asynchrony", "Asynchrony" if late else "Cohorts", "", charts.asynchrony(groups)),
        Section(
            "privacy",
            "Privacy",
            f"The budget spent, and the {metric_name} for it.",
            charts.privacy(groups, metric),
            tables.privacy(groups),
        ),
        Section("refused", "Lost updates", "", charts.refusals(groups), tables.fates(groups)),
        Section("data", "Data", "", charts.partitions(groups)),
        Section("time", "Time", "", charts.seconds(groups)),
        Section(
            "costs",
            "Costs",
            "Of one client in one round; d is one vector of the model's size.",
            table=tables.costs(groups),
        ),
        Section("configuration", "Configuration", _differences_lead(groups), html=_configuration(groups)),
        Section("machine", "Machine", table=tables.machines(groups)),
    ]


def _results_lead(groups: Sequence[Group]) -> str:
    if not _banded(groups):
        return ""
    return "Runs that differ only in their seed are one row: the mean ± the half width of its 95% interval."


def _bands_lead(groups: Sequence[Group]) -> str:
    if not _banded(groups):
        return ""
    return "Lines are means over seeds; bands are the 95% intervals of the means (Student's t)."


def _banded(groups: Sequence[Group]) -> bool:
    return any(len(one.entries) > 1 for one in groups)


def _differences_lead(groups: Sequence[Group]) -> str:
    return "Only the settings in which the runs differ, but for seeds, names and places." if len(groups) > 1 else ""


def _configuration(groups: Sequence[Group]) -> str:
    grid, whole = tables.differences(groups), tables.configurations(groups)
    if not whole:
        return ""
    if len(groups) == 1:
        return whole
    differences = "<p>The runs' configurations do not differ.</p>" if grid is None else as_html(grid)
    return f"{differences}<h3>Whole configurations</h3>{whole}"


def _title(entries: Sequence[Entry], groups: Sequence[Group]) -> str:
    """Who was compared, and on what if all had the same data."""
    data = {str(entry.clients["name"]) for entry in entries if entry.clients and entry.clients.get("name")}
    return f"{listed([one.label for one in groups], 4)}{f' on {data.pop()}' if len(data) == 1 else ''}"


def _facts(entries: Sequence[Entry], groups: Sequence[Group]) -> str:
    """The line below the headline: how many runs of what."""
    facts = [counted(len(entries), "run")]
    if len(groups) != len(entries):
        seeds = sorted({len(one.entries) for one in groups})
        facts.append(
            f"{counted(seeds[0], 'seed')} each" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds each"
        )
    for name, unit in (("clients", "client"), ("parameters", "parameter")):
        told = {entry.info.get(name) for entry in entries}
        if len(told) == 1 and isinstance(value := told.pop(), int):
            facts.append(counted(value, unit))
    dates = sorted(str(entry.info["finished"])[:10] for entry in entries if entry.info.get("finished"))
    return " · ".join([*facts, *dates[-1:]])


def _section(section: Section) -> str:
    lead = f'<p class="lead">{escape(section.lead)}</p>' if section.lead else ""
    cards = "".join(
        f'<figure class="chart {c.kind}" id="chart-{c.id}" data-chart="{c.id}"></figure>' for c in section.charts
    )
    legend = '<div class="legend" role="group" aria-label="Series"></div>' if section.charts else ""
    grid = f'{legend}<div class="grid">{cards}</div>' if cards else ""
    table = "" if section.table is None else as_html(section.table)
    return f'<section id="{section.id}"><h2>{escape(section.title)}</h2>{lead}{grid}{table}{section.html}</section>'


def _rounded(value: Any) -> Any:
    """Six digits are more than a screen shows; what is not finite is nothing."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, (list, tuple)) else value


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
