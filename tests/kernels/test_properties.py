"""What must hold whatever the numbers are: bounds, and equalities between rules and ops."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fastfed as ff
from fastfed import kernels
from fastfed.kernels.table import DECAY, NON_NEGATIVE, Option, ServerRule

from .support import (
    EPSILON,
    RANKS,
    SM3,
    Snapshot,
    assert_same_bits,
    axis_sets,
    inside,
    makes_nan,
    normal,
    packed_normal,
    packing_for,
    same_bits,
    snapshot,
)

# ---- SM3 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["sm3", "sm3_1"])
def test_sm3_bounds_the_sum_of_squares_from_above(backend: str, rule: str) -> None:
    """min over the sets around a coordinate is at least its true running sum, up to one rounding per step."""
    packing = ff.Packing.from_shapes(RANKS)
    x = packed_normal(packing, 0)
    state = kernels.client_state(rule, x, packing=packing)
    sets, total = axis_sets(packing), torch.zeros(packing.size, dtype=torch.float64)
    for step in range(1, 7):
        grad = packed_normal(packing, step) * 2.0 ** (step % 3)
        total += grad.double().square()
        kernels.client_step(rule, x, grad, state, lr=0.1, backend=backend)
        bound = torch.full((packing.size,), torch.inf)
        for value, members in zip(state["mu"], sets, strict=True):
            bound[members] = bound[members].clamp(max=value)
        slack = 1 - step * EPSILON
        assert (bound.double() >= slack * total).all()
    matrix = next(slot for slot in packing.slots if slot.name == "matrix")
    assert (bound.double()[matrix.span] > 1.01 * total[matrix.span]).any(), "a cover that bounds nothing but equals it"


@pytest.mark.parametrize(
    "options",
    [{}, {"weight_decay": 0.1, "clip": 3.0}, {"delay": 2}, {"floor": 2.0}],
    ids=lambda o: "-".join(o) or "plain",
)
@pytest.mark.parametrize("rule", ["sm3", "sm3_1"])
def test_sm3_of_rank_one_is_adagrad(backend: str, rule: str, options: dict[str, Any]) -> None:
    packing = ff.Packing.from_shapes({"bias": (4097,), "scalar": (), "one": (1,)})
    within = inside(packing)
    x = packed_normal(packing, 1)
    y = x.clone()
    covered, plain = kernels.client_state(rule, x, packing=packing), kernels.client_state("adagrad", y)
    for step in range(4):
        grad = packed_normal(packing, 2 + step)
        kernels.client_step(rule, x, grad, covered, lr=0.1, backend=backend, **options)
        kernels.client_step("adagrad", y, grad, plain, lr=0.1, backend=backend, **options)
        assert same_bits(x, y), f"x after step {step + 1}"
        assert same_bits(covered["mu"], plain["v"][within]), f"second moment after step {step + 1}"


@pytest.mark.parametrize("rule", ["sm3", "sm3_adam"])
def test_exact_and_compact_differ_only_where_delayed(backend: str, rule: str) -> None:
    packing = ff.Packing.from_shapes(RANKS)
    grads = [packed_normal(packing, 3 + step) for step in range(4)]

    def run(mode: str, delay: int) -> Snapshot:
        x = packed_normal(packing, 2)
        state = kernels.client_state(rule, x, packing=packing, delay_mode=mode)
        for grad in grads:
            kernels.client_step(rule, x, grad, state, lr=0.1, delay=delay, backend=backend)
        return {"x": x, "mu": state["mu"]}

    assert_same_bits(run("exact", 1), run("compact", 1))
    assert not same_bits(run("exact", 2)["x"], run("compact", 2)["x"])


# ---- moments --------------------------------------------------------------------------------------------------------


def test_vmax_never_falls(backend: str) -> None:
    x = normal(0, 4097)
    state = kernels.server_state("ams", x)
    for step in range(6):
        before, v_before = state["vmax"].clone(), state["v"].clone()
        delta = normal(1 + step, 4097) * (1.0 if step < 2 else 0.01)
        kernels.server_step("ams", x, delta, state, lr=0.1, beta2=0.7, backend=backend)
        assert (state["vmax"] >= before).all()
        assert (state["vmax"] >= state["v"]).all()
    assert (state["v"] < v_before).any(), "v never fell, so the maximum was never tried"


@pytest.mark.parametrize("rule", ["adagrad", "adam", *SM3])
def test_delay_one_is_no_delay(backend: str, rule: str) -> None:
    packing = packing_for(rule)
    d = 331 if packing is None else packing.size

    def run(**options: Any) -> Snapshot:
        x = normal(0, d) if packing is None else packed_normal(packing, 0)
        state = kernels.client_state(rule, x, **({} if packing is None else {"packing": packing}))
        for step in range(4):
            grad = normal(1 + step, d) if packing is None else packed_normal(packing, 1 + step)
            kernels.client_step(rule, x, grad, state, lr=0.1, backend=backend, **options)
        return snapshot(x, state)

    assert_same_bits(run(), run(delay=1))
    assert not same_bits(run()["x"], run(delay=2)["x"])


# ---- what is not finite ---------------------------------------------------------------------------------------------


@makes_nan
@pytest.mark.parametrize("rule", kernels.SERVER_RULES)
def test_a_nan_stays_in_its_coordinate_and_is_not_forgotten(backend: str, rule: str) -> None:
    x = normal(0, 77)
    state = kernels.server_state(rule, x)
    delta = normal(1, 77)
    delta[5] = torch.nan
    others = torch.arange(77) != 5
    for step in range(3):
        kernels.server_step(rule, x, delta if step == 0 else normal(step, 77), state, lr=0.1, backend=backend)
        for name, tensor in snapshot(x, state).items():
            assert tensor[5].isnan(), f"{name} after step {step + 1}"
            assert tensor[others].isfinite().all(), f"{name} after step {step + 1}"


@makes_nan
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_clipping_does_not_hide_a_gradient_that_is_not_finite(backend: str, bad: float) -> None:
    x, grad = normal(0, 3, 77), normal(1, 3, 77)
    grad[1, 5] = bad
    kernels.client_step("sgd", x, grad, {}, lr=0.1, clip=1.0, backend=backend)
    assert not x[1].isfinite().all()
    assert x[[0, 2]].isfinite().all()


@makes_nan
def test_sps_does_not_hide_a_loss_that_is_not_finite(backend: str) -> None:
    """A client whose loss is NaN has diverged; standing still would make it look healthy."""
    x = normal(0, 3, 77)
    state = kernels.client_state("sps", x)
    kernels.client_step("sps", x, normal(1, 3, 77), state, loss=torch.tensor([1.0, torch.nan, 1.0]), backend=backend)
    assert not x[1].isfinite().any()
    assert x[[0, 2]].isfinite().all()


@pytest.mark.parametrize("lr_max", [None, 0.3])
def test_sps_below_f_star_stands_still(backend: str, lr_max: float | None) -> None:
    """It would go up the hill otherwise."""
    x, before = normal(0, 4, 77), normal(0, 4, 77)
    loss = torch.tensor([0.05, 0.1, -3.0, 3.0], dtype=torch.float64)
    state = kernels.client_state("sps", x)
    kernels.client_step("sps", x, normal(1, 4, 77), state, loss=loss, f_star=0.1, lr_max=lr_max, backend=backend)
    assert torch.equal(x[:3], before[:3])
    assert state["lr"].flatten().tolist()[:3] == [0.0] * 3
    assert float(state["lr"].flatten()[3]) > 0
    assert not torch.equal(x[3], before[3])


# ---- aggregation ----------------------------------------------------------------------------------------------------

FURTHER: dict[str, dict[str, Any]] = {"adam": {"second_moment_of": "delta"}, "ams": {"bias_correction": True}}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rule", kernels.SERVER_RULES)
def test_aggregate_step_is_sum_then_step(backend: str, rule: str, dtype: torch.dtype) -> None:
    options = {"lr": 0.1, **FURTHER.get(rule, {})}
    for clients, d in ((1, 7), (3, 4097), (37, 130)):
        deltas, weights = normal(1, clients, d).to(dtype), normal(2, clients)
        x = normal(0, d)
        y = x.clone()
        made = {"bias_correction": True} if "bias_correction" in options else {}
        fused, apart = kernels.server_state(rule, x, **made), kernels.server_state(rule, y, **made)
        for _ in range(2):
            kernels.aggregate_step(rule, x, deltas, weights, fused, backend=backend, **options)
            total = kernels.weighted_sum(deltas, weights, backend=backend)
            kernels.server_step(rule, y, total, apart, backend=backend, **options)
        assert_same_bits(snapshot(x, fused), snapshot(y, apart), f"{clients} clients:")


def test_a_rule_without_second_moment_may_do_without_the_first(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As no rule of the table does: `beta1` 0 leaves m out, and then m would equal the delta."""
    options = {"lr": Option(1.0, NON_NEGATIVE), "beta1": Option(0.9, DECAY)}
    monkeypatch.setitem(kernels.SERVER_RULES, "smoothed", ServerRule("smoothed", "momentum", ("m",), options))
    for dtype in (torch.float32, torch.bfloat16):
        x, deltas = normal(0, 1031), normal(1, 3, 1031).to(dtype)
        state = kernels.server_state("smoothed", x, beta1=0.0)
        assert not state
        wanted = x + 0.5 * deltas[0].float()
        kernels.server_step("smoothed", x, deltas[0], state, lr=0.5, beta1=0.0, backend=backend)
        assert torch.equal(x, wanted)
        wanted = x + 0.5 * kernels.weighted_sum(deltas, torch.ones(3), backend=backend)
        kernels.aggregate_step("smoothed", x, deltas, torch.ones(3), state, lr=0.5, beta1=0.0, backend=backend)
        assert torch.equal(x, wanted)
    with pytest.raises(ValueError, match="state: lacks m"):
        kernels.server_step("smoothed", x, deltas[0], {}, lr=0.5, backend=backend)


def test_weight_zero_is_absence(backend: str) -> None:
    deltas, weights = normal(1, 6, 1031), torch.tensor([0.5, 0.0, 0.25, 0.0, 0.0, 1.0])
    there = weights != 0
    torch.testing.assert_close(
        kernels.weighted_sum(deltas, weights, backend=backend),
        kernels.weighted_sum(deltas[there], weights[there], backend=backend),
        rtol=0,
        atol=0,
    )
    assert not kernels.weighted_sum(deltas, torch.zeros(6), backend=backend).any()
