"""The rows as a picture: how much of the streaming bound each op reaches, and how it fares against its peers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .rows import Row

_OURS, _LINE, _BEHIND = "#2a6f97", "#c1121f", "#adb5bd"


def save(rows: Sequence[Row], path: Path) -> None:
    """Two bar charts over the ops at the largest size of the run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FuncFormatter

    size = max(row.size for row in rows)
    ours = [row for row in rows if row.kind == "fastfed" and row.size == size][::-1]
    height = 1.9 + 0.33 * len(ours)
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, height), sharey=True, layout="constrained")
    places = range(len(ours))

    shares = [0.0 if row.of_bound is None else 100 * row.of_bound for row in ours]
    left.barh(places, shares, color=_OURS)
    left.axvline(100, color=_LINE, linewidth=1)
    left.set_xlim(0, max([115.0, *(share * 1.12 for share in shares)]))
    left.set_xlabel("percent of this machine's streaming bound (same arrays read and updated)")
    left.set_yticks(places, [row.op for row in ours])
    for place, row in zip(places, ours, strict=True):
        text = "not measured" if row.of_bound is None else f"{100 * row.of_bound:.0f} %"
        left.annotate(text, (shares[place], place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9)

    ratios = [row.ratio or 1.0 for row in ours]
    colours = [_OURS if ratio >= 1 else _BEHIND for ratio in ratios]
    right.barh(places, [ratio - 1 for ratio in ratios], left=1, color=colours)
    right.axvline(1, color=_LINE, linewidth=1)
    right.set_xscale("log", base=2)
    right.set_xlim(min([0.5, *ratios]) / 1.2, max([2.0, *ratios]) ** 1.35)  # room for the words behind the bars
    right.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    right.set_xlabel("times as fast as the best alternative (logarithmic)")
    for place, row in zip(places, ours, strict=True):
        text = "no alternative" if row.ratio is None else f"{row.ratio:.2f}x  {row.best}"
        end = max(ratios[place], 1.0)
        right.annotate(text, (end, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9)

    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(-0.7, len(ours) - 0.3)
    first = ours[0]
    figure.suptitle(
        f"FastFed kernels on {first.backend}, d = {size:,}, {_where(first)}, median of {first.rounds} rounds\n"
        f"{first.machine}",
        fontsize=11,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _where(row: Row) -> str:
    return f"{row.threads} threads" if row.device == "cpu" else row.device
