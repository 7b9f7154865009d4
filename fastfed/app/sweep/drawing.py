"""The pictures of a sweep on paper, as PNG and SVG, in the style of reports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...extras import needed
from ...record.evaluate import higher_is_better
from ..report import figures
from ..report.entries import MISSING, plain
from ..report.summary import is_share
from ..report.words import digits, name_of
from .charts import Curves, HeatMap, Matrix, Picture, axis_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = "viridis"  # light is good, also in grey and to those who see few colours
_NOTHING = "#d9dde1"
_MOST_WRITTEN = 10  # columns up to which every cell says its value


def save(pictures: Sequence[Picture], folder: Path) -> list[Path]:
    """Draws all pictures into a folder; the files."""
    matplotlib = needed("matplotlib", extra="plots", by="a sweep's figures")
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    with matplotlib.rc_context(figures.STYLE):
        for picture in pictures:
            written += [folder / name for name in figures.put(draw(picture), folder, picture.id)]
    return written


def save_as(picture: Picture, folder: Path, name: str, suffixes: Sequence[str]) -> list[str]:
    """Draws one picture in files of these suffixes; their names."""
    matplotlib = needed("matplotlib", extra="plots", by="a sweep's figures")
    with matplotlib.rc_context(figures.STYLE):
        return figures.put(draw(picture), folder, name, suffixes)


def draw(picture: Picture) -> Figure:
    """One picture as a figure."""
    if isinstance(picture, HeatMap):
        return _heat_map(picture)
    return _curves(picture) if isinstance(picture, Curves) else figures.draw(picture)


def title_of(picture: HeatMap | Curves | Any) -> str:
    """What a picture shows, in words."""
    if not isinstance(picture, HeatMap):
        return str(picture.title)
    name = name_of(picture.metric)
    return f"{name[0].upper()}{name[1:]} by {axis_name(picture.across)} and {axis_name(picture.up)}"


def _panels(number: int, width: float, height: float, most: int, share: bool = True) -> tuple[Figure, list[Axes]]:
    """Panels of one size, at most so many to a line; those that `share` their axes label the outer ones only."""
    from matplotlib.figure import Figure

    columns = min(number, most)
    lines = -(-number // columns)
    figure = Figure(figsize=(width * columns + 0.6, height * lines + 0.3), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False, sharex=share, sharey=share)
    flat = [one for line in axes for one in line]
    for spare in flat[number:]:
        spare.set_visible(False)
    return figure, flat[:number]


# ---- heat maps ------------------------------------------------------------------------------------------------------


def _heat_map(picture: HeatMap) -> Figure:
    wide, tall = (max(len(getattr(panel, side)) for panel in picture.panels) for side in ("across", "up"))
    size = 0.36 if wide <= _MOST_WRITTEN else 3.6 / wide
    share = len({(*panel.across, "by", *panel.up) for panel in picture.panels}) == 1
    figure, axes = _panels(len(picture.panels), max(1.6, size * wide), max(1.4, size * tall) + 0.4, 5, share)
    known = [v for panel in picture.panels for row in panel.values for v in row if v is not None]
    scale = _scale(picture.metric, known)
    as_powers = all(_are_powers(values) for panel in picture.panels for values in (panel.across, panel.up))
    for panel, one in zip(picture.panels, axes, strict=True):
        shown = _panel(one, panel, picture.metric, scale, as_powers)
        one.set_title(panel.title)
        if share:
            one.label_outer()
    figure.supxlabel(axis_name(picture.across), fontsize=9)
    figure.supylabel(axis_name(picture.up), fontsize=9)
    beside = axes[-1].inset_axes((1.06, 0.0, 0.07, 1.0))  # as high as the panel, which keeps its cells square
    figure.colorbar(shown, cax=beside, label=name_of(picture.metric), format=_format(picture.metric))
    if picture.title:
        figure.suptitle(picture.title, fontsize=9.5)
    return figure


def _scale(metric: str, known: Sequence[float]) -> dict[str, Any]:
    """Colours from the worst to the best; losses over orders of magnitude by their logarithms."""
    from matplotlib.colors import LogNorm

    colours = _COLOURS if higher_is_better(metric) else f"{_COLOURS}_r"
    low, high = min(known), max(known)
    if not is_share(metric) and low > 0 and high > 20 * low:
        return {"cmap": colours, "norm": LogNorm(low, high)}
    return {"cmap": colours, "vmin": low, "vmax": high if high > low else low + 1e-12}


def _panel(axes: Axes, panel: Matrix, metric: str, scale: dict[str, Any], as_powers: bool) -> Any:
    from matplotlib.patches import Rectangle

    values = [[math.nan if value is None else value for value in row] for row in panel.values]
    shown = axes.imshow(values, origin="lower", aspect="equal", **scale)
    axes.set_facecolor(_NOTHING)
    axes.grid(visible=False)
    axes.set_xticks(range(len(panel.across)), ticks(panel.across, as_powers))
    axes.set_yticks(range(len(panel.up)), ticks(panel.up, as_powers))
    axes.tick_params(length=2, labelsize=7)
    if len(panel.across) > 4:
        axes.tick_params(axis="x", labelrotation=45)
    if len(panel.across) <= _MOST_WRITTEN:
        _write_values(axes, panel, metric, shown)
    best = panel.chosen
    if best is not None:
        axes.add_patch(Rectangle((best[1] - 0.5, best[0] - 0.5), 1, 1, fill=False, edgecolor="#d1622b", linewidth=1.6))
    return shown


def _write_values(axes: Axes, panel: Matrix, metric: str, shown: Any) -> None:
    for i, row in enumerate(panel.values):
        for j, value in enumerate(row):
            if value is None:
                axes.text(j, i, MISSING, ha="center", va="center", fontsize=7, color="#8b939b")
                continue
            red, green, blue, _ = shown.cmap(shown.norm(value))
            ink = "#1c2024" if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else "white"
            text = f"{100 * value:.0f}" if is_share(metric) else digits(value, 2)
            axes.text(j, i, text, ha="center", va="center", fontsize=6.5, color=ink)


def ticks(values: Sequence[float], as_powers: bool) -> list[str]:
    """Powers of ten as such, as in papers; or as they are. One notation for both axes."""
    if as_powers:
        return [f"$10^{{{round(2 * math.log10(value)) / 2:g}}}$" for value in values]
    return [plain(float(f"{value:.3g}")) for value in values]


def _are_powers(values: Sequence[float]) -> bool:
    """Whether values are a scale of at least three half powers of ten."""
    powers = [2 * math.log10(value) for value in values if value > 0]
    return len(powers) == len(values) > 2 and all(abs(power - round(power)) < 1e-4 for power in powers)


def _format(metric: str) -> Any:
    from matplotlib.ticker import PercentFormatter

    return PercentFormatter(xmax=1, decimals=0) if is_share(metric) else None


# ---- curves ---------------------------------------------------------------------------------------------------------


def _curves(picture: Curves) -> Figure:
    import matplotlib

    figure, axes = _panels(len(picture.panels), 2.1, 1.9, 4)
    shades = matplotlib.colormaps["viridis_r"]
    for one, (title, curves) in zip(axes, picture.panels, strict=True):
        for rank in reversed(range(len(curves))):  # the best on top
            points = [(r, math.nan if value is None else value) for r, value in curves[rank]]
            share = 1 - rank / max(1, len(curves) - 1)
            colour = shades(0.08 + 0.87 * share)
            one.plot(*zip(*points, strict=True) if points else ((), ()), color=colour, linewidth=0.9)
        one.set_title(title)
        if is_share(picture.metric):
            one.yaxis.set_major_formatter(_format(picture.metric))
        one.label_outer()
    key = matplotlib.cm.ScalarMappable(matplotlib.colors.Normalize(0, 1), shades)
    beside = axes[-1].inset_axes((1.06, 0.0, 0.06, 1.0))
    bar = figure.colorbar(key, cax=beside, ticks=[0.08, 0.95])
    bar.ax.set_yticklabels(["worst", "best"], fontsize=7)
    figure.supxlabel("round", fontsize=9)
    figure.supylabel(name_of(picture.metric), fontsize=9)
    return figure
