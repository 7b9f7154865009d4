"""`bench peers` as a picture: client updates a second, by workload and framework."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..rounds.rows import FASTFED
from .line_up import ENTRANTS
from .rows import PeerRow

_COLOURS = ("#2a6f97", "#e09f3e", "#9e2a2b", "#6a994e", "#b08968", "#6c757d", "#adb5bd", "#b5a7d6")
_ROOM = 0.86  # for the bars of a workload, where workloads are 1 apart


def save(rows: Sequence[PeerRow], path: Path) -> None:
    """A bar for each framework of each workload, on a logarithmic scale; how far behind FastFed it is beside it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    timed = [row for row in rows if row.updates_per_second is not None]
    if not timed:
        raise ValueError("nothing was timed: there is nothing to draw")
    workloads = list(dict.fromkeys(row.workload for row in timed))[::-1]
    shown = [name for name in (FASTFED, *ENTRANTS) if any(row.peer == name for row in timed)]
    figure, axes = plt.subplots(figsize=(10, 1.4 + 1.35 * len(workloads)), layout="constrained")
    height = _ROOM / len(shown)
    for number, (peer, colour) in enumerate(zip(shown, _COLOURS, strict=False)):
        those = [row for row in timed if row.peer == peer]
        places = [workloads.index(row.workload) + ((len(shown) - 1) / 2 - number) * height for row in those]
        speeds = [row.updates_per_second or 0.0 for row in those]
        axes.barh(places, speeds, height=height, color=colour, label=peer)
        for place, speed, row in zip(places, speeds, those, strict=True):
            axes.annotate(
                _label(row), (speed, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8
            )
    every = [row.updates_per_second or 1.0 for row in timed]
    axes.set_xscale("log")
    axes.set_xlim(min(every) / 3, max(every) * 6)  # room for the words behind the bars
    axes.set_yticks(range(len(workloads)), workloads)
    axes.set_xlabel("client updates a second in whole rounds (logarithmic)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.legend(loc="outside lower center", ncols=min(4, len(shown)), frameon=False)
    first = rows[0]
    where = f"{first.threads} threads, median of {first.turns} turns\n{first.machine}"
    figure.suptitle(f"FastFed beside other frameworks, {where}", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _label(row: PeerRow) -> str:
    speed = row.updates_per_second or 0.0
    text = f"{speed:,.0f}" if speed >= 100 else f"{speed:.3g}"
    return text if row.peer == FASTFED or row.ratio is None else f"{text}   FastFed {row.ratio:.3g}x"
