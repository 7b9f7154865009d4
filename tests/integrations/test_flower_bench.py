"""The benchmark beside Flower: both steps are what they say, and the command prints both ratios."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from .support import host

host("flwr")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of typer's
    from typer.testing import CliRunner

    from fastfed.bench import flower as bench


def test_the_steps_that_are_timed_are_the_strategies_own() -> None:
    """Flower's step on arrays that need not be read is its `aggregate_train`; ours is the same to rounding."""
    held = bench.Replies(1003, 3)
    arrays, _ = held.flowers.aggregate_train(bench.ROUND, held.messages)
    held = bench.Replies(1003, 3)
    stepped, _ = held.step_of_flower()()  # type: ignore[misc]
    held = bench.Replies(1003, 3)
    ours, _ = held.ours.aggregate_train(bench.ROUND, held.messages)
    for name, array in arrays.items():
        assert np.array_equal(stepped[name].numpy(), array.numpy())
        np.testing.assert_allclose(ours[name].numpy(), array.numpy(), rtol=1e-4, atol=1e-5)


def test_our_step_that_is_timed_is_the_strategys_own() -> None:
    held = bench.Replies(1003, 3)
    ours, _ = held.ours.aggregate_train(bench.ROUND, held.messages)
    held.step_of_ours()()
    assert len(held.stepped) == bench.LAYERS
    for part, array in zip(held.stepped, ours.values(), strict=True):
        assert np.array_equal(part, array.numpy())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_command_says_what_it_measured() -> None:
    said = CliRunner().invoke(bench.app, ["--parameters", "1000", "--replies", "2", "--rounds", "2"])
    assert said.exit_code == 0, said.output
    assert "1,000 parameters, 2 replies" in said.output
    assert "aggregate_train: " in said.output
    assert "step: " in said.output
