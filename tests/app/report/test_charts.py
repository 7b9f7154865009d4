"""Which charts runs get, and what is in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fastfed.app.report import Entry, Group, gather, group
from fastfed.app.report import charts as drawn
from fastfed.app.report.charts import Chart, Partition
from fastfed.record.history import History
from tests.app.report.support import METHODS, rows


def of(method: str, number: int = 0, *, rounds: list[dict[str, Any]] | None = None, **known: Any) -> Group:
    return Group(method, number, (Entry(method, History(rounds or rows([0.5, 0.6, 0.7])), **known),))


def by_id(charts: list[Chart]) -> dict[str, Chart]:
    return {chart.id: chart for chart in charts}


def test_progress_by_round_by_bits_and_by_clock() -> None:
    history = [{**row, "clock": 90.0 * row["round"]} for row in rows([0.5, 0.6, 0.7])]
    found = by_id(drawn.progress([of("A"), of("B", 1, rounds=history)], "test_accuracy"))
    assert list(found) == [
        "test_accuracy_by_round", "test_accuracy_by_bits", "test_accuracy_by_clock",
        "test_loss_by_round", "test_loss_by_bits", "test_loss_by_clock", "train_loss_by_round",
    ]  # fmt: skip
    bits, clock = found["test_accuracy_by_bits"], found["test_accuracy_by_clock"]
    assert (bits.x.label, bits.series[0].x) == ("transmitted megabits", [12.0, 24.0, 36.0])
    assert (bits.y.format, bits.series[0].y) == ("percent", [0.5, 0.6, 0.7])
    assert [one.label for one in clock.series] == ["B"]  # the other has no clock
    assert (clock.x.label, clock.series[0].x) == ("simulated minutes", [1.5, 3.0, 4.5])


def test_runs_without_evaluation_show_their_training_loss() -> None:
    history = [{"round": 1, "train_loss": 0.5}, {"round": 2, "train_loss": 0.4}]
    found = drawn.progress([of("A", rounds=history)], "train_loss")
    assert [chart.id for chart in found] == ["train_loss_by_round"]
    assert found[0].series[0].y == [0.5, 0.4]


def test_step_sizes_are_drawn_where_any_moves() -> None:
    fixed = of("Fixed")
    assert drawn.step_sizes([fixed]) == []
    sizes = [{**row, "step_size": s, "step_size_min": s / 9, "step_size_max": 9 * s}
             for row, s in zip(rows([0.1, 0.2]), (0.2, 0.05), strict=True)]  # fmt: skip
    (chart,) = drawn.step_sizes([fixed, of("Delta-SGD", 1, rounds=sizes)])
    assert [one.label for one in chart.series] == ["Fixed", "Delta-SGD"]
    assert chart.series[1].y == [0.2, 0.05]
    assert chart.series[1].high == pytest.approx([1.8, 0.45])
    assert (chart.band, chart.y.log) == ("min to max", "on")


def test_what_a_tuner_set() -> None:
    tuned = [{**row, "client_lr": 0.1 * i, "epochs": 1.0 + i, "batch_size": 20.0 - i}
             for i, row in enumerate(rows([0.1, 0.2]), 1)]  # fmt: skip
    found = by_id(drawn.tuning([of("A"), of("FATHOM", 1, rounds=tuned)]))
    assert {name: chart.series[0].y for name, chart in found.items()} == {
        "client_lr_by_round": [0.1, 0.2], "epochs_by_round": [2.0, 3.0], "batch_size_by_round": [19.0, 18.0],
    }  # fmt: skip
    assert all([one.label for one in chart.series] == ["FATHOM"] for chart in found.values())


def test_ages_and_buffers_are_histograms() -> None:
    late = rows([0.1, 0.2])
    late[0] |= {"ages": [[0, 3], [2, 1]], "clients": 4, "age_mean": 0.5}
    late[1] |= {"ages": [[0, 1], [1, 3]], "clients": 5, "age_mean": 0.75}
    found = by_id(drawn.asynchrony([of("Sync"), of("FedBuff", 1, rounds=late)]))
    ages = found["ages"]
    assert (ages.kind, ages.categories) == ("bars", ["0", "1", "2"])
    assert ages.series[0].y == pytest.approx([4 / 8, 3 / 8, 1 / 8])
    buffers = found["cohorts"]
    assert [one.label for one in buffers.series] == ["FedBuff"]  # all rounds of the other have one size
    assert (buffers.categories, buffers.series[0].y) == (["4", "5"], [0.5, 0.5])
    assert found["age_mean_by_round"].series[0].y == [0.5, 0.75]
    assert drawn.asynchrony([of("Sync")]) == []


def test_wide_histograms_have_few_bins_and_lose_nothing() -> None:
    late = rows([0.1])
    late[0] |= {"ages": [[age, 1] for age in range(0, 95)]}
    ages = by_id(drawn.asynchrony([of("A", rounds=late)]))["ages"]
    assert ages.categories[:2] == ["0-4", "5-9"]
    assert len(ages.categories) <= 20
    assert sum(y or 0 for y in ages.series[0].y) == pytest.approx(1)


def test_privacy_by_round_and_what_it_bought() -> None:
    private = [{**row, "epsilon": 2.0 * row["round"]} for row in rows([0.3, 0.6])]
    found = by_id(drawn.privacy([of("A"), of("Private", 1, rounds=private)], "test_accuracy"))
    assert found["epsilon_by_round"].series[0].y == [2.0, 4.0]
    bought = found["test_accuracy_by_epsilon"].series
    assert [(one.label, one.x, one.y) for one in bought] == [("Private", [2.0, 4.0], [0.3, 0.6])]


def test_seconds_per_room_are_means_over_rounds() -> None:
    (chart,) = drawn.seconds([of("A"), of("B", 1, rounds=rows([0.1, 0.2], seconds_train=0.4, seconds_evaluate=0.1))])
    assert (chart.kind, chart.categories) == ("stacked", ["A", "B"])
    told = {one.label: one.y for one in chart.series}
    assert told["train"] == pytest.approx([200.0, 400.0])
    assert told["evaluate"] == pytest.approx([0.0, 100.0])
    assert "step" not in told


def test_refusals_only_where_there_were_any() -> None:
    assert drawn.refusals([of("A")]) == []
    (chart,) = drawn.refusals([of("A"), of("B", 1, rounds=rows([0.1, 0.2], skipped=3))])
    assert [(one.label, one.y) for one in chart.series] == [("B", [3.0, 3.0])]


# ---- partitions -----------------------------------------------------------------------------------------------------

TOLD = {"name": "digits", "clients": 3, "sizes": [4, 2, 9], "shown": [0, 1, 2], "classes": ["a", "b"],
        "counts": [[4, 0], [1, 1], [0, 9]]}  # fmt: skip


def test_a_partition_shows_who_has_what() -> None:
    (found,) = drawn.partitions([of("A", clients=TOLD), of("B", 1, clients=dict(TOLD))])
    assert (found.clients, found.classes, found.counts) == ([0, 1, 2], ["a", "b"], [[4, 0], [1, 1], [0, 9]])
    assert found.sizes == [4, 2, 9]
    assert found.note.endswith("Shown: all 3 clients. A client has 2 to 9 examples, the median 4.")


def test_different_data_is_shown_apart_and_named() -> None:
    other = {**TOLD, "counts": [[2, 2], [1, 1], [9, 0]]}
    found = drawn.partitions([of("A", clients=TOLD), of("B", 1, clients=other), of("C", 2, clients=TOLD)])
    assert [one.title for one in found] == ["Who has what: A, C", "Who has what: B"]
    assert len({one.id for one in found}) == 2


def test_of_many_clients_some_are_shown_from_the_first_to_the_last() -> None:
    shown = list(range(0, 1000, 10))
    told = {**TOLD, "clients": 1000, "sizes": [5] * 1000, "shown": shown, "counts": [[i, 1] for i in range(100)]}
    (found,) = drawn.partitions([of("A", clients=told)])
    assert len(found.clients) == 40
    assert (found.clients[0], found.clients[-1]) == (0, 990)
    assert found.counts[-1] == [99, 1]
    assert "40 of 1,000 clients, spread evenly. Every client has 5 examples." in found.note


def test_without_classes_sizes_are_shown() -> None:
    (found,) = drawn.partitions([of("A", clients={**TOLD, "counts": None, "classes": None})])
    assert (found.counts, found.sizes, found.classes) == ([], [4, 2, 9], [])


# ---- real runs ------------------------------------------------------------------------------------------------------


def test_every_kind_of_run_gets_its_charts(real_runs: Path) -> None:
    groups = group(gather([real_runs]))
    assert len(groups) == len(METHODS)
    named = {group.label: group for group in groups}
    assert [one.label for one in drawn.tuning(groups)[0].series] == ["FATHOM"]
    assert [one.label for one in drawn.asynchrony(groups)[0].series] == ["FedBuff"]
    assert [one.label for one in drawn.privacy(groups, "test_accuracy")[0].series] == ["private"]
    (steps,) = drawn.step_sizes(groups)
    by_label = {one.label: one for one in steps.series}
    assert by_label["FedAvg"].y == pytest.approx([0.1] * 8)
    assert len({round(y, 9) for y in by_label["Delta-SGD"].y if y is not None}) == 8
    (shown,) = drawn.partitions(groups)
    assert isinstance(shown, Partition)
    assert sum(shown.sizes) == sum(named["FedAvg"].entries[0].clients["sizes"])  # type: ignore[index]
    accuracy = by_id(drawn.progress(groups, "test_accuracy"))["test_accuracy_by_bits"]
    assert {one.label: one.n for one in accuracy.series if one.n > 1} == {"FedAvg": 3, "FedYogi": 3, "FedAda2": 3}
