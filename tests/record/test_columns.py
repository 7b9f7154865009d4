"""What a row says of a round's clients: those who do not count are in no mean."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from fastfed.clients import SGD
from fastfed.record.history import training_columns

LOSSES, NORMS, SIZES = [1.0, 2.0, 4.0], [3.0, 5.0, 9.0], [0.1, 0.2, 0.4]


def columns(refused: list[bool], steps: list[int]) -> dict[str, Any]:
    numbers = {"examples": [10, 30, 20], "steps": steps, "mean_loss": LOSSES, "delta_norm": NORMS, "step_size": SIZES}
    scalars = {name: torch.tensor(values, dtype=torch.float64) for name, values in numbers.items()}
    outcome = SimpleNamespace(scalars=scalars, refused=torch.tensor(refused))
    counted = sum(taken > 0 and not away for taken, away in zip(steps, refused, strict=True))
    aggregate = SimpleNamespace(counted=counted, refused=sum(refused), idle=steps.count(0))
    plan = SimpleNamespace(batch_size=10, seen=None, optimizers=(SGD(lr=0.1),))
    return training_columns(cast("Any", plan), cast("Any", outcome), cast("Any", aggregate))


def test_all_clients_count() -> None:
    row = columns([False] * 3, [1, 3, 2])
    assert row["train_loss"] == pytest.approx((10 * 1 + 30 * 2 + 20 * 4) / 60)
    assert (row["delta_norm"], row["step_size_min"], row["step_size_max"]) == (pytest.approx(17 / 3), 0.1, 0.4)


@pytest.mark.parametrize(("refused", "steps"), [([False, False, True], [1, 3, 2]), ([False] * 3, [1, 3, 0])])
def test_who_is_refused_or_idle_does_not(refused: list[bool], steps: list[int]) -> None:
    row = columns(refused, steps)
    assert row["train_loss"] == pytest.approx((10 * 1 + 30 * 2) / 40)
    assert (row["delta_norm"], row["delta_norm_std"]) == (4.0, 1.0)
    assert (row["step_size"], row["step_size_max"]) == (pytest.approx(0.15), 0.2)
