"""The picture of a partition: what is drawn is what clients have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fastfed as ff
from fastfed.data import Dataset, Examples, Federated
from fastfed.data.partition import dirichlet, iid, natural
from fastfed.data.picture import draw_partition, labels_per_client


def dealt(clients: int, classes: int = 4, **more: Any) -> Federated:
    labels = torch.arange(40 * clients) % classes
    return dirichlet(
        Dataset("made up", Examples(torch.zeros(len(labels), 1), labels), **more), clients, 0.3, examples=20
    )


def test_bubbles_are_the_counts() -> None:
    fed = dealt(5)
    cells, sizes, totals = draw_partition(fed).axes
    (bubbles,) = cells.collections
    labels: Any = fed.examples.targets
    areas = {
        tuple(map(round, place)): area for place, area in zip(bubbles.get_offsets(), bubbles.get_sizes(), strict=True)
    }
    counts = {
        (client, label): int((labels[fed.rows_of(client)] == label).sum()) for client in range(5) for label in range(4)
    }
    assert set(areas) == {place for place, count in counts.items() if count}
    largest = max(counts, key=lambda place: counts[place])
    for place, area in areas.items():
        assert area == pytest.approx(max(0.5, areas[largest] * counts[place] / counts[largest]))
    assert [bar.get_height() for bar in sizes.patches] == [20] * 5
    assert [bar.get_width() for bar in totals.patches] == [sum(counts[c, k] for c in range(5)) for k in range(4)]


def test_many_clients_are_shades() -> None:
    fed = dealt(200)
    cells, sizes, _ = draw_partition(fed, clients=200).axes
    (image,) = cells.images
    labels: Any = fed.examples.targets
    drawn = image.get_array() ** 2
    for client in (0, 77, 199):
        assert drawn[:, client].round().tolist() == torch.bincount(labels[fed.rows_of(client)], minlength=4).tolist()
    assert len(sizes.patches) == 200
    assert cells.get_ylim() == pytest.approx((-0.7, 3.7))  # the classes run upwards, as they do with bubbles


def test_shows_clients_from_the_first_to_the_last() -> None:
    figure = draw_partition(dealt(100), clients=4)
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["0", "33", "66", "99"]
    assert "4 of 100 clients" in figure.get_suptitle()


def test_names_are_shown_where_there_are_any(tmp_path: Path) -> None:
    data = Dataset(
        "made up",
        Examples(torch.zeros(6, 1), torch.tensor([0, 1, 1, 0, 0, 0])),
        client=torch.tensor([0, 0, 1, 1, 2, 2]),
        client_names=("ann", "a very long name indeed", "cid"),
        class_names=("shirt", "shoe", "bag"),
    )
    figure = draw_partition(natural(data), tmp_path / "deep" / "picture.png")
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["ann", "a very long nam…", "cid"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["shirt", "shoe", "bag"]
    assert (tmp_path / "deep" / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_leaves_matplotlibs_own_figures_alone() -> None:
    from matplotlib import pyplot as plt

    before = plt.get_fignums()
    draw_partition(dealt(3))
    assert plt.get_fignums() == before


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match=r"^clients: "):
        draw_partition(dealt(3), clients=0)
    with pytest.raises(TypeError, match=r"^fed: "):
        draw_partition("fed")  # type: ignore[arg-type]
    numbers = Dataset("numbers", Examples(torch.zeros(6, 1), torch.zeros(6, 1)))
    with pytest.raises(ValueError, match=r"^numbers: a partition by class needs"):
        draw_partition(iid(numbers, 2))


def test_labels_of_clients_are_counted_and_drawn(tmp_path: Path) -> None:
    fed = ff.data.dirichlet(ff.data.digits(), clients=12, alpha=0.2, seed=4, examples=20)
    labels = fed.examples.targets
    wanted = [len({int(labels[row]) for row in fed.rows_of(client).tolist()}) for client in range(12)]
    assert labels_per_client(fed).tolist() == wanted
    figure = ff.data.draw_labels(fed, tmp_path / "deep" / "labels.png")
    heights = {round(bar.get_x() + bar.get_width() / 2): bar.get_height() for bar in figure.axes[0].patches}
    assert heights == {number: wanted.count(number) for number in set(wanted)}
    assert (tmp_path / "deep" / "labels.png").stat().st_size > 3000
