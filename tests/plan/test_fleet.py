"""The clients' devices: durations, windows, their statistics, and settings that are refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from fastfed.fleet import Fleet, Windows
from fastfed.saved import recipe

STEPS = torch.tensor([10, 20, 0, 7])


def test_by_default_a_step_takes_a_second_everywhere() -> None:
    seconds = Fleet().seconds(torch.tensor([10, 20, 1]), 10**9, seed=0)
    assert seconds.dtype is torch.float64
    assert seconds.tolist() == [10, 20, 1]
    assert Fleet().begins(3, seed=0) is None


def test_steps_network_and_bytes_add_up() -> None:
    fleet = Fleet(step_seconds=0.5, network_seconds=[1, 2, 3, 4], bytes_per_second=100)
    assert fleet.seconds(STEPS, 250, seed=0).tolist() == [5 + 1 + 2.5, 10 + 2 + 2.5, 3 + 2.5, 3.5 + 4 + 2.5]
    given = Fleet(step_seconds=torch.tensor([1.0, 2.0, 3.0, 0.25]), network_seconds=1)
    assert given.seconds(STEPS, 250, seed=0).tolist() == [11, 41, 1, 2.75]


def test_speeds_are_log_normal_about_the_median_and_a_clients_own() -> None:
    fleet = Fleet(step_seconds=3.0, spread=0.5, network_seconds=1.0)
    seconds = fleet.seconds(torch.full((20_000,), 10), 0, seed=1)
    logarithms = ((seconds - 1) / 10).log().numpy()
    assert stats.kstest(logarithms, stats.norm(loc=torch.tensor(3.0).log().item(), scale=0.5).cdf).pvalue > 0.01
    assert torch.equal(fleet.seconds(torch.full((5,), 10), 0, seed=1), seconds[:5])  # whoever else there is
    assert not torch.equal(fleet.seconds(torch.full((5,), 10), 0, seed=2), seconds[:5])


def test_many_clients_are_drawn_in_portions_that_leave_no_seam() -> None:
    clients = (1 << 16) + 3
    fleet = Fleet(spread=1.0, windows=Windows(period=10.0, length=1.0))
    for numbers in (fleet.seconds(torch.ones(clients, dtype=torch.int64), 0, seed=1), fleet.begins(clients, seed=1)):
        assert isinstance(numbers, Tensor)
        assert numbers.shape == (clients,)
        assert len(numbers.unique()) > clients - 3


def test_windows_begin_at_any_time_of_the_period() -> None:
    begins = Windows(period=50.0, length=5.0).begins(20_000, seed=1)
    assert stats.kstest(begins.numpy() / 50, "uniform").pvalue > 0.01
    assert 0 <= float(begins.min()) < float(begins.max()) < 50
    speeds = Fleet(spread=1.0).seconds(torch.ones(20_000, dtype=torch.int64), 0, seed=1)
    for of_speed in (speeds.log(), speeds.log().abs()):  # they are drawn apart from the speeds
        assert abs(stats.spearmanr(begins.numpy(), of_speed.numpy()).statistic) < 0.03


def test_windows_begin_where_they_are_told_to() -> None:
    assert Windows(begin=7).begins(3, seed=0).tolist() == [7, 7, 7]
    assert Fleet(windows=Windows(begin=(7, 8.5))).begins(2, seed=0).tolist() == [7, 8.5]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "fleet",
    [
        Fleet(),
        Fleet(step_seconds=torch.tensor([1.0, 2.0]), network_seconds=(0.5, 0.25), bytes_per_second=1e6, dropout=0.1),
        Fleet(step_seconds=2, spread=0.3, windows=Windows(period=10.0, length=2.0, begin=torch.tensor([1.0, 9.5]))),
    ],
)
def test_a_checkpoint_can_hold_it(fleet: Fleet) -> None:
    assert recipe.from_json(json.loads(json.dumps(recipe.to_json("fleet", fleet)))) == fleet


def test_too_many_numbers_for_a_checkpoint_must_be_given_again() -> None:
    fleet = Fleet(step_seconds=torch.ones(10_001))
    assert fleet.seconds(torch.ones(10_001, dtype=torch.int64), 0, seed=0).sum() == 10_001
    with pytest.raises(recipe.NoRecipe, match="fleet: Fleet cannot be written as JSON"):
        recipe.to_json("fleet", fleet)


def test_what_the_caller_does_with_its_tensors_changes_nothing() -> None:
    given = torch.ones(10_001, dtype=torch.float64)
    fleet = Fleet(step_seconds=given)
    given.zero_()
    fleet.seconds(torch.ones(10_001, dtype=torch.int64), 0, seed=0).zero_()
    assert fleet.seconds(torch.ones(10_001, dtype=torch.int64), 0, seed=0).sum() == 10_001


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"step_seconds": 0}, "step_seconds: must be a number > 0, got 0"),
        ({"step_seconds": "fast"}, "step_seconds: must be a number > 0, got 'fast'"),
        ({"step_seconds": [1, -2]}, "step_seconds of client 1: must be a number > 0, got -2.0"),
        ({"step_seconds": [1, float("nan")]}, "step_seconds of client 1: must be a number > 0, got nan"),
        ({"step_seconds": [1, float("inf")]}, "step_seconds of client 1: must be a number > 0, got inf"),
        ({"step_seconds": [1, "x"]}, "step_seconds: must be a number, or one per client"),
        ({"step_seconds": []}, "step_seconds: must be a number, or one per client"),
        ({"step_seconds": torch.ones(2, 2)}, r"step_seconds: .* got the shape \(2, 2\)"),
        ({"spread": -1}, "spread: must be a number >= 0, got -1"),
        ({"spread": 0.5, "step_seconds": [1, 2]}, "spread: spreads one number of step_seconds"),
        ({"network_seconds": -1}, "network_seconds: must be a number >= 0, got -1"),
        ({"network_seconds": [0, -1]}, "network_seconds of client 1: must be a number >= 0, got -1.0"),
        ({"bytes_per_second": 0}, "bytes_per_second: must be a number > 0, got 0"),
        ({"dropout": 1}, r"dropout: must be in \[0, 1\), got 1"),
        ({"dropout": True}, "dropout: must be a number >= 0, got True"),
        ({"windows": (1, 2)}, r"windows: must be Windows or None, got \(1, 2\)"),
    ],
)
def test_bad_fleets_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        Fleet(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"period": 0}, "period: must be a number > 0, got 0"),
        ({"length": 0}, "length: must be a number > 0, got 0"),
        ({"length": 86400}, "length: must be less than the period, 86400 seconds, got 86400"),
        ({"begin": -1}, "begin: must be a number >= 0, got -1"),
        ({"begin": 86400}, "begin: must be less than the period, 86400 seconds, got 86400.0"),
        ({"begin": [1, 86401]}, "begin: must be less than the period, 86400 seconds, got 86401.0"),
    ],
)
def test_bad_windows_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Windows(**settings)


@pytest.mark.parametrize(
    "fleet",
    [Fleet(step_seconds=[1, 2]), Fleet(network_seconds=[1, 2]), Fleet(windows=Windows(begin=[1, 2]))],
)
def test_numbers_for_other_clients_are_refused(fleet: Fleet) -> None:
    fleet.check(2)
    with pytest.raises(ValueError, match="must be one number for all or one for each of the 4 clients, got 2"):
        fleet.check(4)
    with pytest.raises(ValueError, match="one for each of the 4 clients"):
        fleet.seconds(STEPS, 0, seed=0)


@pytest.mark.parametrize(
    ("fleet", "steps", "message"),
    [
        (Fleet(), STEPS, "network_seconds: client 2 with 0 local steps takes 0 seconds; a participation must take"),
        (Fleet(spread=600.0), torch.ones(50, dtype=torch.int64), "spread: client .* takes inf seconds"),
        (Fleet(), torch.ones(3), "steps: must be an int64 tensor"),
        (Fleet(), torch.tensor([3, -1]), "steps: must be >= 0, got -1"),
    ],
)
def test_participations_without_a_duration_are_refused(fleet: Fleet, steps: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fleet.seconds(steps, 0, seed=0)


def test_bytes_are_whole() -> None:
    with pytest.raises(ValueError, match="bytes_moved: must be a whole number >= 0"):
        Fleet().seconds(torch.tensor([1]), 1.5, seed=0)  # type: ignore[arg-type]
