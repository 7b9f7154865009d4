"""DSGD: the tuned values are typed once more, from its tables, so that a slip of the pen in a file is seen."""

from __future__ import annotations

import pytest

from fastfed.app.sweep import plan

from .support import FILES, grid, head_of, planned, tables_of, values

DSGD = {
    "SGD": ("sgd", 0.1, None, None),
    "SGD, decay": ("sgd", 0.1, None, [0.5, 0.75]),
    "SGDM": ("momentum", 0.1, 0.9, None),
    "SGDM, decay": ("momentum", 0.1, 0.9, [0.5, 0.75]),
    "Adam": ("adam", 0.001, None, None),
    "Adagrad": ("adagrad", 0.01, None, None),
    "SPS": ("sps", None, None, None),
    "Delta-SGD": ("delta_sgd", 0.2, None, None),
}
DSGD_TABLE_1 = (
    "MNIST after 500 rounds: SGD 98.3 98.1 96.8; SGD with decay 97.8 98.0 97.2; SGDM 98.5 97.6 77.9; "
    "SGDM with decay 98.4 98.0 94.0; Adam 94.7 96.4 80.8; Adagrad 64.3 89.9 72.4; SPS 10.1 96.0 69.7; "
    "Delta-SGD 98.4 98.1 97.5.",
    "FMNIST after 1000 rounds: SGD 86.5 83.6 79.0; SGD with decay 86.3 ~84.7 79.3; SGDM 85.2 83.6 15.7; "
    "SGDM with decay 87.2 86.1 79.5; Adam 71.8 80.4 60.6; Adagrad 45.5 46.3 45.9; SPS 85.9 85.0 44.0; "
    "Delta-SGD 87.3 86.4 80.2.",
)
DSGD_ROUNDS = {"mnist": 500, "fmnist": 1000, "cifar10": 2000, "cifar100": 2000}
DSGD_FILES = [name for name in FILES if name.startswith("dsgd/table")]


@pytest.mark.parametrize("file", DSGD_FILES)
def test_dsgd_tables(file: str) -> None:
    found = values(file, "client.rule", "client.lr", "client.momentum", "schedule.client.at")
    assert found == DSGD
    rounds = DSGD_ROUNDS[file.split("_")[1] if "_" in file else "cifar10"]
    sampled = values(file, "data.clients", "run.rounds", "run.cohort", "run.epochs", "run.batch_size")
    assert set(sampled.values()) == {(100, rounds, 10, 1, 64)}
    delta = values(file, "client.gamma", "client.delta", "client.theta", "client.same_batch")["Delta-SGD"]
    assert delta == (2.0, 0.1, 1.0, True)
    assert values(file, "client.c", "client.f_star")["SPS"] == (0.5, 0.0)
    sizes = {examples for (examples,) in values(file, "data.examples").values() if isinstance(examples, int)}
    assert sizes == ({500} if "table3" not in file else set())


def test_dsgd_table_1() -> None:
    file = "dsgd/table1_mnist_fmnist"
    assert grid(file) == {"data.name": ["mnist", "fashion_mnist"], "data.alpha": [1.0, 0.1, 0.01]}
    for published in DSGD_TABLE_1:
        assert published in head_of(file)
    assert {(r, w) for r, w in values(file, "server.rule", "run.weights").values()} == {("sgd", "uniform")}


def test_dsgd_table_1_reads_each_data_set_where_it_is() -> None:
    data = ("mnist=/digits", "fashion_mnist=/clothes")
    configs = plan(FILES["dsgd/table1_mnist_fmnist"], data=data).configs
    read = [config.resolved()["data"] for config in configs.values()]
    assert {(one["name"], one["root"]) for one in read} == {("mnist", "/digits"), ("fashion_mnist", "/clothes")}


def test_dsgd_decays_follow_the_number_of_rounds() -> None:
    configs = planned("dsgd/table1_mnist_fmnist", "run.rounds=40")
    decays = [config.settings["client_schedule"] for name, config in configs.items() if "decay" in name]
    assert [[decay(r) for r in (19, 20, 29, 30)] for decay in decays] == [pytest.approx([1, 0.1, 0.1, 0.01])] * 2


def test_dsgd_changes_of_server_and_loss() -> None:
    fedadam = ("adam", 0.001, 0.9, 0.999, 1e-8, True)
    for data in ("mnist", "fmnist", "cifar10", "cifar100_resnet18"):
        keys = ("rule", "lr", "beta1", "beta2", "tau", "bias_correction")
        assert set(values(f"dsgd/table4_{data}", *(f"server.{key}" for key in keys)).values()) == {fedadam}
        assert {alpha for (alpha,) in values(f"dsgd/table4_{data}", "data.alpha").values()} == {0.1}
        assert set(values(f"dsgd/table6_{data}", "client.prox", "data.alpha").values()) == {(0.01, 0.01)}
    moon = values("dsgd/table5", "exchange.kind", "exchange.mu", "exchange.temperature", "data.alpha")
    assert set(moon.values()) == {("previous_models", 1.0, 0.5, 0.1)}
    for data in ("cifar10", "cifar100"):
        unequal = values(f"dsgd/table3_{data}", "run.weights", "data.alpha")
        assert set(unequal.values()) == {("examples", 0.1)}
        assert tables_of(f"dsgd/table3_{data}")["data"]["examples"] == [100, 500]
    assert grid("dsgd/figure4")["client.delta"] == [0.01, 0.1, 1.0]
    assert grid("dsgd/figure5")["run.epochs"] == [1, 2, 3]
