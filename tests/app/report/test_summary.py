"""What groups came to, and the sentences about it."""

from __future__ import annotations

from typing import Any

import pytest

from fastfed.app.report import Entry, Group
from fastfed.app.report.summary import Summary, choose_target, diverged_at, ranked, seconds_of, summarise
from fastfed.app.report.words import bytes_in_units, column_of, digits, headline, listed, rounds_to, supplement
from fastfed.record.history import History
from tests.app.report.support import rows

METRIC = "test_accuracy"


def group(label: str, *accuracies: list[float | None], **info: Any) -> Group:
    """A group with a run for each list; every round sends 1.5 MB."""
    entries = [Entry(label, History(rows(one)), {"seconds": 3.0 + i, **info}) for i, one in enumerate(accuracies)]
    return Group(label, 0, tuple(entries))


def summary(*groups: Group, target: float | None = 0.8) -> list[Summary]:
    return summarise(groups, METRIC, target)


def test_a_summary_in_numbers() -> None:
    (one,) = summary(group("A", [0.5, 0.9, 0.7], [0.4, 0.6, 0.8]))
    assert one.final is not None
    assert one.best is not None
    assert one.final.mean == pytest.approx(0.75)
    assert one.best.mean == pytest.approx(0.85)
    assert one.reached == [2, 3]
    assert one.rounds_to is not None
    assert one.rounds_to.mean == 2.5
    assert one.bytes_to_target is not None
    assert one.bytes_to_target.mean == pytest.approx((3.0e6 + 4.5e6) / 2)
    assert one.bytes is not None
    assert one.bytes.mean == pytest.approx(4.5e6)
    assert one.seconds is not None
    assert one.seconds.mean == 3.5
    assert (one.status, one.lost) == ("done", False)


def test_a_target_that_some_runs_miss_has_no_mean_round() -> None:
    (one,) = summary(group("A", [0.5, 0.9], [0.5, 0.6]))
    assert (one.rounds_to, one.bytes_to_target) == (None, None)
    assert rounds_to(one) == "1 of 2 runs"


def test_a_run_that_diverged_is_counted_and_the_group_ranks_behind() -> None:
    lost = group("Lost", [0.5, 0.99], [0.5, None])
    order = ranked(summary(lost, group("Poor", [0.1, 0.2])), METRIC)
    assert [one.group.label for one in order] == ["Poor", "Lost"]
    assert (order[1].ended_well, order[1].lost) == (1, True)
    assert order[1].status == "1 done, 1 diverged at round 2"
    sentence = headline(summary(lost), METRIC)
    assert sentence == "Lost reaches 99.0% test accuracy after 2 rounds in 1 of 2 runs."


def test_losses_rank_the_other_way() -> None:
    order = ranked(summarise([group("A", [0.1]), group("B", [0.9])], "test_loss", None), "test_loss")
    assert [one.group.label for one in order] == ["B", "A"]


def test_divergence_is_the_first_of_the_rounds_at_the_end() -> None:
    good, refused = {"train_loss": 0.5, "skipped": 0}, {"train_loss": None, "skipped": 3}
    blown = {"train_loss": 0.5, "skipped": 0, "test_loss": None}
    idle = {"train_loss": None, "skipped": 0}

    def history(*kinds: dict[str, Any]) -> History:
        return History([{"round": i + 1, **kind} for i, kind in enumerate(kinds)])

    assert diverged_at(history(good, refused, refused)) == 2
    assert diverged_at(history(good, refused, good)) is None
    assert diverged_at(history(good, blown)) == 2
    assert diverged_at(history(good, idle)) is None
    held_out = {"train_loss": 0.5, "skipped": 0, "test_loss": 0.5, "validation_loss": None}
    assert diverged_at(history(good, held_out)) == 2
    assert diverged_at(history(good, {**held_out, "validation_loss": 0.4})) is None


def test_what_is_evaluated_after_the_end_is_no_final_metric() -> None:
    rows = [{"round": 1, "train_loss": 0.5, METRIC: 0.8}, {"round": 2, "train_loss": None, "skipped": 3, METRIC: 0.8}]
    (one,) = summary(Group("A", 0, (Entry("A", History(rows)),)))
    assert (one.final, one.ended_well, one.status) == (None, 0, "diverged at round 2")


def test_an_interrupted_run_says_so() -> None:
    (one,) = summary(group("A", [0.5], status="interrupted"))
    assert one.status == "interrupted"


def test_seconds_are_the_runs_own_or_the_sum_of_its_rooms() -> None:
    history = History([{"round": 1, "seconds_train": 2.0, "seconds_plan": 0.5}, {"round": 2, "seconds_train": 1.0}])
    assert seconds_of(Entry("a", history)) == pytest.approx(3.5)
    assert seconds_of(Entry("a", history, {"seconds": 9})) == 9.0


@pytest.mark.parametrize(
    ("bests", "target"), [([0.97, 0.99, 0.93], 0.95), ([0.5], 0.45), ([0.11, 0.12], 0.1), ([1.0, 1.0], 0.95)]
)
def test_the_target_is_a_round_number_that_half_of_them_reach(bests: list[float], target: float) -> None:
    found = choose_target([group(str(i), [0.05, best]) for i, best in enumerate(bests)], METRIC)
    assert found == pytest.approx(target)
    assert sum(best >= target for best in bests) * 2 >= len(bests)


def test_a_target_of_a_loss_is_reached_by_half() -> None:
    groups = [group(str(i), [1 - best / 1.2]) for i, best in enumerate([0.10, 0.20, 0.40])]
    target = choose_target(groups, "test_loss")
    assert target == pytest.approx(0.21)


# ---- words ----------------------------------------------------------------------------------------------------------


def test_a_clear_lead_and_an_open_race() -> None:
    first = group("A", [0.90], [0.91], [0.905])
    clear = headline(summary(first, group("B", [0.80], [0.81], [0.805]), group("C", [0.1], [0.2], [0.3])), METRIC)
    assert clear == "A reaches 90.5% test accuracy after 1 round, ahead of the next, B, by 10.0 points."
    race = headline(summary(first, group("B", [0.80], [0.99], [0.90])), METRIC)
    assert race == (
        "A reaches 90.5% test accuracy after 1 round, but seeds leave it open whether that is ahead of B with 89.7%."
    )


def test_one_run_and_none() -> None:
    assert (
        headline(summary(group("A", [0.5, 0.9])), METRIC) == "A reaches 90.0% test accuracy after 2 rounds (one seed)."
    )
    assert "(the mean of 2 seeds)" in headline(summary(group("A", [0.5], [0.6])), METRIC)
    assert headline(summary(group("A", [None])), METRIC) == "No run ended with a finite test accuracy."
    assert headline([], None) == "No run has been evaluated yet."


def test_who_reaches_the_target_first() -> None:
    quick, slow = group("Quick", [0.5, 0.9]), group("Slow", [0.5, 0.6, 0.7, 0.9])
    told = supplement(summary(quick, slow), METRIC, 0.8)
    assert told == "80% test accuracy is reached first by Quick, in 2 rounds and 3.00 MB."
    alone = supplement(summary(quick, group("Never", [0.1])), METRIC, 0.8)
    assert alone == "80% test accuracy is reached first by Quick, in 2 rounds; no other run gets there."
    assert supplement(summary(group("Never", [0.1])), METRIC, 0.8) == ""


def test_numbers_in_words() -> None:
    assert [digits(v) for v in (0, 3.14159, 1234.5, 0.00123, 1.5e-7)] == ["0", "3.14", "1,234", "0.00123", "1.50e-07"]
    assert [bytes_in_units(n) for n in (999, 12_300_000, 2e12)] == ["999 B", "12.3 MB", "2.00 TB"]
    assert column_of([1.3, None, 38.52]) == ["1.3", "\N{EN DASH}", "38.5"]
    assert column_of([0.97, 1.304]) == ["0.97", "1.30"]
    assert column_of([1234.5, 3.0]) == ["1,234", "3"]
    assert column_of([0.0, None]) == ["0", "\N{EN DASH}"]
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed(["a", "b", "c", "d", "e"]) == "a, b and 3 others"
