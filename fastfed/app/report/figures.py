"""The charts on paper: one figure each, as PNG and SVG, at the width of a column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...extras import needed
from .charts import Chart, ChartAxis, Partition
from .series import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = ("png", "svg")
# As on the page: told apart by hue, lightness and marker.
_COLOURS = ("#1f5fa8", "#d1622b", "#1f8a6a", "#7b4fb3", "#a37a00", "#c0397b", "#50575e", "#1593a8")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 2)), (0, (6, 2, 1.5, 2)))  # for every eight lines the next
_MARKERS = ("o", "s", "^", "D", "v", "x", "+", "_")
_HATCHES = ("", "////", "\\\\\\\\", "---")
_FAINT, _INK = "#adb5bd", "#1c2024"
STYLE: Any = {
    "font.size": 9.0,
    "axes.labelsize": 9.0,
    "axes.titlesize": 9.5,
    "legend.fontsize": 8.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8b939b",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#eceef0",
    "grid.linewidth": 0.7,
    "pdf.fonttype": 42,  # TrueType, which journals ask for; the default, Type 3, they refuse
    "ps.fonttype": 42,
    "svg.hashsalt": "fastfed",  # the same picture is the same file
}


def save(charts: Iterable[Chart | Partition], folder: Path, suffixes: Sequence[str] = SUFFIXES) -> dict[str, list[str]]:
    """Draws every chart into the folder, in a file of each suffix; the names of the files by the charts' ids."""
    files: dict[str, list[str]] = {}
    if not suffixes:
        return files
    matplotlib = needed("matplotlib", extra="plots", by="a report's figures")
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        for chart in charts:
            files[chart.id] = put(draw(chart), folder, chart.id, suffixes)
    return files


def put(figure: Figure, folder: Path, name: str, suffixes: Sequence[str] = SUFFIXES) -> list[str]:
    """Writes a figure in a file of each suffix, without a date; their names."""
    undated: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    for suffix in suffixes:
        figure.savefig(folder / f"{name}.{suffix}", dpi=220, metadata=undated.get(suffix))
        figure.set_layout_engine("none")  # laid out for the first file; the next need not do it again
    return [f"{name}.{suffix}" for suffix in suffixes]


def draw(chart: Chart | Partition) -> Figure:
    """One chart as a figure."""
    if isinstance(chart, Partition):
        return _partition(chart)
    return {"lines": _lines, "bars": _bars, "stacked": _stacked}[chart.kind](chart)


def _figure(width: float = 4.6, height: float = 3.2) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def _lines(chart: Chart) -> Figure:
    figure, axes = _figure(*(chart.size or (4.6, 3.2 + 0.16 * max(0, len(chart.series) - 6))))
    for series in chart.series:
        _line(axes, series)
    _scale(axes, "x", chart.x, chart.x.log == "on")
    _scale(axes, "y", chart.y, chart.y.log == "on")
    if chart.y.limits is not None:
        axes.set_ylim(*chart.y.limits)
    elif chart.band != "min to max" and chart.y.log != "on":
        axes.set_ylim(*_heights(chart, axes.get_ylim()))
    _legend(figure, axes, chart)
    return figure


def _heights(chart: Chart, drawn: tuple[float, float]) -> tuple[float, float]:
    """Bands over two seeds are wide: they may double the axis, not more, and never reach where no value can be."""
    values = [y for series in chart.series for y in series.y if y is not None]
    low, high = min(values), max(values)
    beyond = (high - low) / 2 or drawn[1] - drawn[0]
    margin = (high - low) * 0.04
    floor = -margin if low >= 0 else low - beyond
    ceiling = 1 + margin if chart.y.format == "percent" else high + beyond
    return max(drawn[0], low - beyond, floor), min(drawn[1], high + beyond, ceiling)


def _line(axes: Axes, series: Series) -> None:
    style, colour = series.style, _colour(series.style)
    y = [float("nan") if value is None else value for value in series.y]
    label = f"{series.label} (n = {series.n})" if series.n > 1 else series.label
    axes.plot(
        series.x,
        y,
        color=colour,
        linestyle=_DASHES[style // 8 % 4],
        marker=_MARKERS[style % 8],
        markersize=3.5,
        markevery=max(1, round(len(y) / 7)),
        linewidth=1.3,
        label=label,
    )
    if series.low is not None and series.high is not None:
        low, high = ([float("nan") if v is None else v for v in band] for band in (series.low, series.high))
        axes.fill_between(series.x, low, high, color=colour, alpha=0.15, linewidth=0)


def _bars(chart: Chart) -> Figure:
    figure, axes = _figure(*(chart.size or (4.6, 3.2)))
    width = 0.82 / max(1, len(chart.series))
    for i, series in enumerate(chart.series):
        places = [x - 0.41 + width * (i + 0.5) for x in series.x]
        colour, hatch = _colour(series.style), _HATCHES[series.style % 4]
        heights = [value or 0.0 for value in series.y]
        hatched = {"facecolor": _lighter(colour), "edgecolor": colour, "hatch": hatch}
        plain: dict[str, Any] = hatched if hatch else {"color": colour}
        axes.bar(places, heights, width * 0.94, label=series.label, linewidth=0.5, **plain)
    every = -(-len(chart.categories) // 10)
    axes.set_xticks(range(0, len(chart.categories), every), chart.categories[::every])
    axes.grid(visible=False, axis="x")
    axes.set_xlabel(chart.x.label)
    _scale(axes, "y", chart.y, False)
    _legend(figure, axes, chart)
    return figure


def _stacked(chart: Chart) -> Figure:
    figure, axes = _figure(height=1.3 + 0.3 * len(chart.categories))
    start = [0.0] * len(chart.categories)
    for series in chart.series:
        widths = [value or 0.0 for value in series.y]
        axes.barh(
            range(len(widths)), widths, left=start, height=0.7, color=_colour(series.style), label=series.label,
            edgecolor="white", linewidth=0.4,
        )  # fmt: skip
        start = [a + b for a, b in zip(start, widths, strict=True)]
    axes.set_yticks(range(len(chart.categories)), chart.categories)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(chart.y.label)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure


def _partition(chart: Partition) -> Figure:
    kinds, clients = len(chart.classes), len(chart.clients)
    from matplotlib.figure import Figure

    tall = 0.9 + min(4.5, 0.19 * kinds) if kinds else 1.8
    figure = Figure(figsize=(max(3.6, min(7.2, 1.0 + 0.17 * clients)), tall + 0.7), layout="constrained")
    if not kinds:
        _sizes(figure.add_subplot(), chart)
        return figure
    grid = figure.add_gridspec(2, 1, height_ratios=[1, max(2.5, 0.35 * kinds)])
    cells = figure.add_subplot(grid[1])
    largest = max(1, max(max(row) for row in chart.counts))
    points = [(i, k, n) for i, row in enumerate(chart.counts) for k, n in enumerate(row) if n]
    widest = 72 * min(0.17, min(4.5, 0.19 * kinds) / kinds)  # points between two neighbours
    areas = [widest**2 * n / largest for _, _, n in points]
    cells.scatter([p[0] for p in points], [p[1] for p in points], s=areas, color=_COLOURS[0], linewidths=0)
    cells.set_xlim(-0.7, clients - 0.3)
    cells.set_ylim(-0.7, kinds - 0.3)
    _client_ticks(cells, chart)
    every = -(-kinds // 25)
    cells.set_yticks(range(0, kinds, every), chart.classes[::every])
    cells.set_ylabel("class")
    above = figure.add_subplot(grid[0], sharex=cells)
    _sizes(above, chart)
    above.tick_params(axis="x", labelbottom=False, length=0)
    above.set_xlabel("")
    return figure


def _sizes(axes: Axes, chart: Partition) -> None:
    axes.bar(range(len(chart.sizes)), chart.sizes, color=_FAINT, width=0.75)
    axes.set_ylabel("examples")
    axes.grid(visible=False, axis="x")
    _client_ticks(axes, chart)


def _client_ticks(axes: Axes, chart: Partition) -> None:
    every = -(-len(chart.clients) // 14)
    axes.set_xticks(range(0, len(chart.clients), every), [str(i) for i in chart.clients[::every]])
    axes.set_xlabel("client")


def _scale(axes: Axes, which: str, axis: ChartAxis, log: bool) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    getattr(axes, f"set_{which}label")(axis.label)
    own = getattr(axes, f"{which}axis")
    if log:
        getattr(axes, f"set_{which}scale")("log", nonpositive="mask")
    if axis.format == "percent":
        own.set_major_formatter(PercentFormatter(xmax=1, decimals=None))
    elif axis.format == "whole":
        own.set_major_locator(MaxNLocator(integer=True))


def _legend(figure: Figure, axes: Axes, chart: Chart) -> None:
    """Inside where it is small; below the axes where it would cover the lines."""
    if len(chart.series) <= 4:
        axes.legend(frameon=False)
    else:
        figure.legend(loc="outside lower center", ncols=2 if len(chart.series) <= 8 else 3, frameon=False)


def _colour(style: int) -> str:
    return _COLOURS[style % len(_COLOURS)]


def _lighter(colour: str) -> str:
    parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(255 - 0.35 * (255 - part)):02x}" for part in parts)
