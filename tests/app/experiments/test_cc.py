"""CC: the tuned values are typed once more, from its tables, so that a slip of the pen in a file is seen."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from .support import FILES, HOME, grid, half_powers, values

RULES = {"CC-FedSGD": "sgd", "CC-FedAdagrad": "adagrad", "CC-FedAdam": "adam", "CC-FedAMS": "ams"}
CC_FILES = [name for name in FILES if name.startswith("cc/")]


@pytest.mark.parametrize("file", CC_FILES)
def test_cc_defaults(file: str) -> None:
    found = values(file, "server.rule", "server.beta1", "server.beta2")
    for name, (rule, beta1, beta2) in found.items():
        assert rule == RULES[name.partition(",")[0]]
        assert beta1 == (None if rule == "sgd" else 0.0 if file.endswith("beta") else 0.9)
        assert beta2 == (None if rule in ("sgd", "adagrad") else 0.0 if file.endswith("gamma") else 0.99)
    delay = 10 if file.endswith("figure2a") else 5
    randomness = 3 if file.endswith("figure2b") else 2
    keys = ("timing.buffer", "timing.max_delay", "timing.epochs", "timing.randomness", "data.clients")
    assert set(values(file, *keys).values()) == {(5, delay, 3, randomness, 100)}
    assert {weights for (weights,) in values(file, "run.weights").values()} == {"uniform"}


def test_cc_grids() -> None:
    for file in CC_FILES:
        if "figure3" not in file and not file.endswith("_tau"):
            assert grid(file)["server.lr"] == half_powers(-3, 1), file
    assert list(values("cc/fashion_mnist", "run.rounds")) == list(RULES)
    assert values("cc/fashion_mnist", "data.alpha", "run.rounds", "model.name")["CC-FedAMS"] == (0.5, 300, "lenet")
    assert grid("cc/fashion_mnist_tau")["server.lr"] == pytest.approx([1e-3, 1e-2, 0.1, 1, 10, 100])
    taus = {tau for name, (tau,) in values("cc/fashion_mnist_tau", "server.tau").items() if name != "CC-FedSGD"}
    assert taus == {1e-5, 1e-4, 1e-3}
    assert grid("cc/figure1")["data.alpha"] == [3.0, 0.5]
    assert grid("cc/figure2b")["timing.randomness"] == [3, 2, 1]
    assert grid("cc/figure3_beta") == {"server.beta1": [0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 0.995]}
    assert grid("cc/figure3_tau") == {"server.tau": half_powers(-4, -1)}
    assert grid("cc/figure3_gamma") == {"server.beta2": [0.0, 0.5, 0.7, 0.9, 0.95, 0.99]}


def test_figure_4_goes_astray_without_normalised_deltas(tmp_path: Path) -> None:
    """Against arithmetic: a client goes 1 - (1 - lr)^K of its way, as the mse of two numbers has the gradient x - c."""
    spec = importlib.util.spec_from_file_location("figure4", HOME / "cc" / "figure4.py")
    assert spec is not None
    assert spec.loader is not None
    figure4 = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(figure4)
    for divided in (False, True):
        shares = [1 - 0.99**steps for steps in figure4.STEPS]
        moves = [
            share / (steps if divided else 1) * optimum
            for share, steps, optimum in zip(shares, figure4.STEPS, figure4.OPTIMA, strict=True)
        ]
        torch.testing.assert_close(figure4.first_move(divided), sum(moves) / 2)
    assert figure4.degrees_off(figure4.first_move(True)) < 5 < 30 < figure4.degrees_off(figure4.first_move(False))
    figure4.draw(tmp_path / "figure4.png")
    assert (tmp_path / "figure4.png").stat().st_size > 3000
