"""FedAda2: the tuned values are typed once more, from its tables, so that a slip of the pen in a file is seen."""

from __future__ import annotations

import pytest

import fastfed as ff

from .support import grid, planned, spec_of, tables_of, values

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
    delays = values("fedada2/figure7", "client.delay", "client.delay_unit", "server.rule", "client.rule")
    pairs = [(server, client) for server in ("adagrad", "adam") for client in ("adagrad", "adam")]
    assert list(delays.values()) == [
        (*delay, *pair) for delay in ((1, "step"), (2, "epoch"), (4, "epoch")) for pair in pairs
    ]
    for file in ("fedada2/figure3", "fedada2/private_tags", "fedada2/private_tags_ranked"):
        _assert_joint(file)
