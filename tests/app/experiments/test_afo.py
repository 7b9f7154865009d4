"""AFO: the tuned values are typed once more, from its tables, so that a slip of the pen in a file is seen."""

from __future__ import annotations

from fractions import Fraction

import pytest

from .support import grid, half_powers, head_of, spec_of, tables_of, values

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
    summed = TASKS[number] in ("emnist_ae", "so_lr")  # over the batch, as in the authors' code
    for (reduction,) in values(file, "run.loss_reduction").values():
        assert reduction == ("batch" if summed else "mean")
    for name, figure in zip(AFO, TABLE_1[number].split(), strict=True):
        assert f"{name} {figure}" in head_of(file)
    assert (spec_of(file).window.rounds, spec_of(file).select) == (100, None)  # chosen by the training loss


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
