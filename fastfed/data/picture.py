"""Pictures of who has what: classes by clients, and how many classes clients have."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from ..extras import needed
from .arguments import check_whole
from .dataset import Federated, labels_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOUR, _FAINT = "#2a6f97", "#adb5bd"
_CELL = 0.3  # inches between two clients, or two classes, where there is room for it
_SMALLEST = 0.17  # inches: below it bubbles are dots that cannot be told apart, and shades of cells are drawn instead
_WIDEST, _TALLEST = 22.0, 14.0  # inches, so that a few hundred clients still make a picture
_LABELS = 30  # ticks of an axis that can be read


def draw_labels(fed: Federated, path: str | os.PathLike[str] | None = None) -> Figure:
    """How many clients (up) have how many different labels (across): AFO's Figure 14. Saves the picture where `path` is
    given. Needs one label per example."""
    needed("matplotlib", extra="plots", by="a picture")
    from matplotlib.figure import Figure

    numbers = labels_per_client(fed)
    figure = Figure(figsize=(4.6, 3.2), layout="constrained")
    axes = figure.add_subplot()
    axes.bar(*np.unique(numbers, return_counts=True), width=0.9, color=_COLOUR)
    axes.set_xlabel("different labels of a client")
    axes.set_ylabel("clients")
    axes.set_title(f"{fed.name}: {len(fed):,} clients, median {np.median(numbers):g} labels", fontsize=10)
    _save(figure, path)
    return figure


def labels_per_client(fed: Federated) -> NDArray[np.int64]:
    """How many different labels each client has: (clients,)."""
    if not isinstance(fed, Federated):
        raise TypeError(f"fed: must be a Federated, whose clients have rows; got {type(fed).__name__}")
    labels = labels_of(fed.examples, fed.name)
    return np.array([len(labels[fed.rows_of(client)].unique()) for client in range(len(fed))])


def _save(figure: Figure, path: str | os.PathLike[str] | None) -> None:
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)


def draw_partition(fed: Federated, path: str | os.PathLike[str] | None = None, clients: int = 30) -> Figure:
    """How many examples of each class (up) the clients (across) have: the area of a bubble, or a shade where there are
    too many for bubbles. Sizes and totals beside.

    Shows `clients` clients, spread evenly over all; totals are of these. Saves the picture where `path` is given: its
    suffix says in which format. Needs one label per example.
    """
    needed("matplotlib", extra="plots", by="a picture")
    from matplotlib.figure import Figure

    if not isinstance(fed, Federated):
        raise TypeError(f"fed: must be a Federated, whose clients have rows; got {type(fed).__name__}")
    shown = _spread(len(fed), check_whole("clients", clients, least=1))
    counts = _counts(fed, shown)
    kinds = counts.shape[1]
    cell_wide = min(_CELL, (_WIDEST - 3) / len(shown))
    cell_tall = min(_CELL, (_TALLEST - 2.5) / kinds)
    figure = Figure(figsize=(max(5.0, 3 + cell_wide * len(shown)), max(3.5, 2.5 + cell_tall * kinds)))
    figure.set_layout_engine("constrained")
    grid = figure.add_gridspec(
        2, 2, width_ratios=[max(4.0, cell_wide * len(shown)), 1], height_ratios=[1, max(2.5, cell_tall * kinds)]
    )
    cells = figure.add_subplot(grid[1, 0])
    if min(cell_wide, cell_tall) < _SMALLEST:
        _draw_shades(cells, counts)
    else:
        _draw_bubbles(cells, counts, 72 * min(cell_wide, cell_tall))
    _frame(cells, counts)
    _draw_sizes(figure.add_subplot(grid[0, 0], sharex=cells), counts.sum(axis=1))
    _draw_totals(figure.add_subplot(grid[1, 1], sharey=cells), counts.sum(axis=0))
    _name_ticks(cells, fed, shown, kinds)
    of_all = f"{len(shown)} of {len(fed):,}" if len(shown) < len(fed) else f"{len(fed):,}"
    figure.suptitle(f"{fed.name}: {of_all} clients, {kinds} classes", fontsize=11)
    _save(figure, path)
    return figure


def _spread(clients: int, wanted: int) -> list[int]:
    """`wanted` of the clients, or all, from the first to the last."""
    return [int(i) for i in np.linspace(0, clients - 1, min(clients, wanted)).round()]


def _counts(fed: Federated, shown: list[int]) -> NDArray[np.int64]:
    """Examples of every class that each of the clients has: (shown, classes)."""
    labels = labels_of(fed.examples, fed.name)
    kinds = max(len(fed.class_names), int(labels.max()) + 1)
    return np.stack([torch.bincount(labels[fed.rows_of(i)], minlength=kinds).numpy() for i in shown])


def _draw_bubbles(axes: Axes, counts: NDArray[np.int64], widest: float) -> None:
    """The largest bubble is `widest` points across: neighbours touch at most."""
    client, kind = counts.nonzero()
    found = counts[client, kind]
    areas = 0.9 * widest**2 * found / max(1, counts.max())
    axes.scatter(client, kind, s=np.maximum(areas, 0.5), color=_COLOUR, linewidths=0)
    axes.set_xlabel(f"client (the largest bubble: {counts.max():,} examples)")
    axes.grid(color="#e9ecef", linewidth=0.5)
    axes.set_axisbelow(True)


def _draw_shades(axes: Axes, counts: NDArray[np.int64]) -> None:
    """By the root of the number, so that few examples can be told from none."""
    axes.imshow(np.sqrt(counts.T), cmap="Blues", aspect="auto", interpolation="nearest")
    axes.set_xlabel(f"client (the darkest cell: {counts.max():,} examples)")


def _frame(axes: Axes, counts: NDArray[np.int64]) -> None:
    axes.set_xlim(-0.7, len(counts) - 0.3)
    axes.set_ylim(-0.7, counts.shape[1] - 0.3)
    axes.set_ylabel("class")
    axes.spines[["top", "right"]].set_visible(False)


def _draw_sizes(axes: Axes, sizes: NDArray[np.int64]) -> None:
    axes.bar(range(len(sizes)), sizes, color=_FAINT, width=0.8)
    axes.set_ylabel("examples")
    axes.tick_params(axis="x", labelbottom=False, length=0)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_totals(axes: Axes, totals: NDArray[np.int64]) -> None:
    axes.barh(range(len(totals)), totals, color=_FAINT, height=0.8)
    axes.set_xlabel("examples")
    axes.tick_params(axis="y", labelleft=False, length=0)
    axes.locator_params(axis="x", nbins=2)
    axes.spines[["top", "right"]].set_visible(False)


def _name_ticks(axes: Axes, fed: Federated, shown: list[int], kinds: int) -> None:
    """Names where they are given, numbers otherwise; not more than can be read."""
    places = range(0, len(shown), -(-len(shown) // _LABELS))
    names = [fed.client_names[shown[i]] if fed.client_names else str(shown[i]) for i in places]
    long = max(map(len, names)) > 3
    axes.set_xticks(list(places), [_short(name) for name in names], rotation=90 if long else 0, fontsize=8)
    places = range(0, kinds, -(-kinds // _LABELS))
    names = [fed.class_names[i] if i < len(fed.class_names) else str(i) for i in places]
    axes.set_yticks(list(places), [_short(name) for name in names], fontsize=8)


def _short(name: str, longest: int = 16) -> str:
    return name if len(name) <= longest else f"{name[: longest - 1]}…"
