"""From rows to the points of lines."""

from __future__ import annotations

import pytest
from scipy import stats

from fastfed.app.report import Entry, Group
from fastfed.app.report.series import Series, by_bits, by_clock, line, spread, thin
from fastfed.record.history import History
from tests.app.report.support import rows


def group(*accuracies: list[float | None], **columns: object) -> Group:
    entries = [Entry(str(i), History(rows(one, **columns))) for i, one in enumerate(accuracies)]
    return Group("some", 3, tuple(entries))


def test_a_line_is_the_mean_with_students_band() -> None:
    found = line(group([0.1, 0.4], [0.2, 0.6], [0.6, 0.8]), "test_accuracy")
    assert found is not None
    assert (found.key, found.label, found.style, found.n) == ("g3", "some", 3, 3)
    assert found.x == [1.0, 2.0]
    assert found.y == pytest.approx([0.3, 0.6])
    low, high = stats.t.interval(0.95, 2, loc=0.3, scale=stats.sem([0.1, 0.2, 0.6]))
    assert found.low is not None
    assert found.high is not None
    assert (found.low[0], found.high[0]) == pytest.approx((max(0.0, low), high))


def test_bands_end_where_values_do() -> None:
    for values, low, high in (([0.01, 0.02, 0.3], 0.0, None), ([0.7, 0.99, 0.99], None, 1.0)):
        found = line(group(*([value] for value in values)), "test_accuracy")
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        assert (found.low[0] if high is None else found.high[0]) == (low if high is None else high)


def test_two_seeds_have_a_mean_and_no_band() -> None:
    found = line(group([0.1, 0.4], [0.2, 0.6]), "test_accuracy")
    assert found is not None
    assert (found.y, found.low, found.n) == ([pytest.approx(0.15), pytest.approx(0.5)], None, 2)


def test_one_seed_has_no_band() -> None:
    found = line(group([0.1, 0.4]), "test_accuracy")
    assert found is not None
    assert (found.low, found.high) == (None, None)


def test_a_seed_that_is_not_finite_leaves_a_gap_for_all() -> None:
    found = line(group([0.1, 0.4, 0.5], [0.2, None, 0.7], [0.3, 0.5, 0.6]), "test_accuracy")
    assert found is not None
    assert found.y == [pytest.approx(0.2), None, pytest.approx(0.6)]
    assert found.low is not None
    assert found.low[1] is None


def test_only_rounds_that_all_seeds_have_are_drawn() -> None:
    found = line(group([0.1, 0.4, 0.5], [0.2, 0.3]), "test_accuracy")
    assert found is not None
    assert found.x == [1.0, 2.0]


def test_bits_are_all_that_was_sent_until_then_and_evaluations_stand_where_they_were() -> None:
    history = rows([0.1, 0.2, 0.3])
    del history[0]["test_accuracy"]
    history[1]["bytes_up"] = 2_000_000
    assert by_bits(history) == [12e6, 36e6, 48e6]
    found = line(Group("some", 0, (Entry("a", History(history)),)), "test_accuracy", by_bits, scale=1e6)
    assert found is not None
    assert (found.x, found.y) == ([36.0, 48.0], [0.2, 0.3])


def test_a_column_that_nobody_has_is_no_line() -> None:
    assert line(group([0.1]), "epsilon") is None
    assert line(group([0.1]), "test_accuracy", by_clock) is None


def test_spread_is_the_range_over_clients() -> None:
    found = spread(group([0.1, 0.2], step_size=0.2, step_size_min=0.1, step_size_max=0.5),
                   "step_size", "step_size_min", "step_size_max")  # fmt: skip
    assert found is not None
    assert (found.y, found.low, found.high) == ([0.2, 0.2], [0.1, 0.1], [0.5, 0.5])


def test_thinning_keeps_ends_spikes_and_gaps() -> None:
    y: list[float | None] = [0.5 + 1e-5 * i for i in range(10_000)]
    y[4321], y[8765], y[6000] = 9.0, -9.0, None
    whole = Series("k", "l", 0, 1, [float(i) for i in range(10_000)], y, list(y), list(y))
    found = thin(whole, 600)
    assert len(found.x) <= 620
    assert (found.x[0], found.x[-1]) == (0.0, 9999.0)
    assert {9.0, -9.0, None} <= set(found.y)
    assert found.x[found.y.index(9.0)] == 4321.0
    assert found.low == found.y == found.high
    assert thin(whole, 10_000) is whole
