"""The tree of lanes, cut into parts: what every part folds for itself makes the sum of the whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fastfed.kernels import registry
from fastfed.train import lane_tree
from fastfed.train.work import RoundWork
from fastfed.training import work_of

from . import setups

some = pytest.mark.parametrize("lanes", [1, 2, 3, 5, 7, 8, 13, 31, 33, 63, 64])


@some
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 6, 7, 8, 64, 70])
def test_no_rank_has_more_lanes_than_it_must(lanes: int, ranks: int) -> None:
    parts = lane_tree.cuts(lanes, ranks)
    assert len(parts) == ranks
    assert [lane for part in parts for lane in part] == list(range(lanes))
    assert max(map(len, parts)) == -(-lanes // ranks)


@pytest.mark.parametrize(
    ("ranks", "most"), [(1, 1), (2, 1), (3, 4), (4, 1), (5, 5), (6, 4), (7, 3), (8, 1), (16, 1), (64, 1)]
)
def test_few_sums_travel(ranks: int, most: int) -> None:
    """The sums of the native engine's 64 lanes that a rank sends: docs/ranks.md has this table."""
    assert max(len(lane_tree.roots(64, part)) for part in lane_tree.cuts(64, ranks)) == most


@some
@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 70])
def test_even_cuts_have_every_lane_once(lanes: int, ranks: int) -> None:
    costs = [float(7 * lane % 5) for lane in range(lanes)]
    parts = lane_tree.even_cuts(costs, ranks, 1.0)
    assert len(parts) == ranks
    assert [lane for part in parts for lane in part] == list(range(lanes))


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_where_sums_cost_nothing_ranks_have_equal_shares_but_for_half_a_lane(ranks: int) -> None:
    costs = [400.0] * 8 + [300.0] * 56  # 200 clients of one size
    loads = [sum(costs[lane] for lane in part) for part in lane_tree.even_cuts(costs, ranks, 0.0)]
    assert max(loads) <= sum(costs) / ranks + max(costs)


def test_a_lane_goes_to_another_rank_where_that_is_worth_the_sums() -> None:
    costs = [400.0] * 8 + [300.0] * 56
    assert lane_tree.even_cuts(costs, 2, 32.0) == [range(0, 31), range(31, 64)]  # 10,100, not 10,400
    assert lane_tree.even_cuts(costs, 2, 1000.0) == [range(0, 32), range(32, 64)]
    assert lane_tree.even_cuts([1.0] * 64, 4, 0.0) == lane_tree.cuts(64, 4)


@some
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_parts_fold_to_the_sum_of_the_whole(lanes: int, ranks: int) -> None:
    numbers = torch.randn(lanes, 9, generator=torch.Generator().manual_seed(lanes))
    level = list(numbers)
    while len(level) > 1:  # as csrc/engine/lanes.h says
        pairs = [level[i : i + 2] for i in range(0, len(level), 2)]
        level = [pair[0] + pair[1] if len(pair) == 2 else pair[0] for pair in pairs]
    parts = lane_tree.cuts(lanes, ranks)
    sums = {}
    for part in parts:
        for first, end in lane_tree.roots(lanes, part):
            own = {(lane - first, lane - first + 1): numbers[lane] for lane in range(first, end)}
            sums[first, end] = lane_tree.folded(end - first, own)
    assert torch.equal(lane_tree.folded(lanes, sums), level[0])


@pytest.mark.skipif(registry.interpreting(), reason="belongs to the session of the CPU's executors")
@pytest.mark.parametrize("name", ["many", "many-sparse", "sparse/native"])
@pytest.mark.parametrize("ranks", [2, 3, 7])
def test_the_engine_sums_some_lanes_as_it_sums_all(name: str, ranks: int) -> None:
    sim = setups.begun(name)
    plan = sim.planner.plan(0, sim.tuner.tuning)
    assert plan is not None
    native, work = sim.executor, work_of(sim, plan)
    whole = native.run(replace(work, policy=replace(work.policy, normalised=False)))
    lanes, order = native.deal(work)
    assert sorted(order.tolist()) == list(range(len(work)))
    sums, trained = {}, torch.zeros(len(work), dtype=torch.int64)
    for part in lane_tree.cuts(lanes, ranks):
        nodes = lane_tree.roots(lanes, part)
        if not nodes:
            continue
        found = native.run_lanes(_not_normalised(work), part, len(nodes))
        sums |= dict(zip(nodes, found.delta.view(len(nodes), -1), strict=True))
        here = ~torch.isnan(found.scalars["delta_norm"]) | found.refused
        assert here.nonzero().flatten().tolist() == sorted(
            position for i, position in enumerate(order.tolist()) if i % lanes in part
        )
        trained += here
    assert trained.tolist() == [1] * len(work)
    total = lane_tree.folded(lanes, sums) + 0.0
    assert torch.equal(total, whole.delta)
    assert torch.equal(torch.signbit(total), torch.signbit(whole.delta))


def _not_normalised(work: RoundWork) -> RoundWork:
    return replace(work, policy=replace(work.policy, normalised=False))


@pytest.mark.skipif(registry.interpreting(), reason="belongs to the session of the CPU's executors")
def test_the_engine_refuses_lanes_and_rooms_that_do_not_fit() -> None:
    sim = setups.begun("many")
    plan = sim.planner.plan(0, sim.tuner.tuning)
    assert plan is not None
    work = work_of(sim, plan)
    with pytest.raises(ValueError, match="lanes: must be some of the round's 64"):
        sim.executor.run_lanes(work, range(60, 65), 1)
    with pytest.raises(ValueError, match="delta: these lanes have 2 roots"):
        sim.executor.run_lanes(work, range(0, 3), 1)
