"""How often each of Delta-SGD's two conditions bound the step size: against the recursion by autograd in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastfed as ff

from ..simulation.support import simulation, small_federation, small_model

COHORT = (3, 11)
STEPS = 24
EXECUTORS = ("native", "batched", "eager")


def counted(client: int, steps: int, rule: ff.clients.DeltaSGD) -> tuple[int, int]:
    """How many of a client's steps, on all its examples at once, were bound by growth and by what was measured."""
    fed, model = small_federation(), small_model().double()
    inputs, targets = fed.examples.batch(fed.rows_of(client), torch.float64)
    grown_steps = measured_steps = 0
    lr, theta = rule.lr, rule.theta
    last: tuple[Tensor, Tensor] | None = None
    for _ in range(steps):
        x = torch.cat([p.detach().flatten() for p in model.parameters()])
        loss = nn.functional.cross_entropy(model(inputs), targets)
        g = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))])
        if last is not None or rule.grow_first:
            grown, measured = math.sqrt(1 + rule.delta * theta) * lr, math.inf
            if last is not None:
                measured = rule.gamma * float((x - last[0]).norm()) / (2 * float((g - last[1]).norm()))
            grown_steps, measured_steps = grown_steps + (grown <= measured), measured_steps + (measured < grown)
            chosen = min(grown, measured) + (rule.lr_eps if measured < math.inf else 0.0)
            lr, theta = chosen, chosen / lr
        last = (x, g)
        torch.nn.utils.vector_to_parameters(x - lr * g, model.parameters())
    return grown_steps, measured_steps


RULES = {
    "the paper's": ff.clients.DeltaSGD(lr=0.5, delta=0.3),
    "grows at once": ff.clients.DeltaSGD(lr=0.5, delta=0.3, grow_first=True, lr_eps=1e-8),
    "same batch": ff.clients.DeltaSGD(lr=0.5, gamma=1.0, same_batch=True),
}


def rows(rule: Any, executor: str, **settings: Any) -> dict[str, Any]:
    whole = {"cohort": [list(COHORT)], "epochs": None, "steps": STEPS, "batch_size": 100}
    return simulation(client=rule, executor=executor, **{**whole, **settings}).step()


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", RULES)
def test_both_conditions_are_counted(name: str, executor: str) -> None:
    row, expected = rows(RULES[name], executor), [counted(client, STEPS, RULES[name]) for client in COHORT]
    grown, measured = (sum(one) for one in zip(*expected, strict=True))
    assert min(grown, measured) > 2  # or little is tested
    assert row["step_size_grown"] == pytest.approx(grown / (2 * STEPS))
    assert row["step_size_measured"] == pytest.approx(measured / (2 * STEPS))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_step_that_grew_counts_as_such_whoever_rounded_it(executor: str) -> None:
    """A kernel's growth and torch's differ in their last bits now and then."""
    rule, everybody, steps = RULES["grows at once"], range(12), 40
    row = rows(rule, executor, cohort=[list(everybody)], steps=steps)
    grown, measured = (sum(one) for one in zip(*(counted(c, steps, rule) for c in everybody), strict=True))
    found = (row["step_size_grown"], row["step_size_measured"])
    assert found == pytest.approx((grown / (12 * steps), measured / (12 * steps)))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_clients_that_end_earlier_are_counted_to_their_end(executor: str) -> None:
    steps = [2 + client for client in range(12)]
    row = rows(RULES["the paper's"], executor, steps=steps)
    expected = [counted(client, steps[client], RULES["the paper's"]) for client in COHORT]
    grown, measured = (sum(one) / (steps[3] + steps[11]) for one in zip(*expected, strict=True))
    assert (row["step_size_grown"], row["step_size_measured"]) == pytest.approx((grown, measured))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_of_a_blend_only_delta_sgd_counts(executor: str) -> None:
    part = ff.clients.Part
    blend = ff.clients.Blend(
        [part(ff.clients.SGD(lr=0.1)), part(RULES["the paper's"])], choose=lambda of: int(of.client == 11)
    )
    grown, measured = counted(11, STEPS, RULES["the paper's"])
    row = rows(blend, executor)
    assert row["step_size_grown"] == pytest.approx(grown / STEPS)
    assert row["step_size_measured"] == pytest.approx(measured / STEPS)


def test_of_nobody_there_is_nothing_to_tell() -> None:
    row = rows(RULES["the paper's"], "native", cohort=ff.plan.Sampled(availability=[0.0] * 12))
    assert (row["clients"], row["step_size_grown"], row["step_size_measured"]) == (0, None, None)


def test_other_rules_have_no_such_columns() -> None:
    assert not {"step_size_grown", "step_size_measured"} & set(rows(ff.clients.SGD(lr=0.1), "native"))
    assert not {"step_size_grown", "step_size_measured"} & set(rows(ff.clients.SPS(), "eager"))
