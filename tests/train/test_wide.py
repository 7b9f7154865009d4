"""Wide dense models on the native engine: their products beside float64, and the order in which deltas are added."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastfed as ff
from fastfed import clients
from fastfed.data import Examples
from fastfed.train import DeltaPolicy, Outcome, RoundWork
from fastfed.train.policy import policy_weights

from .agreement import assert_close, why_not
from .literal import flat
from .support import make, normal, round_of

pytestmark = pytest.mark.skipif(why_not("native") is not None, reason=str(why_not("native")))

SIZES = (23, 0, 1, 40, 7)


def wide(*widths: int) -> nn.Module:
    """Dense layers of these widths with sigmoids between them; the same parameters every time."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        layers = [nn.Linear(a, b) for a, b in pairwise(widths)]
    return nn.Sequential(*[part for layer in layers for part in (layer, nn.Sigmoid())][:-1])


def given(module: nn.Module, rows: int = sum(SIZES)) -> Examples:
    first, last = module[0], module[-1]
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    return Examples(normal(1, rows, first.in_features), normal(2, rows, last.out_features))


# ---- products that weights are too large for the caches for ---------------------------------------------------------

RULES = {
    "sgd": clients.SGD(0.5),
    "decay": clients.SGD(0.5, weight_decay=0.01),
    "momentum": clients.Momentum(0.2),
    "adam": clients.Adam(0.01, eps=0.1),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("batch", [4, 37])
@pytest.mark.parametrize("widths", [(300, 517, 262, 9), (131, 1025, 600, 77)], ids=str)
def test_a_round_is_as_near_to_float64_as_a_plain_loop(widths: Any, batch: int, steps: int, rule: str) -> None:
    def run(executor: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        """The sum, and the clients' deltas."""
        module = wide(*widths).to(dtype)
        work = round_of(
            module, SIZES, dtype, batch_size=batch, steps=torch.full((len(SIZES),), steps), optimizers=(RULES[rule],)
        )
        outcome = make(executor, module, "mse", given(module)).run(work)
        views = ff.Packing.of(module).views  # the gaps between tensors depend on the dtype
        return [flat(views(vector).values()) for vector in (outcome.delta, *outcome.deltas)]

    for got, plain, exact in zip(run("native"), run("eager"), run("eager", torch.float64), strict=True):
        assert_close("delta", got, plain, exact)


# ---- sums -----------------------------------------------------------------------------------------------------------


def added_up(engine: Any, work: RoundWork, outcome: Outcome) -> Tensor:
    """The sum as a lane's clients come one after the other and lanes are folded two by two, until one is left."""
    assert outcome.deltas is not None
    weights = policy_weights(work, outcome.scalars["steps"].long()).float()
    lanes, order = engine.deal(work)
    sums: list[Tensor | None] = [None] * lanes
    for turn, client in enumerate(order.tolist()):
        if outcome.scalars["steps"][client] > 0 and not outcome.refused[client]:
            sums[turn % lanes] = plus(sums[turn % lanes], weights[client] * outcome.deltas[client])
    while len(sums) > 1:
        sums = [plus(*sums[i : i + 2]) for i in range(0, len(sums), 2)]
    return torch.zeros_like(outcome.delta) if sums[0] is None else sums[0]


def plus(a: Tensor | None, b: Tensor | None = None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


def lopsided(cohort: int) -> DeltaPolicy:
    """Weights that do not leave a refused client's share to the others, so that the sum is all there is."""
    return DeltaPolicy(torch.linspace(0.1, 1.7, cohort, dtype=torch.float64), normalised=False)


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@pytest.mark.parametrize("cohort", [1, 2, 3, 6, 11, 50, 63, 64, 65, 150])
def test_deltas_are_added_in_one_order_for_any_number_of_threads(cohort: int, threads: int) -> None:
    module = wide(37, 9)
    examples = given(module, 3 * cohort)
    examples.inputs[5::21] = float("inf")  # clients that are refused
    steps = torch.arange(cohort) % 4  # and some that do nothing
    work = round_of(module, (3,) * cohort, steps=steps, policy=lopsided(cohort))
    engine = make("native", module, "mse", examples, threads=threads)
    outcome = engine.run(work)
    assert outcome.refused.any() == (cohort > 1)
    assert torch.equal(outcome.delta, added_up(engine, work, outcome))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_large_delta_is_added_in_one_order_too(threads: int) -> None:
    """Longer than what a thread takes of it at a time, and no multiple of that."""
    module = wide(1031, 1033)
    engine = make("native", module, "mse", given(module, 14), threads=threads)
    work = round_of(module, (2,) * 7, steps=torch.ones(7, dtype=torch.int64), policy=lopsided(7))
    outcome = engine.run(work)
    assert torch.equal(outcome.delta, added_up(engine, work, outcome))
    assert outcome.deltas is not None
    torch.testing.assert_close(outcome.scalars["delta_norm"], outcome.deltas.double().norm(dim=1))


@pytest.mark.parametrize("refused", [[0], [1], [0, 1], [2, 3], [0, 1, 2, 3, 4]], ids=str)
def test_a_lane_with_nothing_in_it_changes_no_sum(refused: list[int]) -> None:
    module = wide(37, 9)
    examples = given(module, 15)
    for client in refused:
        examples.inputs[3 * client] = float("nan")
    engine = make("native", module, "mse", examples, threads=2)
    work = round_of(module, (3,) * 5, policy=lopsided(5))
    outcome = engine.run(work)
    assert outcome.refused.tolist() == [client in refused for client in range(5)]
    assert torch.equal(outcome.delta, added_up(engine, work, outcome))
