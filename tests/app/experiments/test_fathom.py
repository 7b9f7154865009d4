"""FATHOM: the tuned values are typed once more, from its tables, so that a slip of the pen in a file is seen."""

from __future__ import annotations

import pytest

from .support import FILES, grid, values

STARTS = {
    "table1_femnist": ((0.1, 20, 10), {"lr": 0.05, "batch": (4, 256), "cohort": (100, 200)}, 0.86, 2000, 0.5),
    "table1_stack_overflow": ((0.32, 16, 50), {"lr": 0.05, "batch": (4, 256), "cohort": (25, 200)}, 0.23, 1500, 1.0),
}


@pytest.mark.parametrize("file", STARTS)
def test_fathom_table_1(file: str) -> None:
    (lr, batch, cohort), changes, target, rounds, most = STARTS[file]
    starts = [(lr, batch, cohort), (changes["lr"], batch, cohort)]
    starts += [(lr, other, cohort) for other in changes["batch"]] + [(lr, batch, other) for other in changes["cohort"]]
    found = values(f"fathom/{file}", "method", "client.lr", "run.batch_size", "run.cohort")
    assert list(found.values()) == [(method, *start) for start in starts for method in ("fathom", "fedavg")]
    assert set(values(f"fathom/{file}", "run.target.test_accuracy", "run.rounds", "run.epochs").values()) == {
        (target, rounds, 1)
    }
    keys = ("tuner.form", "tuner.max_lr", "tuner.max_epochs", "tuner.max_batch")
    bounds = {v for name, v in values(f"fathom/{file}", *keys).items() if name.startswith("FATHOM")}
    assert bounds == {("authors", most, 10.0, 5096.0)}


def test_fathom_tunes_as_the_paper_says() -> None:
    for file in (name for name in FILES if name.startswith("fathom/")):
        keys = ("tuner.gamma_lr", "tuner.gamma_epochs", "tuner.gamma_batch", "tuner.alpha", "server.lr")
        found = {v for name, v in values(file, *keys).items() if name.startswith("FATHOM")}
        assert found == {(0.01, 0.01, 0.1, 0.5, 1.0)}
    assert grid("fathom/qmnist_starts") == {"client.lr": [0.05, 0.1], "run.batch_size": [4, 20, 256]}
