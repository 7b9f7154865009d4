"""Pictures of runs: a metric by round, by transmitted bits or by simulated time, one line per method."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from .record import History, Row

# Told apart also without colour vision: hues of different lightness, and a dash for every second line.
_COLOURS = ("#6c757d", "#212529", "#e07a1f", "#2a6f97", "#2a9d8f", "#b5179e", "#8a5a00", "#5a4fcf", "#d1495b")


_AXES = {"round": "round", "bits": "transmitted gigabits", "clock": "simulated hours"}


def curves(
    histories: Mapping[str, History], metric: str, path: str | Path, title: str = "", by: Sequence[str] = ("round",)
) -> Path:
    """Draws a metric of the history, such as "test_accuracy", one line per name, in one panel for each of `by`:
    "round", "bits" (sent down and up until then) or "clock" (the simulated one)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import PercentFormatter

    figure, panels = plt.subplots(
        1,
        len(by),
        figsize=(9 if len(by) == 1 else 6.5 * len(by), 5.2),
        layout="constrained",
        sharey=True,
        squeeze=False,
    )
    for axes, axis in zip(panels[0], by, strict=True):
        for number, (name, history) in enumerate(histories.items()):
            points = [
                (x, row[metric]) for x, row in zip(_positions(history, axis), history, strict=True) if metric in row
            ]
            style = "--" if number % 2 else "-"
            colour = _COLOURS[number % len(_COLOURS)]
            axes.plot(*zip(*points, strict=True), style, color=colour, linewidth=1.8, label=name)
        if metric.endswith(("accuracy", "recall_at_5")):
            axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
        axes.set_xlabel(_AXES[axis])
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel(metric.replace("_", " "))
    panels[0][0].set_title(title, loc="left")
    panels[0][-1].legend(frameon=False)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=140)
    plt.close(figure)
    return target


def _positions(history: Iterable[Row], axis: str) -> list[float]:
    """Where the rows stand on an axis."""
    if axis == "bits":
        return [8e-9 * total for total in accumulate(row["bytes_down"] + row["bytes_up"] for row in history)]
    return [row["clock"] / 3600 if axis == "clock" else row["round"] for row in history]
