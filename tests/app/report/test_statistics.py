"""Means and intervals, against scipy."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from fastfed.app.report.statistics import Estimate, clearly_apart, estimate, t_quantile


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 10, 29, 30, 199])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.99])
def test_students_quantile(freedom: int, level: float) -> None:
    assert t_quantile(freedom, level) == pytest.approx(stats.t.ppf((1 + level) / 2, freedom), rel=1e-9)


def test_an_estimate_is_the_mean_with_its_interval() -> None:
    values = [0.9, 0.94, 0.91, 0.97]
    low, high = stats.t.interval(0.95, 3, loc=sum(values) / 4, scale=stats.sem(values))
    found = estimate(values)
    assert (found.mean, found.n) == (pytest.approx(0.93), 4)
    assert found.half == pytest.approx((high - low) / 2)


def test_one_value_has_no_interval() -> None:
    assert estimate([0.5]) == Estimate(0.5, None, 1)


def test_equal_values_have_an_interval_of_nothing() -> None:
    assert estimate([0.5, 0.5, 0.5]) == Estimate(0.5, 0.0, 3)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([0.90, 0.91, 0.92, 0.905], [0.95, 0.96, 0.94, 0.955]),
        ([0.90, 0.91, 0.92, 0.905], [0.91, 0.90, 0.93, 0.925]),
        ([0.5, 0.9, 0.7], [0.71, 0.72, 0.73, 0.74, 0.75]),
        ([0.1, 0.11], [0.3, 0.31]),
    ],
)
def test_apart_is_what_welch_says(a: list[float], b: list[float]) -> None:
    assert clearly_apart(a, b) == (stats.ttest_ind(a, b, equal_var=False).pvalue < 0.05)


def test_apart_without_spread_or_with_one_seed() -> None:
    assert clearly_apart([0.5, 0.5], [0.6, 0.6])
    assert not clearly_apart([0.5, 0.5], [0.5, 0.5])
    assert clearly_apart([0.5], [0.5, 0.7])
    assert math.isfinite(t_quantile(10_001))
