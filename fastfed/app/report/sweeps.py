"""What a sweep adds to a page: heat maps of two settings, and the metric by each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...record.evaluate import higher_is_better
from .charts import Chart
from .summary import is_share
from .words import name_of

if TYPE_CHECKING:
    from ..sweep.charts import HeatMap


@dataclass(frozen=True)
class Shades:
    """A heat map as the page's script draws it; `picture` is the same on paper."""

    id: str
    title: str
    x: str
    y: str
    z: str
    format: Literal["number", "percent"]
    rising: bool  # whether more is better
    panels: list[dict[str, Any]]
    picture: HeatMap
    note: str = "The frame is the setting that was chosen; grey is a setting without a finite value."
    kind: Literal["shades"] = "shades"


def pictures_of(homes: Sequence[Path]) -> tuple[list[Shades], list[Chart]]:
    """The heat maps and the lines of the sweeps in these directories."""
    from ..sweep import again, charts

    maps: list[Shades] = []
    lines: list[Chart] = []
    for number, home in enumerate(homes):
        mark = f"_{number + 1}" if number else ""
        for picture in charts.of_outcomes(again.outcomes_of(home)):
            if isinstance(picture, charts.HeatMap):
                maps.append(_shades(picture, f"{picture.id}{mark}"))
            elif isinstance(picture, Chart):
                lines.append(_of_its_own(replace(picture, id=f"{picture.id}{mark}")))
    return maps, lines


def _shades(picture: HeatMap, id: str) -> Shades:
    from ..sweep import charts, drawing

    x, y, z = charts.axis_name(picture.across), charts.axis_name(picture.up), name_of(picture.metric)
    panels = [
        {
            "title": panel.title,
            "across": drawing.ticks(panel.across, False),
            "up": drawing.ticks(panel.up, False),
            "values": panel.values,
            "chosen": panel.chosen,
        }
        for panel in picture.panels
    ]
    of_task = f", {picture.title}" if picture.title else ""
    title = f"{z[0].upper()}{z[1:]} by {x} and {y}{of_task}"
    kind: Literal["number", "percent"] = "percent" if is_share(picture.metric) else "number"
    return Shades(id, title, x, y, z, kind, higher_is_better(picture.metric), panels, picture)


def _of_its_own(chart: Chart) -> Chart:
    """With series that no other chart has: a legend switches those of its own chart."""
    return replace(chart, series=[replace(one, key=f"{chart.id}-{one.key}") for one in chart.series])
