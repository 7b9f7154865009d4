"""The papers by name: every file of experiments/ is what its first lines say, fits its data, and runs.

The tuned values are typed here once more, from the papers' own tables, so that a slip of the pen in a file is seen.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import fastfed as ff
from fastfed.app import runs
from fastfed.app.cli import app
from fastfed.app.config import Config
from fastfed.app.config import document as documents
from fastfed.app.config.source import check_fit
from fastfed.app.sweep import plan
from fastfed.app.sweep.spec import Spec, read_spec

ROOT = Path(__file__).parents[2]
HOME = ROOT / "experiments"
DATA = ROOT.parent / "shared" / "data"
FILES = {str(path.relative_to(HOME).with_suffix("")): path for path in sorted(HOME.rglob("*.toml"))}

SMALL = ("run.rounds=2", "run.evaluate_every=2", "data.clients=12", "data.examples=2", "data.test_examples=2")
RESIDUAL_MODELS = ("resnet18_gn", "resnet50_gn")
LARGE_MODELS = ("emnist_autoencoder", "emnist_cnn", "shakespeare_lstm", "stack_overflow_lr", "stack_overflow_nwp")
EVERY_VARIANT = (  # of these all variants are run, of the others the last one: their rules are the same
    "afo/qmnist_writers",
    "cc/fashion_mnist",
    "dsgd/table1_mnist_fmnist",
    "fathom/qmnist_starts",
    "fedada2/private_tags",
    "fedada2/table4_gld23k",
    "stragglers",
)


@cache
def tables_of(file: str) -> dict[str, Any]:
    """What a file says; nobody changes it."""
    return documents.read(FILES[file])


def spec_of(file: str) -> Spec:
    return read_spec(tables_of(file).get("sweep", {}))


def head_of(file: str) -> str:
    """The comment that a file begins with, as one line."""
    lines = FILES[file].read_text().splitlines()
    return " ".join(line.lstrip("# ") for line in lines[: next(i for i, line in enumerate(lines) if not line)])


def pinned(file: str) -> list[str]:
    """Overrides that leave one value on the axes that all variants have."""
    spec = spec_of(file)
    axes = [axis for axis in spec.all_axes() if axis in spec.axes or axis.key.endswith(".lr")]
    return [f"{axis.key}={axis.values[0]}" for axis in axes]


def planned(file: str, *sets: str, data: Sequence[str] = ("somewhere",)) -> dict[str, Config]:
    """The configuration of each variant, with the first value on every axis."""
    made = plan(FILES[file], sets=[*pinned(file), *sets], data=data)
    found: dict[str, Config] = {}
    for point in made.points:
        found.setdefault(point.variant or "", made.configs[point.name])
    return found


@cache
def resolved(file: str) -> dict[str, dict[str, Any]]:
    """The whole configuration of each variant, the axes at their first values."""
    return {name: config.resolved() for name, config in planned(file).items()}


def values(file: str, *keys: str) -> dict[str, tuple[Any, ...]]:
    """What the variants of a file have at dotted keys; None where they have none."""

    def at(tables: Any, key: str) -> Any:
        for part in key.split("."):
            tables = tables.get(part) if isinstance(tables, dict) else None
        return tables

    return {name: tuple(at(tables, key) for key in keys) for name, tables in resolved(file).items()}


def grid(file: str) -> dict[str, list[Any]]:
    return {axis.key: list(axis.values) for axis in spec_of(file).axes}


def half_powers(low: float, high: float) -> Any:
    """10^low, 10^(low + 1/2), ..., 10^high."""
    return pytest.approx([10 ** (low + step / 2) for step in range(int(2 * (high - low)) + 1)], rel=1e-5)


# ---- all of them ----------------------------------------------------------------------------------------------------


def test_the_readme_has_a_row_for_every_file_and_for_no_other() -> None:
    rows = re.findall(r"^\| `(\S+)\.toml` \|", (HOME / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(FILES)


PAPERS = {"afo": "AFO", "fedada2": "FedAda2", "dsgd": "DSGD", "fathom": "FATHOM", "cc": "CC"}


@pytest.mark.parametrize("file", FILES)
def test_a_file_says_what_it_reproduces_and_how_it_is_run(file: str) -> None:
    head = head_of(file)
    paper = PAPERS.get(file.partition("/")[0])
    assert head.startswith(paper if paper else "Of no paper")
    if paper:
        assert re.search(r"Tables? \d|Figures? \d|DSGD's point", head)
        assert "Published" in head or "paper" in head
    verb = "sweep" if "sweep" in tables_of(file) else "run"
    assert f"fastfed {verb} experiments/{file}.toml " in head
    assert " --data " in head


def _is_store(file: str) -> bool:
    return tables_of(file)["data"]["name"] == "open_store"


def _task(file: str) -> str:
    tables = tables_of(file)
    return str([tables["data"]["name"], tables["model"], "privacy" in tables])


def _is_last_of_its_task(file: str) -> bool:
    return file == [other for other in FILES if _task(other) == _task(file)][-1]


def _is_run(file: str) -> bool:
    """Of the files that have a large model and learn the same one is run; of residual networks the one whose loss needs
    more of the model than its output."""
    tables = tables_of(file)
    if _is_store(file) or tables["model"]["name"] in RESIDUAL_MODELS:
        return "exchange" in tables
    return file in EVERY_VARIANT or tables["model"]["name"] not in LARGE_MODELS or _is_last_of_its_task(file)


@pytest.mark.parametrize(
    "file", [name for name in FILES if not (_is_store(name) or _is_run(name)) and _is_last_of_its_task(name)]
)
def test_its_model_fits_the_stand_in(file: str) -> None:
    config = planned(file, *SMALL, data=("synthetic",)).popitem()[1]
    check_fit(config.make_model(), config.federation(), config.resolved()["run"]["loss"])


@pytest.mark.parametrize("file", [name for name in FILES if _is_run(name)])
def test_it_takes_its_first_rounds_on_the_stand_in(file: str) -> None:
    tables = tables_of(file)
    private = isinstance(tables["run"].get("cohort"), dict)  # a tenth of the clients a round
    sets = ["data.clients=40"] if private else [] if "timing" in tables else ["run.cohort=1"]
    configs = list(planned(file, *SMALL, *sets, data=("synthetic",)).values())
    fed = configs[-1].federation()
    for config in configs if file in EVERY_VARIANT else configs[-1:]:
        _takes_rounds(config.simulation(fed))


@pytest.mark.parametrize("file", [name for name in FILES if _is_store(name)])
def test_it_takes_its_first_rounds_on_features(file: str, tmp_path: Path) -> None:
    """The stand-in of a ViT's features: a store like that which its user would write."""
    model = tables_of(file)["model"]
    x, y = torch.randn(64, model["inputs"], generator=torch.Generator().manual_seed(0)), torch.arange(64)
    fed = ff.data.from_arrays(x, y % model["classes"], client=y % 8, test=(x[:8], y[:8]))
    ff.data.save_store(fed, tmp_path / "features")
    sets = ("run.rounds=2", "run.evaluate_every=2", "run.cohort=2")
    configs = list(planned(file, *sets, data=(str(tmp_path / "features"),)).values())
    for config in configs if file in EVERY_VARIANT else configs[-1:]:
        _takes_rounds(config.simulation())


def _takes_rounds(sim: ff.Simulation) -> None:
    start = sim.params.clone()
    history = sim.run(rounds=2, evaluate_every=2, progress=False)
    assert len(history) == 2
    assert len(history.column("test_loss")) == 1
    assert not torch.equal(sim.params, start)


# ---- AFO ------------------------------------------------------------------------------------------------------------

TASKS = ("cifar10", "cifar100", "emnist_ae", "emnist_cr", "shakespeare", "so_lr", "so_nwp")
AFO = ("FedAdagrad", "FedAdam", "FedYogi", "FedAvgM", "FedAvg")
TABLE_8 = """
-3/2 -1    -3/2 -2    -3/2 -2    -3/2 -1/2  -1/2 0
-1 -1      -3/2 0     -3/2 0     -3/2 0     -1 1/2
3/2 -3/2   1 -3/2     1 -3/2     1/2 0      1 0
-3/2 -1    -3/2 -5/2  -3/2 -5/2  -3/2 -1/2  -1 0
0 -1/2     0 -2       0 -2       0 -1/2     0 0
2 1        2 -1/2     2 -1/2     2 0        2 0
-1/2 -3/2  -1/2 -2    -1/2 -2    -1/2 0     -1/2 0
"""  # log10 of client and server learning rate, as printed
TABLE_9 = ("-2 -3 -3", "-2 -1 -1", "-3 -3 -3", "-2 -4 -4", "-1 -3 -3", "-2 -5 -5", "-4 -5 -5")
TABLE_7 = (20, 20, 20, 20, 4, 100, 16)
TABLE_1 = (
    "72.1 77.4 78.0 77.4 72.8",
    "47.9 52.5 52.4 52.4 44.7",
    "4.20 1.01 0.98 1.65 6.47",
    "85.1 85.6 85.5 85.2 84.9",
    "57.5 57.0 57.2 57.3 56.9",
    "67.1 65.8 65.9 36.9 30.0",
    "23.8 25.2 25.2 23.8 19.5",
)
ROUNDS = (4000, 4000, 3000, 1500, 1500, 1500, 1500)
COHORT = (10, 10, 10, 10, 10, 10, 50)


def _tuned(number: int) -> dict[str, tuple[float, float, float | None]]:
    """Client rate, server rate and tau of a task's five methods."""
    rates = [10 ** float(Fraction(power)) for power in TABLE_8.strip().splitlines()[number].split()]
    taus = [10.0 ** int(power) for power in TABLE_9[number].split()]
    return {name: (rates[2 * i], rates[2 * i + 1], taus[i] if i < 3 else None) for i, name in enumerate(AFO)}


def _assert_tuned(file: str, tuned: dict[str, tuple[float, float, float | None]]) -> None:
    found = values(file, "client.lr", "server.lr", "server.tau")
    assert list(found) == list(tuned)
    for name, wanted in tuned.items():
        assert found[name][2] is wanted[2] is None or found[name][2] == wanted[2]
        assert found[name][:2] == pytest.approx(wanted[:2], rel=1e-5)
    rules = {name: (m, s) for name, (m, s) in values(file, "method", "server.rule").items()}
    assert rules == {
        "FedAdagrad": ("fedadagrad", "adagrad"),
        "FedAdam": ("fedadam", "adam"),
        "FedYogi": ("fedyogi", "yogi"),
        "FedAvgM": ("fedavgm", "momentum"),
        "FedAvg": ("fedavg", "sgd"),
    }


@pytest.mark.parametrize("number", range(7), ids=TASKS)
def test_afo_table_1(number: int) -> None:
    file = f"afo/table1_{TASKS[number]}"
    _assert_tuned(file, _tuned(number))
    for found in values(file, "run.rounds", "run.cohort", "run.epochs", "run.batch_size", "run.weights").values():
        assert found == (ROUNDS[number], COHORT[number], 1, TABLE_7[number], "examples")
    for name, figure in zip(AFO, TABLE_1[number].split(), strict=True):
        assert f"{name} {figure}" in head_of(file)
    assert spec_of(file).last * tables_of(file)["run"]["evaluate_every"] == 100  # the last 100 rounds


def test_afo_table_11_decays_the_clients_rate() -> None:
    _assert_tuned("afo/table11", _tuned(TASKS.index("emnist_cr")))
    found = values("afo/table11", "schedule.client.kind", "schedule.client.every", "schedule.client.factor")
    assert set(found.values()) == {("staircase", 500, 0.1)}


FIGURES = {
    "figure5_cifar10": ((-3, 0.5), (-3, 1)),
    "figure6_cifar100": ((-3, 0.5), (-3, 1)),
    "figure7_emnist_ae": ((-1.5, 2), (-2, 1)),
    "figure8_emnist_cr": ((-3, 0.5), (-3, 1)),
    "figure9_shakespeare": ((-3, 0.5), (-3, 1)),
    "figure10_so_lr": ((-1, 3), (-2, 1.5)),
    "figure11_so_nwp": ((-3, 0.5), (-3, 1)),
}  # Appendix D.2


@pytest.mark.parametrize("figure", FIGURES)
def test_afo_heat_maps(figure: str) -> None:
    clients, servers = FIGURES[figure]
    assert grid(f"afo/{figure}") == {"client.lr": half_powers(*clients), "server.lr": half_powers(*servers)}
    assert {tau for (tau,) in values(f"afo/{figure}", "server.tau").values()} == {1e-3, None}
    table = tables_of(f"afo/table1_{figure.partition('_')[2]}")
    assert [tables_of(f"afo/{figure}")[part] for part in ("data", "model", "run")] == [
        table[part] for part in ("data", "model", "run")
    ]


def test_afo_on_free_data() -> None:
    found = grid("afo/qmnist_heatmap")
    assert found == {"client.lr": half_powers(-2.5, 0.5), "server.lr": half_powers(-2.5, 0.5)}
    assert sorted(values("afo/qmnist_heatmap", "run.rounds")) == sorted(AFO)
    tuned = _tuned(TASKS.index("shakespeare"))
    _assert_tuned("afo/shakespeare_roles", tuned)
    assert grid("afo/figure13_emnist_cr")["server.tau"] == [1e-5, 1e-4, 1e-3, 1e-2, 1e-1]


# ---- DSGD -----------------------------------------------------------------------------------------------------------

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


# ---- FATHOM ---------------------------------------------------------------------------------------------------------

STARTS = {
    "table1_femnist": ((0.1, 20, 10), {"lr": 0.05, "batch": (4, 256), "cohort": (100, 200)}, 0.86, 2000),
    "table1_stack_overflow": ((0.32, 16, 50), {"lr": 0.05, "batch": (4, 256), "cohort": (25, 200)}, 0.23, 1500),
}


@pytest.mark.parametrize("file", STARTS)
def test_fathom_table_1(file: str) -> None:
    (lr, batch, cohort), changes, target, rounds = STARTS[file]
    starts = [(lr, batch, cohort), (changes["lr"], batch, cohort)]
    starts += [(lr, other, cohort) for other in changes["batch"]] + [(lr, batch, other) for other in changes["cohort"]]
    found = values(f"fathom/{file}", "method", "client.lr", "run.batch_size", "run.cohort")
    assert list(found.values()) == [(method, *start) for start in starts for method in ("fathom", "fedavg")]
    assert set(values(f"fathom/{file}", "run.target.test_accuracy", "run.rounds", "run.epochs").values()) == {
        (target, rounds, 1)
    }


def test_fathom_tunes_as_the_paper_says() -> None:
    for file in (name for name in FILES if name.startswith("fathom/")):
        keys = ("tuner.gamma_lr", "tuner.gamma_epochs", "tuner.gamma_batch", "tuner.alpha", "server.lr")
        found = {v for name, v in values(file, *keys).items() if name.startswith("FATHOM")}
        assert found == {(0.01, 0.01, 0.1, 0.5, 1.0)}
    assert grid("fathom/qmnist_starts") == {"client.lr": [0.05, 0.1], "run.batch_size": [4, 20, 256]}


# ---- FedAda2 --------------------------------------------------------------------------------------------------------

JOINT = ("DJA", "joint, nothing transmitted", "FedAda2")
TABLE_3 = {  # c, eta_s, eta_l, tau_s, tau_l
    "FedAvg": (1.0, None, 20.0, None, None),
    "FedAdaGrad": (0.1, 1.0, 1.0, 1e-3, None),
    "DJA": (0.5, 1.0, 1.0, 1e-3, 1e-3),
    "joint, nothing transmitted": (0.5, 1.0, 0.1, 1e-5, 1e-3),
    "FedAda2": (0.1, 1.0, 0.1, 1e-5, 1e-3),
}
TABLES_4_TO_6 = {  # eta_s/eta_l, tau_s/tau_l in the papers' order of methods, and local epochs
    "table4_cifar100": ("-/1e-1 1e-2/1e-5 1e-3/1e-3 1e-3/1e-2 1e-3/1e-2 1e-3/1e-2",
                        "-/- 1e-10/- 1e-5/- 1e-5/1.0 1e-5/1.0 1e-5/1.0", 5, 100),
    "table4_gld23k": ("-/0.04 1e-2/1e-2 1e-3/1e-2 1e-3/1e-2 1e-3/1e-2 1e-3/1e-2",
                      "-/- 1e-5/- 1e-5/- 1e-5/0.1 1e-5/0.1 1e-5/0.1", 5, 203),
    "table6_restricted": ("-/7e-2 1e-2/1e-2 1e-3/1e-1 1e-3/1e-2 1e-3/1e-2 1e-3/1e-1",
                          "-/- 1e-9/- 1e-5/- 1e-5/1e-3 1e-5/1e-3 1e-5/1e-1", 1, 203),
    "table6_sufficient": ("-/1e-2 1e-2/1e-2 1e-3/1e-2 1e-3/1e-3 1e-3/1e-3 1e-3/1e-3",
                          "-/- 1e-7/- 1e-7/- 1e-7/1e-1 1e-7/1e-1 1e-7/1e-1", 20, 203),
}  # fmt: skip


def _assert_joint(file: str) -> None:
    """Who transmits the preconditioner and who compresses it."""
    kinds = {"DJA": (True, False), "joint, nothing transmitted": (False, False), "FedAda2": (False, True)}
    for name, config in planned(file).items():
        if name in kinds:
            sent = config.settings["exchange"] is not None
            compressed = isinstance(config.settings["client"], ff.clients.SM3)
            assert (sent, compressed) == kinds[name]
            assert config.settings["server"].second_moment_of == "delta"
            assert config.settings["weights"] == "uniform"


def test_fedada2_table_3() -> None:
    keys = ("privacy.clip", "server.lr", "client.lr", "server.tau", "client.eps")
    found = values("fedada2/table3", *keys)
    assert {name: (c, None if name == "FedAvg" else s, *rest) for name, (c, s, *rest) in found.items()} == TABLE_3
    budget = values("fedada2/table3", "privacy.noise", "privacy.delta", "run.rounds", "data.clients")
    assert set(budget.values()) == {(1.0, 0.0025, 500, 400)}
    assert tables_of("fedada2/table3")["run"]["cohort"] == {"poisson": 0.1}
    _assert_joint("fedada2/table3")


@pytest.mark.parametrize("file", TABLES_4_TO_6)
def test_fedada2_tables_4_to_6(file: str) -> None:
    rates, taus, epochs, classes = TABLES_4_TO_6[file]
    names = ("FedAvg", "FedAdaGrad", "FedAdam", *JOINT)
    found = values(f"fedada2/{file}", "server.lr", "client.lr", "server.tau", "client.eps")
    assert list(found) == list(names)
    for name, rate, tau in zip(names, rates.split(), taus.split(), strict=True):
        wanted = [None if word == "-" else float(word) for word in (*rate.split("/"), *tau.split("/"))]
        wanted[0] = wanted[0] or 1.0  # plain averaging
        assert list(found[name]) == wanted, name
    common = values(f"fedada2/{file}", "run.epochs", "run.batch_size", "client.warmup", "model.classes")
    assert set(common.values()) == {(epochs, 32, 10, classes)}
    betas = values(f"fedada2/{file}", "server.beta1", "server.beta2", "client.beta1", "client.beta2")
    assert betas["DJA"] == betas["joint, nothing transmitted"] == (0.9, 0.999, 0.9, 0.999)
    _assert_joint(f"fedada2/{file}")


def test_fedada2_grids() -> None:
    spec = spec_of("fedada2/figure3")
    grids = {variant.name: {axis.key: list(axis.values) for axis in variant.axes} for variant in spec.variants}
    rates, taus = [0.001, 0.01, 0.1, 0.5, 1.0], [1e-7, 1e-5, 1e-3]
    assert grid("fedada2/figure3") == {"privacy.clip": [0.1, 0.5, 1.0]}
    assert grids["FedAvg"] == {"client.lr": [*rates, 5.0, 20.0, 40.0, 80.0, 160.0]}
    assert grids["FedAdaGrad"] == {"client.lr": rates, "server.lr": rates, "server.tau": taus}
    for name in JOINT:
        assert grids[name] == {"client.lr": rates, "server.lr": rates, "client.eps": taus, "server.tau": taus}
    lrs, taus = [1e-4, 1e-3, 1e-2, 1e-1], [1e-7, 1e-5, 1e-3, 1e-1, 1.0]
    assert grid("fedada2/figure6") == {"client.lr": lrs, "server.lr": lrs, "client.eps": taus, "server.tau": taus}
    assert len(spec_of("fedada2/figure6").variants) == 12  # the paper's joint methods
    few = {"client.eps": [1e-3, 1e-1, 1.0], "server.tau": [1e-5, 1e-3, 1e-1]}
    assert grid("fedada2/figure7") == {"client.lr": lrs, "server.lr": lrs, **few}
    delays = values("fedada2/figure7", "client.delay", "client.delay_unit")
    assert list(delays.values()) == [(1, "step"), (2, "epoch"), (4, "epoch")]
    for file in ("fedada2/figure3", "fedada2/private_tags", "fedada2/private_tags_ranked"):
        _assert_joint(file)


# ---- CC -------------------------------------------------------------------------------------------------------------

RULES = {"CC-FedSGD": "sgd", "CC-FedAdagrad": "adagrad", "CC-FedAdam": "adam", "CC-FedAMS": "ams"}
CC_FILES = [name for name in FILES if name.startswith("cc/")]


@pytest.mark.parametrize("file", CC_FILES)
def test_cc_defaults(file: str) -> None:
    found = values(file, "server.rule", "server.beta1", "server.beta2")
    for name, (rule, beta1, beta2) in found.items():
        assert rule == RULES[name]
        assert beta1 == (None if rule == "sgd" else 0.0 if file.endswith("beta") else 0.9)
        assert beta2 == (None if rule in ("sgd", "adagrad") else 0.0 if file.endswith("gamma") else 0.99)
    delay = 10 if file.endswith("figure2a") else 5
    randomness = 3 if file.endswith("figure2b") else 2
    keys = ("timing.buffer", "timing.max_delay", "timing.epochs", "timing.randomness", "data.clients")
    assert set(values(file, *keys).values()) == {(5, delay, 3, randomness, 100)}
    assert {weights for (weights,) in values(file, "run.weights").values()} == {"uniform"}


def test_cc_grids() -> None:
    for file in CC_FILES:
        if "figure3" not in file:
            assert grid(file)["server.lr"] == half_powers(-3, 1), file
    assert list(values("cc/fashion_mnist", "run.rounds")) == list(RULES)
    assert values("cc/fashion_mnist", "data.alpha", "run.rounds", "model.name")["CC-FedAMS"] == (0.5, 300, "lenet")
    assert grid("cc/figure1")["data.alpha"] == [3.0, 0.5]
    assert grid("cc/figure2b")["timing.randomness"] == [3, 2, 1]
    assert grid("cc/figure3_beta") == {"server.beta1": [0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 0.995]}
    assert grid("cc/figure3_tau") == {"server.tau": half_powers(-4, -1)}
    assert grid("cc/figure3_gamma") == {"server.beta2": [0.0, 0.5, 0.7, 0.9, 0.95, 0.99]}


# ---- on real data ---------------------------------------------------------------------------------------------------

REAL = {
    "afo/qmnist_heatmap": ["qmnist_writers", "mnist"],
    "cc/fashion_mnist": ["fmnist"],
    "dsgd/table1_mnist_fmnist": ["mnist"],
    "dsgd/table4_fmnist": ["fmnist"],
    "fedada2/private_tags": ["stackexchange"],
}


@pytest.mark.parametrize("file", REAL)
def test_its_model_fits_its_real_data(file: str) -> None:
    folders = [DATA / name for name in REAL[file]]
    if not all(folder.is_dir() for folder in folders):
        pytest.skip(f"the real data is not here: {', '.join(map(str, folders))}")
    sim = list(planned(file, "run.rounds=1", data=tuple(map(str, folders))).values())[-1].simulation()
    history = sim.run(rounds=1, evaluate_every=0, progress=False)
    assert history.column("train_loss")[0] < 5.0
    assert sim.executor.name == "native"


def test_one_command_runs_a_table_on_real_data(tmp_path: Path) -> None:
    folder = DATA / "stackexchange"
    if not folder.is_dir():
        pytest.skip(f"the real data is not here: {folder}")
    command = ["sweep", str(FILES["afo/stack_exchange"]), "--data", str(folder), "--out", str(tmp_path / "tags")]
    said = CliRunner().invoke(app, [*command, "--set", "run.rounds=2", "--set", "run.evaluate_every=2"])
    assert said.exit_code == 0, said.output
    found = runs.find(tmp_path / "tags")
    assert sorted(runs.read(path).name for path in found) == ["FedAdagrad", "FedAdam", "FedAvg"]
    assert {len(runs.read(path).history) for path in found} == {2}
