"""Which runs belong together, how they are called, and where they are found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fastfed.app.report import Entry, differing, gather, group, main_metric
from fastfed.app.runs import DamagedRun
from fastfed.record.history import History
from tests.app.report.support import rows, write_run


def entry(method: str = "fedavg", seed: int = 0, name: str = "", length: int = 2, **settings: Any) -> Entry:
    """A run with these settings; a double underscore is the dot between table and key."""
    tables: dict[str, Any] = {"method": method, "run": {"seed": seed}, "data": {"seed": 0}}
    for key, value in settings.items():
        table, _, last = key.rpartition("__")
        (tables.setdefault(table, {}) if table else tables)[last] = value
    history = History(rows([0.5] * length))
    return Entry(name or f"{method}-{seed}", history, {"method": method, "seed": seed}, tables)


def shapes(entries: list[Entry]) -> list[tuple[str, int]]:
    return [(one.label, len(one.entries)) for one in group(entries)]


def test_runs_that_differ_in_seeds_only_are_one_group() -> None:
    found = group([entry(seed=0), entry("fedyogi"), entry(seed=1), entry(seed=2, data__seed=5)])
    assert [(one.label, [e.seed for e in one.entries]) for one in found] == [("FedAvg", [0, 1, 2]), ("FedYogi", [0])]


def test_another_setting_is_another_group_named_by_it() -> None:
    found = shapes([entry(server__lr=0.1), entry(server__lr=1.0), entry(seed=1, server__lr=1.0)])
    assert found == [("FedAvg (server.lr 0.1)", 1), ("FedAvg (server.lr 1)", 2)]


def test_what_changes_no_result_separates_nobody() -> None:
    assert shapes([entry(seed=0, run__threads=1, name="a"), entry(seed=1, run__threads=8, data__root="/x")]) == [
        ("FedAvg", 2)
    ]


def test_the_data_may_have_the_seed_that_differs() -> None:
    assert shapes([entry(data__seed=0), entry(data__seed=1), entry(data__seed=2)]) == [("FedAvg", 3)]


@pytest.mark.parametrize("order", [1, -1])
def test_of_the_same_run_twice_the_one_that_came_further_counts(order: int) -> None:
    (found,) = group([entry(length=3, name="short"), entry(length=9, name="long")][::order])
    assert [one.name for one in found.entries] == ["long"]


def test_without_configurations_the_names_decide() -> None:
    histories = [Entry("mine", History(rows([0.1]))), Entry("mine", History(rows([0.2]))), Entry("yours", History())]
    assert shapes(histories) == [("mine", 2), ("yours", 1)]


def test_many_differences_are_told_by_the_name() -> None:
    many = {"server__a": 1, "server__b": 1, "server__c": 1, "server__d": 1}
    others = dict.fromkeys(many, 2)
    assert [one.label for one in group([entry(name="first", **many), entry(name="second", **others)])] == [
        "FedAvg (first)",
        "FedAvg (second)",
    ]


@pytest.mark.parametrize(
    ("method", "spelt"),
    [("delta_sgd", "Delta-SGD"), ("fedada2", "FedAda2"), ("client_centric", "Client-centric"), ("mine", "mine")],
)
def test_methods_are_spelt_as_in_their_papers(method: str, spelt: str) -> None:
    assert entry(method).method == spelt


def test_differing_settings_are_listed_with_none_where_a_run_has_none() -> None:
    found = differing([entry(server__lr=0.1, client__lr=1), entry(server__lr=0.2, client__lr=1, server__tau=1e-3)])
    assert found == {"server.lr": [0.1, 0.2], "server.tau": [None, 1e-3]}


def test_the_metric_is_what_most_runs_name_or_have() -> None:
    loss_only = History([{"round": 1, "train_loss": 0.5}])
    assert main_metric([entry()]) == "test_accuracy"
    assert main_metric([Entry("a", loss_only)]) == "train_loss"
    assert main_metric([Entry("a", loss_only), entry(), entry("fedyogi")]) == "test_accuracy"
    named = Entry("a", History([{"round": 1, "test_mse": 1.0, "test_loss": 1.0}]), {"metric": "test_loss"})
    assert main_metric([named]) == "test_loss"
    assert main_metric([Entry("empty", History())]) is None


def test_runs_are_gathered_from_any_depth_and_once(tmp_path: Path) -> None:
    write_run(tmp_path / "a", rows([0.1]))
    write_run(tmp_path / "deep" / "er" / "b", rows([0.2]))
    found = gather([tmp_path, tmp_path / "a", tmp_path / "deep"])
    assert [one.name for one in found] == ["a", "b"]
    assert found[1].history.last("test_accuracy") == 0.2
    assert found[0].config["method"] == "fedavg"


def test_where_no_run_is_the_error_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DamagedRun, match=r"nowhere: no such directory"):
        gather([tmp_path / "nowhere"])
    with pytest.raises(DamagedRun, match=r"no run there; looked for run\.json beside config\.toml"):
        gather([tmp_path])


def test_a_damaged_run_is_named(tmp_path: Path) -> None:
    write_run(tmp_path / "a", rows([0.1]))
    (tmp_path / "a" / "run.json").write_text("{")
    with pytest.raises(DamagedRun, match=r"a/run\.json: cannot be read"):
        gather([tmp_path])
