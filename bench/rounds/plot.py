"""Whole rounds as a picture: client updates a second, by workload and contender."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .rows import BATCHED, CHUNKED, FASTFED, PLAIN, VMAP, RoundRow

_COLOURS = {FASTFED: "#2a6f97", BATCHED: "#89c2d9", VMAP: "#adb5bd", CHUNKED: "#ced4da", PLAIN: "#6c757d"}
_ROOM = 0.84  # for the bars of a workload, where workloads are 1 apart


def save(rows: Sequence[RoundRow], path: Path) -> None:
    """A bar for each contender of each workload, on a logarithmic scale."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    workloads = list(dict.fromkeys(row.workload for row in rows))[::-1]
    figure, axes = plt.subplots(figsize=(11, 1.6 + 0.95 * len(workloads)), layout="constrained")
    shown = [name for name in _COLOURS if any(row.contender == name for row in rows)]
    height = _ROOM / len(shown)
    for number, contender in enumerate(shown):
        those = [row for row in rows if row.contender == contender and row.median is not None]
        places = [workloads.index(row.workload) + ((len(shown) - 1) / 2 - number) * height for row in those]
        speeds = [row.updates_per_second or 0.0 for row in those]
        axes.barh(places, speeds, height=height, color=_COLOURS[contender], label=contender)
        for place, speed, row in zip(places, speeds, those, strict=True):
            axes.annotate(
                _label(row), (speed, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9
            )
    fastest = max(row.updates_per_second or 1.0 for row in rows)
    slowest = min(row.updates_per_second for row in rows if row.updates_per_second)
    axes.set_xscale("log")
    axes.set_xlim(slowest / 3, fastest * 20)  # room for the words behind the bars
    axes.set_yticks(range(len(workloads)), workloads)
    axes.set_xlabel("client updates a second, server's step included (logarithmic)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.legend(loc="lower right", frameon=False)
    first = rows[0]
    figure.suptitle(f"FastFed rounds, {_where(first)}, median of {first.rounds} rounds\n{first.machine}", fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _where(row: RoundRow) -> str:
    return f"{row.threads} threads" if row.device == "cpu" else row.device


def _label(row: RoundRow) -> str:
    speed = row.updates_per_second or 0.0
    text = f"{speed:,.0f}" if speed >= 100 else f"{speed:.3g}"
    if row.contender == FASTFED and row.to_plain is not None:
        text += f"   {row.to_plain:.1f}x {PLAIN}"
        text += "" if row.to_vmap is None else f", {row.to_vmap:.1f}x {VMAP}"
        text += "" if row.to_chunked is None else f", {row.to_chunked:.1f}x {CHUNKED}"
    return text
