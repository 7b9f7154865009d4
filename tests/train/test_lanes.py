"""Lanes and what their clients count: which clients are in them, who trains them, weights, refusals. No kernel runs."""

from __future__ import annotations

import math
from itertools import combinations_with_replacement
from typing import Any

import pytest
import torch
from torch import Tensor

from fastfed.clients import SGD, Momentum
from fastfed.train import DeltaPolicy
from fastfed.train.device.engine import groups, portions, terms_of
from fastfed.train.device.lanes import LANES, Lanes, Terms, bound_of
from fastfed.train.policy import DeltaSum, divided, policy_weights, rest

from .support import normal, round_of

# ---- who is in which lane, and which device trains it ---------------------------------------------------------------


@pytest.mark.parametrize("clients", [0, 1, 7, 8, 9, 20, 1000])
def test_lanes_are_runs_of_neighbours_that_hold_everybody_once(clients: int) -> None:
    lanes = Lanes(clients)
    each = [lanes.places(range(lane, lane + 1)) for lane in range(LANES)]
    assert [place for places in each for place in places] == list(range(clients))
    assert max(map(len, each)) <= lanes.run == max(1, math.ceil(clients / LANES))
    assert lanes.places(range(LANES)) == range(clients)


def heaviest(lanes: Lanes, steps: Tensor, dealt: list[range]) -> int:
    return max(int(steps[list(lanes.places(part))].sum()) for part in dealt)


@pytest.mark.parametrize("devices", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("clients", [3, 8, 50])
def test_lanes_are_dealt_so_that_the_busiest_device_has_least(clients: int, devices: int) -> None:
    lanes = Lanes(clients)
    steps = torch.randint(1, 30, (clients,), generator=torch.Generator().manual_seed(clients))
    dealt = lanes.dealt(steps, devices)
    assert [lane for part in dealt for lane in part] == list(range(LANES))
    assert len(dealt) == devices
    every_way = (
        [range(a, b) for a, b in zip((0, *cuts), (*cuts, LANES), strict=True)]
        for cuts in combinations_with_replacement(range(LANES + 1), devices - 1)
    )
    assert heaviest(lanes, steps, dealt) == min(heaviest(lanes, steps, way) for way in every_way)


def test_devices_beyond_the_lanes_have_nothing_to_do() -> None:
    dealt = Lanes(40).dealt(torch.ones(40, dtype=torch.int64), LANES + 2)
    assert [len(part) for part in dealt] == [1] * LANES + [0, 0]


@pytest.mark.parametrize("places", [range(0, 5), range(0, 2), range(2, 4), range(3, 3), range(4, 5)])
def test_portions_are_the_groups_at_those_places(places: range) -> None:
    work = round_of(torch.zeros(3), (4, 4, 4, 4, 0, 4), optimizer_index=torch.tensor([1, 0, 1, 0, 0, 1]),
                    optimizers=(SGD(lr=0.1), Momentum(lr=0.1)))  # fmt: skip
    terms = terms_of(work)
    assert terms.order.tolist() == [1, 3, 0, 2, 5]  # the one without examples takes no step
    found = list(portions(work, terms.steps, places))
    assert [client for *_, clients in found for client in clients.tolist()] == terms.order[list(places)].tolist()
    for optimizer, place, clients in found:
        assert terms.order[place : place + len(clients)].tolist() == clients.tolist()
        assert {id(work.optimizer_of(client)) for client in clients.tolist()} == {id(optimizer)}


# ---- what a client counts -------------------------------------------------------------------------------------------

STEPS = torch.tensor([3, 0, 5, 1])
D = 6


def terms_for(policy: DeltaPolicy, **given: Any) -> Terms:
    work = round_of(
        torch.zeros(D, dtype=torch.float64), (9, 4, 6, 2), policy=policy, steps=STEPS, batch_size=1, **given
    )
    return Terms(work, STEPS, torch.tensor([2, 0, 3]))


POLICIES = {
    "examples": DeltaPolicy(),
    "uniform": DeltaPolicy("uniform"),
    "given": DeltaPolicy(torch.tensor([0.3, 0.9, 0.0, 2.0])),
    "clip": DeltaPolicy("uniform", clip=1.5),
    "divide": DeltaPolicy(divide_by_steps=True),
    "divide and clip": DeltaPolicy(clip=0.6, divide_by_steps=True),
}


def added_up(terms: Terms, deltas: Tensor) -> Tensor:
    """The sum (d,) of all that count: each delta times its share, scaled down to its limit."""
    shares, *limits = terms.numbers
    norms = deltas[terms.order].norm(dim=1)
    scales = (
        [min(1.0, float(limit) / float(norm)) for limit, norm in zip(*limits, norms, strict=True)] if limits else 1.0
    )
    weights = torch.where(norms.isfinite(), shares * torch.as_tensor(scales), 0.0)
    return (weights[:, None] * deltas[terms.order].nan_to_num()).sum(0)


@pytest.mark.parametrize("broken", [None, 0])
@pytest.mark.parametrize("name", POLICIES)
def test_shares_and_limits_make_the_sum_of_the_policy(name: str, broken: int | None) -> None:
    terms = terms_for(POLICIES[name])
    deltas = normal(4, 4, D, dtype=torch.float64)
    deltas[1] = 0
    if broken is not None:
        deltas[broken, 2] = torch.nan
    wanted = DeltaSum(terms.work, STEPS)
    wanted.add(terms.order, deltas[terms.order].clone())
    expected = wanted.outcome({})
    got = added_up(terms, deltas)
    by = rest(terms.work, terms.weights, expected.refused)
    torch.testing.assert_close(divided(got, by), expected.delta)


def test_the_clipped_are_really_clipped() -> None:
    """The table above would be blind to limits that nobody reaches."""
    terms = terms_for(POLICIES["divide and clip"])
    norms = normal(4, 4, D, dtype=torch.float64)[terms.order].norm(dim=1)
    assert 0 < int((norms > terms.numbers[1]).sum()) < len(norms)


# ---- how large the sum can be ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", [None, 0])
@pytest.mark.parametrize("name", POLICIES)
def test_no_number_of_the_sum_is_beyond_the_bound(name: str, broken: int | None) -> None:
    """Where each client moves one number only, all in the same place, the bound is reached but for rounding."""
    terms = terms_for(POLICIES[name])
    deltas = torch.zeros(4, D, dtype=torch.float64)
    deltas[:, 3] = torch.tensor([2.0, 0.0, 7.0, 0.5])
    if broken is not None:
        deltas[broken, 2] = torch.nan
    norms = deltas[terms.order].norm(dim=1)
    largest = float(added_up(terms, deltas).abs().max())
    assert largest <= bound_of(terms, norms) <= 1.00001 * largest
    spread = deltas + normal(4, 4, D, dtype=torch.float64)
    norms = spread[terms.order].norm(dim=1)
    assert float(added_up(terms, spread).abs().max()) < bound_of(terms, norms)


def test_the_bound_takes_factors_without_their_signs() -> None:
    terms = terms_for(DeltaPolicy("uniform", scale=torch.tensor([3.0, 1.0, -3.0, 0.0])))
    assert bound_of(terms, torch.ones(3, dtype=torch.float64)) == pytest.approx(2.0, rel=1e-5)


@pytest.mark.parametrize("norm", [0.0, 1e-30])
def test_a_factor_that_float32_cannot_hold_has_no_bound(norm: float) -> None:
    terms = terms_for(DeltaPolicy(torch.tensor([1e39, 1.0, 1.0, 1.0], dtype=torch.float64)))
    assert not bound_of(terms, torch.full((3,), norm, dtype=torch.float64)) < math.inf


def test_rounding_of_many_sums_is_within_the_bound() -> None:
    """The worst case: a large number first, then many that float32 rounds up every time."""
    clients, step = 4000, 2.0**-24 * (1 + 2.0**-20)
    moves = torch.full((clients,), step)
    moves[0] = 1.0
    total = torch.zeros(())
    for move in moves:
        total += move
    assert float(total) > 1.0004 > float(moves.double().sum())
    weights = torch.ones(clients)
    work = round_of(
        torch.zeros(1), [1] * clients, policy=DeltaPolicy(weights), steps=torch.ones(clients, dtype=torch.int64)
    )
    terms = Terms(work, work.steps, torch.arange(clients))
    assert float(total) < bound_of(terms, moves.double())


# ---- weights --------------------------------------------------------------------------------------------------------


def test_numbers_are_in_the_order_of_training() -> None:
    terms = terms_for(DeltaPolicy(clip=0.5, divide_by_steps=True))
    weights = policy_weights(terms.work, STEPS)
    assert terms.numbers[0].tolist() == [float(weights[i]) / int(STEPS[i]) for i in (2, 0, 3)]
    assert terms.numbers[1].tolist() == [2.5, 1.5, 0.5]


@pytest.mark.parametrize(
    ("weights", "refused", "divisor"),
    [
        ("examples", [], None),
        ("examples", [0], 8 / 17),  # of 9 + 6 + 2 examples
        ("uniform", [0, 3], 1 / 3),
        ("uniform", [0, 2, 3], 0.0),
        (torch.ones(4), [0], None),  # given weights are taken as they are
    ],
)
def test_the_refused_leave_their_share_to_the_others(weights: Any, refused: list[int], divisor: float | None) -> None:
    mask = torch.zeros(4, dtype=torch.bool)
    mask[refused] = True
    terms = terms_for(DeltaPolicy(weights))
    found = rest(terms.work, terms.weights, mask)
    assert found == (None if divisor is None else pytest.approx(divisor))


def test_groups_leave_out_who_takes_no_step() -> None:
    terms = terms_for(DeltaPolicy())
    assert [clients.tolist() for _, clients in groups(terms.work, STEPS)] == [[0, 2, 3]]
