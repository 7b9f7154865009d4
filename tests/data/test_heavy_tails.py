"""Noise by Student's t distribution, against scipy; and what a gradient sees of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

import fastfed as ff


def targets_of(fed: ff.data.Generated, client: int) -> np.ndarray:
    visit = fed.visit(torch.tensor([client]))
    inputs, targets = visit.examples.batch(visit.rows, torch.float64)
    assert torch.equal(inputs, torch.ones(len(visit.rows), 1, dtype=torch.float64))
    return targets.numpy()


@pytest.mark.parametrize(("client", "degrees"), [(0, 1.0), (3, 4.0), (9, 10.0)])
def test_a_clients_noise_is_students_t_of_its_own_degrees(client: int, degrees: float) -> None:
    fed = ff.data.synthetic_heavy_tails(10, degrees=1.0, dimensions=3, examples=4000, seed=client)
    drawn = targets_of(fed, client)
    for column in drawn.T:
        assert stats.kstest(column, stats.t(degrees).cdf).pvalue > 1e-3
    other = stats.kstest(drawn[:, 0], stats.t(degrees + 2).cdf).pvalue if degrees == 1.0 else 0.0
    assert other < 1e-6


def test_an_example_has_one_scale_for_all_its_numbers_and_is_the_same_whenever_it_is_made() -> None:
    fed = ff.data.synthetic_heavy_tails(4, degrees=1.0, dimensions=200, examples=300)
    drawn = targets_of(fed, 0)
    scales = np.log(drawn.std(axis=1))
    assert scales.std() > 0.5  # a root of a chi square of one degree
    together = fed.visit(torch.tensor([2, 0]))
    _, both = together.examples.batch(together.rows)
    assert torch.equal(both[int(together.offsets[1]) :], torch.from_numpy(drawn).float())


def test_the_optimum_is_what_is_tested_and_arguments_are_checked() -> None:
    fed = ff.data.synthetic_heavy_tails(4, dimensions=2, test_examples=5)
    assert fed.test is not None
    assert torch.equal(fed.test.batch(torch.arange(5))[1], torch.zeros(5, 2))
    with pytest.raises(ValueError, match="degrees: must be a number > 0"):
        ff.data.synthetic_heavy_tails(4, degrees=0)
    with pytest.raises(ValueError, match="dimensions: must be a whole number >= 1"):
        ff.data.synthetic_heavy_tails(4, dimensions=0)


@pytest.mark.parametrize(("power", "factors"), [(1.0, [1, 1 / 2, 1 / 3]), (0.5, [1, 2**-0.5, 3**-0.5])])
def test_rates_fall_like_a_power_of_the_round(power: float, factors: list[float]) -> None:
    decay = ff.schedules.PowerDecay(power)
    assert [decay(round) for round in range(3)] == pytest.approx(factors)
    assert ff.schedules.PowerDecay(power, scale=10.0)(10) == pytest.approx(2**-power)
    with pytest.raises(ValueError, match="power: must be > 0"):
        ff.schedules.PowerDecay(0.0)
