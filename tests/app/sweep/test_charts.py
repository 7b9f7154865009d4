"""What the pictures show, as data; and that they can be drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastfed.app.report.charts import Chart
from fastfed.app.sweep import charts, drawing
from fastfed.app.sweep.cells import GridCell

from .support import cell

RATES = [(c, s) for c in (0.1, 1.0) for s in (0.01, 0.1, 1.0)]


def grid_of(variant: str | None = None, **more: float) -> list[GridCell]:
    """The value is client.lr + server.lr / 100, less a penalty for every further setting."""
    return [
        cell({"server.lr": s, "client.lr": c, **more}, c / 2 + s / 100 - sum(more.values()), variant) for c, s in RATES
    ]


def test_heat_map_has_client_rates_across_and_server_rates_up() -> None:
    (found,) = charts.heat_maps(grid_of("A") + grid_of("B"), "test_accuracy")
    assert (found.id, found.across, found.up) == ("heat_map_server_lr_client_lr", "client.lr", "server.lr")
    assert [panel.title for panel in found.panels] == ["A", "B"]
    panel = found.panels[0]
    assert (panel.across, panel.up) == ([0.1, 1.0], [0.01, 0.1, 1.0])
    assert panel.values == [[c / 2 + s / 100 for c in (0.1, 1.0)] for s in (0.01, 0.1, 1.0)]
    assert panel.chosen == (2, 1)


def test_heat_maps_are_of_what_chooses_and_of_what_is_reported_and_mark_the_same_point() -> None:
    """Training loss falls with the rates while the accuracy does, too: the worst accuracy is chosen."""
    cells = [cell({"server.lr": s, "client.lr": c}, 1 - c / 2 - s / 100, loss=2 - c - s) for c, s in RATES]
    (reported,) = charts.heat_maps(cells, "test_accuracy")
    (chooses,) = charts.heat_maps(cells, "train_loss", of_choice=True)
    assert reported.panels[0].values[2][1] == pytest.approx(1 - 0.5 - 0.01)
    assert chooses.panels[0].values[2][1] == pytest.approx(0.0)
    assert reported.panels[0].chosen == chooses.panels[0].chosen == (2, 1)
    assert chooses.id == "heat_map_server_lr_client_lr_train_loss"


def test_the_best_server_rate_by_client_rate_leaves_out_what_learnt_nothing() -> None:
    """At client rate 1 the loss of 0.1 is least at server rate 0.1; at 10 every loss is within a tenth of the worst."""
    losses = {0.1: (1.0, 0.5, 0.7), 1.0: (0.9, 0.1, 0.8), 10.0: (2.3, 2.2, 2.1)}
    rates = (0.01, 0.1, 1.0)
    cells = [
        cell({"client.lr": c, "server.lr": s}, 0.5, "A", loss=loss)
        for c, row in losses.items()
        for s, loss in zip(rates, row, strict=True)
    ]
    (chart,) = charts.best_rates(cells)
    assert (chart.series[0].x, chart.series[0].y) == ([0.1, 1.0, 10.0], [0.1, 0.1, None])
    assert chart.x.log == chart.y.log == "on"
    assert charts.best_rates(grid_of()[:1]) == []


def test_heat_map_over_further_settings_is_of_the_best() -> None:
    found = charts.heat_maps([*grid_of(**{"server.tau": 0.2}), *grid_of(**{"server.tau": 0.1})], "test_accuracy")
    assert [(one.across, one.up) for one in found] == [
        ("client.lr", "server.lr"),
        ("client.lr", "server.tau"),
        ("server.lr", "server.tau"),
    ]
    assert found[0].panels[0].values[0] == [pytest.approx(0.05 + 0.0001 - 0.1), pytest.approx(0.5 + 0.0001 - 0.1)]


def test_heat_map_has_holes_where_nothing_came_out() -> None:
    cells = grid_of()[:-1]
    cells[0] = cell(cells[0].point.settings, [0.5, None])
    (found,) = charts.heat_maps(cells, "test_accuracy")
    values = found.panels[0].values
    assert values[0][0] is None  # a seed failed
    assert values[2][1] is None  # was never run
    assert sum(value is None for row in values for value in row) == 2


def test_a_task_of_which_nothing_came_has_no_heat_map() -> None:
    grid = [
        {"client.lr": c, "server.lr": s, "data.alpha": a} for c in (0.1, 1.0) for s in (0.1, 1.0) for a in (1.0, 2.0)
    ]
    found = [cell(one, 0.5 if one["data.alpha"] == 1.0 else None) for one in grid]
    assert [one.title for one in charts.heat_maps(found, "test_accuracy")] == ["alpha 1"]


def test_every_task_has_a_heat_map_of_its_own() -> None:
    found = charts.heat_maps([*grid_of(**{"data.alpha": 0.1}), *grid_of(**{"data.alpha": 1.0})], "test_accuracy")
    assert [one.title for one in found] == ["alpha 0.1", "alpha 1"]
    assert [one.id for one in found] == [f"heat_map_server_lr_client_lr_alpha_{word}" for word in ("0_1", "1")]


def test_sensitivity_takes_other_settings_at_their_best_and_levels_methods_without_it() -> None:
    cells = [cell({"server.tau": t, "client.lr": c}, c * t, "A") for t in (0.001, 0.1, 0.01) for c in (1.0, 2.0)]
    cells.append(cell({}, 0.15, "B"))
    by_tau = {chart.id: chart for chart in charts.sensitivities(cells, "test_accuracy")}["sensitivity_server_tau"]
    a, b = by_tau.series
    assert (a.label, a.x, a.y) == ("A", [0.001, 0.01, 0.1], [0.002, 0.02, 0.2])
    assert (b.label, b.x, b.y) == ("B", [0.001, 0.01, 0.1], [0.15] * 3)
    assert by_tau.x.log == "on"


def test_sensitivity_of_one_method_has_a_line_for_every_other_value() -> None:
    cells = [cell({"server.beta1": b, "client.lr": c}, [c * b, c * b], None) for b in (0.5, 0.75) for c in (0.25, 1.0)]
    found = {chart.id: chart for chart in charts.sensitivities(cells, "test_accuracy")}["sensitivity_server_beta1"]
    assert {one.label: one.y for one in found.series} == {"client.lr 0.25": [0.125, 0.1875], "client.lr 1": [0.5, 0.75]}
    assert [one.n for one in found.series] == [2, 2]
    assert found.x.log == "no"


def test_bands_of_shares_stay_between_nothing_and_all() -> None:
    cells = [cell({"client.lr": lr}, [0.1, 0.9, 0.5]) for lr in (1.0, 2.0)]
    (chart,) = charts.sensitivities(cells, "test_accuracy")
    assert (chart.series[0].low, chart.series[0].high) == ([0.0, 0.0], [1.0, 1.0])


def test_ranks_go_from_the_best_to_the_worst() -> None:
    cells = [cell({"client.lr": lr}, value, "A") for lr, value in ((1, 0.2), (2, 0.9), (3, None), (4, 0.5))]
    (by_rank,) = charts.ranks(cells, "test_accuracy")
    assert isinstance(by_rank, Chart)
    assert by_rank.series[0].x == [1, 2, 3, 4]
    assert by_rank.series[0].y == [0.9, 0.5, 0.2, None]
    (by_loss,) = charts.ranks(cells, "test_loss")
    assert isinstance(by_loss, Chart)
    assert by_loss.series[0].y == [0.2, 0.5, 0.9, None]


def test_few_points_have_no_ranks() -> None:
    assert charts.ranks([cell({"client.lr": lr}, lr) for lr in (0.1, 0.2)], "test_accuracy") == []


def test_ticks_are_powers_where_all_are() -> None:
    assert drawing.ticks([0.00316228, 0.01, 1], True) == ["$10^{-2.5}$", "$10^{-2}$", "$10^{0}$"]
    assert drawing.ticks([0.5, 0.9, 0.99], False) == ["0.5", "0.9", "0.99"]
    assert drawing.ticks([0.0, 0.1, 1.0], False) == ["0", "0.1", "1"]


def test_pictures_are_drawn_as_png_and_svg(tmp_path: Path) -> None:
    """One of each kind; a loss over orders of magnitude, with a hole."""
    loss = [cell({"client.lr": c, "server.lr": s}, c * s, metric="test_loss") for c, s in RATES[:-1]]
    pictures = [
        charts.heat_maps(loss, "test_loss")[0],
        charts.Curves("curves", "", "test_accuracy", [("A", [[(1, 0.5), (2, None)], []])]),
    ]
    written = drawing.save(pictures, tmp_path / "figures")
    assert [path.name for path in written] == [
        "heat_map_server_lr_client_lr.png",
        "heat_map_server_lr_client_lr.svg",
        "curves.png",
        "curves.svg",
    ]
    assert all(path.stat().st_size > 3000 for path in written)
