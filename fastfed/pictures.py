"""Pictures of runs: a metric by round, one line per method."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .record import History

# Told apart also without colour vision: hues of different lightness, and a dash for every second line.
_COLOURS = ("#6c757d", "#212529", "#e07a1f", "#2a6f97", "#2a9d8f", "#b5179e", "#8a5a00", "#5a4fcf", "#d1495b")


def curves(histories: Mapping[str, History], metric: str, path: str | Path, title: str = "") -> Path:
    """Draws a metric of the history, such as "test_accuracy", by round; one line per name."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import PercentFormatter

    figure, axes = plt.subplots(figsize=(9, 5.2), layout="constrained")
    for number, (name, history) in enumerate(histories.items()):
        rows = [row for row in history if metric in row]
        rounds, values = [row["round"] for row in rows], [row[metric] for row in rows]
        style = "--" if number % 2 else "-"
        axes.plot(rounds, values, style, color=_COLOURS[number % len(_COLOURS)], linewidth=1.8, label=name)
    if metric.endswith(("accuracy", "recall_at_5")):
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    axes.set_xlabel("round")
    axes.set_ylabel(metric.replace("_", " "))
    axes.set_title(title, loc="left")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=140)
    plt.close(figure)
    return target
