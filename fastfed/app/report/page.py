"""The page: one HTML file that needs nothing else, its charts drawn by its own script from data inside it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from ..._version import __version__
from ..counting import counted
from . import charts, tables
from .charts import Chart, Partition
from .entries import Entry, Group, group, main_metric
from .grid import Grid, as_html
from .look import PLAIN, Look
from .series import LEAST_FOR_BAND
from .summary import Summary, by_task, choose_target, ranked, summarise
from .sweeps import Shades, pictures_of
from .words import evaluated, headline, listed, name_of, supplement

_MOST_TASKS_TOLD = 3
_ONE_SEED = "One seed each: how much of a difference is chance, nobody knows."
_KINDS = {".csv": "CSV", ".tex": "LaTeX"}
MARKER = '<meta name="generator" content="FastFed report">'
_PLACE = re.compile(r"<!--([A-Z]+)-->|/\*([A-Z]+)\*/")  # of page.html, to be filled


@dataclass(frozen=True)
class Section:
    """A heading with a sentence, charts and tables."""

    id: str
    title: str
    lead: str = ""
    charts: Sequence[Chart | Partition | Shades] = field(default_factory=tuple)
    table: Grid | None = None
    html: str = ""
    own_legends: bool = False  # whether every chart has series of its own

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
    table: Grid  # of the results, and what it is made of
    summaries: list[Summary]
    target: float | None
    notes: list[str]  # on the table of the results

    @property
    def charts(self) -> list[Chart | Partition | Shades]:
        return [chart for section in self.sections for chart in section.charts]


def page(entries: Sequence[Entry], title: str | None = None, target: float | None = None, look: Look = PLAIN) -> str:
    """The page of some runs as HTML. `target` is the metric's value to which rounds are counted; by default a round
    number that half of the runs reach."""
    return render(compose(entries, title, target, look))


def results(entries: Sequence[Entry], target: float | None = None) -> Grid:
    """The table of results alone, as the page has it; `target` likewise."""
    groups, metric = group(entries), main_metric(entries)
    goal = choose_target(groups, metric) if target is None else target
    return tables.results(summarise(groups, metric, goal), metric, goal)


def compose(
    entries: Sequence[Entry],
    title: str | None = None,
    target: float | None = None,
    look: Look = PLAIN,
    sweeps: Sequence[Path] = (),
) -> Report:
    """Groups the runs and collects what there is to say of them; a section that no run has data for is left out. The
    pictures of `sweeps`, in these directories, are shown too."""
    if not entries:
        raise ValueError("entries: must be at least one run, got none")
    groups = look.arranged(group(entries))
    metric = look.metric or main_metric(entries)
    goal = choose_target(groups, metric) if target is None else target
    summaries = summarise(groups, metric, goal)
    ordered = [one for task in by_task(summaries) for one in (task if look.order else ranked(task, metric))]
    table = tables.results(summaries, metric, goal, bool(look.order))
    sections = [*_sections(groups, metric, table, goal), *_of_sweeps(sweeps)]
    look = replace(look, metric=metric)
    return Report(
        title=title or _title(entries, groups),
        headline=_headline(summaries, metric),
        supplement=supplement(summaries, metric, goal) if len(by_task(summaries)) == 1 else "",
        facts=_facts(entries, groups),
        groups=groups,
        sections=[_looked(one, look) for one in sorted(sections, key=_place_of) if not one.empty],
        table=table,
        summaries=ordered,
        target=goal,
        notes=_notes(groups, metric, goal),
    )


def _looked(section: Section, look: Look) -> Section:
    drawn = [charts.as_looked(chart, look) if isinstance(chart, Chart) else chart for chart in section.charts]
    return replace(section, charts=drawn)


def _headline(summaries: Sequence[Summary], metric: str | None) -> str:
    """The finding; of several tasks, one for each."""
    tasks = by_task(summaries)
    if len(tasks) == 1:
        return headline(summaries, metric)
    words = tables.task_words([one[0].group for one in tasks])
    if len(tasks) > _MOST_TASKS_TOLD:
        return f"{len(tasks)} tasks, each with a ranking of its own."
    return " ".join(f"On {name}: {headline(one, metric)}" for name, one in zip(words, tasks, strict=True))


def _of_sweeps(homes: Sequence[Path]) -> list[Section]:
    maps, lines = pictures_of(homes)
    return [
        Section("settings", "Settings", "What was measured at every setting, the mean over its seeds.", maps),
        Section("sensitivity", "Sensitivity", "", lines, own_legends=True),
    ]


def _place_of(section: Section) -> int:
    """Sections of a sweep come right after the results, the others in their order."""
    return {"results": 0, "settings": 1, "sensitivity": 2}.get(section.id, 3)


def waiting(place: str, version: str) -> str:
    """The live page of a directory without a run."""
    empty = Grid(["run"], [])
    report = Report("FastFed", f"Nothing has begun yet in {place}.", "", "", [], [], empty, [], None, [])
    return render(report, live=version, state="waiting")


def render(report: Report, figures: Mapping[str, Sequence[str]] | None = None, live: str = "", state: str = "") -> str:
    """The HTML. `figures` has, for a chart's id, the files beside the page that show it too. `live` is the version of a
    page that is served, and asks for a newer one; `state` is what it says of the runs."""
    connects = "; connect-src 'self'" if live else ""
    parts = {
        "LIVE": f'<p class="live" id="live" data-version="{escape(live)}">{escape(state)}</p>' if live else "",
        "CONNECTS": connects,
        "MARKER": MARKER,
        "TITLE": escape(report.title),
        "HEADLINE": escape(report.headline),
        "SUPPLEMENT": f"<p>{escape(report.supplement)}</p>" if report.supplement else "",
        "FACTS": escape(report.facts),
        "CONTENTS": "".join(f'<a href="#{one.id}">{escape(one.title)}</a>' for one in report.sections),
        "SECTIONS": "".join(_section(one, (figures or {}).get(one.id, ())) for one in report.sections),
        "VERSION": escape(__version__),
        "STYLE": _file("page.css"),
        "SCRIPT": _file("page.js"),
        "DATA": embed({"charts": {c.id: _told(c) for c in report.charts}, "figures": dict(figures or {})}),
    }
    # in one pass: what is put in is never searched for places
    return _PLACE.sub(lambda found: parts[found[1] or found[2]], _file("page.html"))


def _told(chart: Chart | Partition | Shades) -> Any:
    """A chart as the script takes it."""
    return _rounded({name: value for name, value in asdict(chart).items() if name not in ("picture", "size")})


def embed(data: object) -> str:
    """JSON that can stand in a script element: no character of it can end the element."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _sections(groups: list[Group], metric: str | None, results: Grid, target: float | None) -> list[Section]:
    metric_name = name_of(metric) if metric else "loss"
    late = any(group.has("ages") for group in groups)
    return [
        Section("results", "Results", _results_lead(groups, metric, target), table=results),
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


def _results_lead(groups: Sequence[Group], metric: str | None, target: float | None) -> str:
    return " ".join(_notes(groups, metric, target))


def _notes(groups: Sequence[Group], metric: str | None, target: float | None) -> list[str]:
    if _banded(groups):
        said = "Runs that differ only in their seed are one row: the mean ± the half width of its 95% interval."
    else:
        said = _ONE_SEED if len(groups) > 1 else "One seed: how much of it is chance, nobody knows."
    return [said, *([] if metric is None or target is None else filter(None, [evaluated(groups, metric)]))]


def _bands_lead(groups: Sequence[Group]) -> str:
    if not _banded(groups):
        return "One seed each: there are no bands."
    most = max(len(one.entries) for one in groups)
    if most < LEAST_FOR_BAND:
        return "Lines are means over seeds; two seeds are too few for a band."
    return (
        "Lines are means over seeds; bands, of three seeds and more, are the 95% intervals of the means (Student's t)."
    )


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
    if len(groups) == len(entries):
        facts.append("1 seed each" if len(entries) > 1 else "1 seed")
    else:
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


def _section(section: Section, files: Sequence[str]) -> str:
    lead = f'<p class="lead">{escape(section.lead)}</p>' if section.lead else ""
    cards = "".join(
        f'<figure class="chart {c.kind}" id="chart-{c.id}" data-chart="{c.id}"></figure>' for c in section.charts
    )
    legend = '<div class="legend" role="group" aria-label="Series"></div>' if section.charts else ""
    if section.own_legends:
        cards = cards.replace("<figure", f'<div class="one">{legend}<figure').replace("</figure>", "</figure></div>")
        legend = ""
    grid = f'{legend}<div class="grid">{cards}</div>' if cards else ""
    table = "" if section.table is None else as_html(section.table)
    if section.table is not None and files:
        links = ", ".join(f'<a href="{escape(file)}">{_KINDS[Path(file).suffix]}</a>' for file in files)
        table += f'<p class="note">This table as {links}.</p>'
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
