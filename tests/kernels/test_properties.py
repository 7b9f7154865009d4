"""What must hold whatever the numbers are: bounds, equalities between rules and ops, and the same bits every time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fastfed as ff
from fastfed import kernels
from fastfed.kernels.table import DECAY, NON_NEGATIVE, Option, ServerRule

from .support import (
    BIG,
    EPSILON,
    RANKS,
    SLOW,
    assert_runs_close,
    assert_same_bits,
    axis_sets,
    inside,
    makes_nan,
    normal,
    packed_normal,
    same_bits,
)

Snapshot = dict[str, Tensor]
SM3 = ("sm3", "sm3_1", "sm3_adam", "sm3_1_adam")


def snapshot(x: Tensor, state: dict[str, Tensor]) -> Snapshot:
    return {"x": x.clone(), **{name: tensor.clone() for name, tensor in state.items()}}


def packing_for(rule: str) -> ff.Packing | None:
    return ff.Packing.from_shapes(RANKS) if rule in SM3 else None


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


# ---- the same bits for any number of threads ------------------------------------------------------------------------


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets the number of threads of torch (and of the C++ kernels, which follow it) and of numba; both are restored."""
    before = torch.get_num_threads()
    try:
        import numba
    except ImportError:
        numba = None
    numba_before = None if numba is None else numba.get_num_threads()

    def use(count: int) -> None:
        torch.set_num_threads(count)
        if numba is not None:
            numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))

    yield use
    torch.set_num_threads(before)
    if numba is not None:
        numba.set_num_threads(numba_before)


def many_tensors(size: int) -> ff.Packing:
    """Packed shapes of about `size` numbers, one of them most of it."""
    side = int(size**0.5)
    return ff.Packing.from_shapes({"first": (3, 5), "big": (side, side - 7), "bias": (side,), "conv": (5, 2, 3, 3)})


THREADED: dict[str, Callable[[str], dict[str, Tensor]]] = {}


def threaded(function: Callable[[str], dict[str, Tensor]]) -> Callable[[str], dict[str, Tensor]]:
    THREADED[function.__name__.removeprefix("run_")] = function
    return function


@threaded
def run_server_step(backend: str) -> dict[str, Tensor]:
    x, delta = normal(0, BIG), normal(1, BIG)
    state = kernels.server_state("yogi", x)
    kernels.server_step("yogi", x, delta, state, lr=0.1, backend=backend)
    return snapshot(x, state)


@threaded
def run_aggregate_step(backend: str) -> dict[str, Tensor]:
    x, deltas, weights = normal(0, BIG), normal(1, 3, BIG), torch.tensor([0.2, 0.5, 0.3])
    state = kernels.server_state("ams", x)
    kernels.aggregate_step("ams", x, deltas, weights, state, lr=0.1, backend=backend)
    return snapshot(x, state)


@threaded
def run_weighted_sum(backend: str) -> dict[str, Tensor]:
    return {"sum": kernels.weighted_sum(normal(1, 5, BIG), normal(2, 5), backend=backend)}


@threaded
def run_weighted_sum_of_many(backend: str) -> dict[str, Tensor]:
    rows = 20 if SLOW else 300
    return {"sum": kernels.weighted_sum(normal(1, rows, 777), normal(2, rows), backend=backend)}


@threaded
def run_trimmed_mean(backend: str) -> dict[str, Tensor]:
    return {"mean": kernels.trimmed_mean(normal(1, 5, BIG), 1, backend=backend)}


@threaded
def run_trimmed_mean_of_many(backend: str) -> dict[str, Tensor]:
    rows = 20 if SLOW else 300
    return {"mean": kernels.trimmed_mean(normal(1, rows, 777), rows // 10, backend=backend)}


@threaded
def run_norms_and_clip(backend: str) -> dict[str, Tensor]:
    x = normal(0, 3, BIG)
    return {"norms": kernels.norms(x, backend=backend), "before": kernels.clip(x, 5.0, backend=backend), "x": x}


@threaded
def run_norm_of_one(backend: str) -> dict[str, Tensor]:
    return {"norm": kernels.norms(normal(0, BIG), backend=backend)}


@threaded
def run_clipped_adam_with_floor(backend: str) -> dict[str, Tensor]:
    return _client_run(backend, "adam", normal(0, BIG), 2, lr=0.1, clip=2.0, floor=1e-3)


@threaded
def run_delta_sgd(backend: str) -> dict[str, Tensor]:
    return _client_run(backend, "delta_sgd", normal(0, BIG), 3)


@threaded
def run_sps(backend: str) -> dict[str, Tensor]:
    return _client_run(backend, "sps", normal(0, BIG), 2, loss=100.0)


@threaded
def run_batch_of_delta_sgd(backend: str) -> dict[str, Tensor]:
    return _client_run(backend, "delta_sgd", normal(0, 5, 3001), 3, clip=2.0)


@threaded
def run_batch_of_adam(backend: str) -> dict[str, Tensor]:
    finished = torch.tensor([False, True, False, False, False])
    return _client_run(backend, "adam", normal(0, 5, 3001), 2, lr=0.1, clip=2.0, floor=1e-3, finished=finished)


@threaded
def run_sm3(backend: str) -> dict[str, Tensor]:
    packing = many_tensors(BIG)
    return _client_run(backend, "sm3", packed_normal(packing, 0), 2, packing, lr=0.1, clip=2.0, floor=1e-3)


@threaded
def run_sm3_1(backend: str) -> dict[str, Tensor]:
    packing = many_tensors(BIG)
    return _client_run(backend, "sm3_1", packed_normal(packing, 0), 2, packing, lr=0.1)


@threaded
def run_batch_of_sm3_adam(backend: str) -> dict[str, Tensor]:
    packing = many_tensors(3001)
    return _client_run(backend, "sm3_adam", packed_normal(packing, 0, 5), 2, packing, lr=0.1, clip=2.0)


@threaded
def run_random_numbers(backend: str) -> dict[str, Tensor]:
    stream, ids = kernels.Stream(seed=5, purpose=3, round=2), torch.arange(7)
    return {
        "uniform": kernels.uniform(BIG, stream, backend=backend),
        "normal": kernels.normal(BIG, stream, backend=backend),
        "permutation": kernels.permutation(min(BIG, 100_003), stream, backend=backend),
        "batch": kernels.normal(1001, stream, clients=ids, backend=backend),
        "permutations": kernels.permutation(101, stream, clients=ids, backend=backend),
        "shuffles": kernels.shuffles(300 * ids, stream, clients=ids, backend=backend),
    }


def _client_run(
    backend: str, rule: str, x: Tensor, steps: int, packing: ff.Packing | None = None, **options: Any
) -> dict[str, Tensor]:
    state = kernels.client_state(rule, x, **({} if packing is None else {"packing": packing}))
    lead = x.shape[:-1]
    for step in range(steps):
        shape = (*lead, x.shape[-1])
        grad = normal(1 + step, *shape) if packing is None else packed_normal(packing, 1 + step, *lead)
        given = {**options, "loss": torch.full(lead, options["loss"])} if "loss" in options and lead else options
        kernels.client_step(rule, x, grad, state, backend=backend, **given)
    return snapshot(x, state)


@pytest.mark.parametrize("name", THREADED)
def test_same_bits_for_any_number_of_threads(backend: str, name: str, threads: Callable[[int], None]) -> None:
    runs = []
    for count in (1, 7) if SLOW else (1, 2, 7):
        threads(count)
        runs.append(THREADED[name](backend))
    for run in runs[1:]:
        assert_same_bits(runs[0], run)


# ---- batches --------------------------------------------------------------------------------------------------------

BATCHED: dict[str, dict[str, Any]] = {
    "sgd": {},
    "momentum": {"momentum": 0.7},
    "adagrad": {"eps": 1e-3, "floor": 3.0},
    "adam": {"eps": 1e-3, "delay": 2, "floor": 3.0},
    "sm3": {"eps": 1e-3, "floor": 3.0},
    "sm3_1": {"eps": 1e-3, "delay": 2},
    "sm3_adam": {"eps": 1e-3, "floor": 3.0},
    "sm3_1_adam": {"eps": 1e-3},
    "delta_sgd": {"gamma": 1.5},
    "sps": {"lr_max": 0.5},
}
CLIENTS, STEPS = 5, (2 if SLOW else 4)


class Batch:
    """Inputs of a batch of clients, every client with its own numbers, learning rate, loss and moment of finishing."""

    def __init__(self, rule: str, d: int = 1031) -> None:
        self.rule, self.packing = rule, packing_for(rule)
        self.d = d if self.packing is None else self.packing.size
        self.made = {} if self.packing is None else {"packing": self.packing}
        self.options = {**BATCHED[rule], "clip": 20.0, "prox": 0.2, "weight_decay": 0.05}
        self.anchor = self.vectors(99)
        self.lr = torch.tensor([0.1, 0.2, 0.05, 0.3, 0.01], dtype=torch.float64)
        self.loss = torch.tensor([3.0, 900.0, 50.0, 0.5, 100.0], dtype=torch.float64)
        self.scale = torch.tensor([1.0, 3.0, 1e-3, 0.5, 1.0])[:, None]

    def vectors(self, seed: int, *lead: int) -> Tensor:
        return normal(seed, *lead, self.d) if self.packing is None else packed_normal(self.packing, seed, *lead)

    def grad(self, step: int) -> Tensor:
        return self.vectors(10 + step, CLIENTS) * self.scale

    def correction(self, step: int) -> Tensor:
        return self.vectors(30 + step, CLIENTS) * 0.1 * self.scale

    def finished(self, step: int) -> Tensor:
        """Client 1 is done after step 1, client 4 before it began."""
        return torch.tensor([False, step >= 1, False, False, True])

    def per_client(self, pick: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        given = {} if self.rule == "sps" else {"lr": pick(self.lr)}
        return {**given, "loss": pick(self.loss)} if self.rule == "sps" else given

    def run(self, backend: str) -> Iterator[Snapshot]:
        x = self.vectors(0, CLIENTS)
        state = kernels.client_state(self.rule, x, **self.made)
        yield snapshot(x, state)
        for step in range(STEPS):
            kernels.client_step(
                self.rule,
                x,
                self.grad(step),
                state,
                anchor=self.anchor,
                correction=self.correction(step),
                finished=self.finished(step),
                backend=backend,
                **self.per_client(lambda t: t),
                **self.options,
            )
            yield snapshot(x, state)


@pytest.mark.parametrize("rule", BATCHED)
def test_a_batch_is_its_clients_one_by_one(backend: str, rule: str) -> None:
    batch = Batch(rule)
    *_, together = batch.run(backend)
    for client in range(CLIENTS):
        x = batch.vectors(0, CLIENTS)[client].clone()
        state = kernels.client_state(rule, x, **batch.made)
        for step in range(STEPS):
            if batch.finished(step)[client]:
                continue
            kernels.client_step(
                rule,
                x,
                batch.grad(step)[client].clone(),
                state,
                anchor=batch.anchor,
                correction=batch.correction(step)[client].clone(),
                backend=backend,
                **batch.per_client(lambda t, client=client: t[client].clone()),
                **batch.options,
            )
        row = {name: t if name == "cover" else t[client] for name, t in together.items()}
        assert_same_bits(row, snapshot(x, state), f"client {client}:")


@pytest.mark.parametrize("rule", BATCHED)
def test_finished_clients_are_untouched(backend: str, rule: str) -> None:
    batch = Batch(rule)
    before: Snapshot | None = None
    for step, after in enumerate(batch.run(backend), start=-1):
        if before is not None:
            finished = batch.finished(step)
            for name in after.keys() - {"cover"}:
                assert same_bits(after[name][finished], before[name][finished]), f"{name} of a finished client"
            assert not same_bits(after["x"][~finished], before["x"][~finished])
        before = after


def test_one_client_may_have_finished(backend: str) -> None:
    x = normal(0, 77)
    state = kernels.client_state("adam", x)
    before = snapshot(x, state)
    kernels.client_step("adam", x, normal(1, 77), state, lr=0.1, finished=torch.tensor(True), backend=backend)
    assert_same_bits(snapshot(x, state), before)


@makes_nan
def test_a_finished_client_may_hold_rubbish(backend: str) -> None:
    """Nothing is read into its neighbours, and it keeps its own bits, NaNs included."""
    finished = torch.tensor([False, True, False])
    x, grad = normal(0, 3, 331), normal(1, 3, 331)
    x[1], grad[1] = torch.nan, torch.inf
    for rule, options in (("adam", {"lr": 0.1, "clip": 1.0, "floor": 0.1}), ("delta_sgd", {"clip": 1.0})):
        y = x.clone()
        state = kernels.client_state(rule, y)
        for _ in range(2):
            kernels.client_step(rule, y, grad, state, finished=finished, backend=backend, **options)
        assert same_bits(y[1], x[1])
        assert y[~finished].isfinite().all()
        for name, tensor in state.items():
            assert tensor.isfinite().all(), f"{rule}: {name}"


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


# ---- anything hypothesis thinks of ----------------------------------------------------------------------------------

EXAMPLES = 8 if SLOW else 25
QUICK = settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None)
SEEDS = st.integers(0, 2**31)
LENGTHS = st.integers(1, 300 if SLOW else 3000)


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, tuple[int, ...]]:
    """Up to four tensors of rank 0 to 4."""
    several = st.lists(st.lists(st.integers(1, 7), max_size=4).map(tuple), min_size=1, max_size=4)
    return {f"t{number}": shape for number, shape in enumerate(draw(several))}


@st.composite
def server_options(draw: st.DrawFn) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """A rule, options of its step, options of its state."""
    rule = draw(st.sampled_from(sorted(kernels.SERVER_RULES)))
    options: dict[str, Any] = {"lr": draw(st.floats(1e-4, 1.0))}
    made: dict[str, Any] = {}
    known = kernels.SERVER_RULES[rule].options
    if "momentum" in known:
        options["momentum"] = draw(st.floats(0, 0.99))
    if "beta1" in known:
        made["beta1"] = options["beta1"] = draw(st.one_of(st.just(0.0), st.floats(0, 0.99)))
        made["tau"] = options["tau"] = draw(st.floats(1e-3, 0.1))
        options["second_moment_of"] = draw(st.sampled_from(["momentum", "delta"]))
        if draw(st.booleans()):
            made["v0"] = draw(st.floats(0, 2.0))
    if "beta2" in known:
        options["beta2"] = draw(st.floats(0, 0.999))
        made["bias_correction"] = options["bias_correction"] = draw(st.booleans())
    return rule, options, made


@st.composite
def client_options(draw: st.DrawFn) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """A rule, options of its step, options of its state."""
    rule = draw(st.sampled_from(sorted(kernels.CLIENT_RULES)))
    entry = kernels.CLIENT_RULES[rule]
    options: dict[str, Any] = {}
    made: dict[str, Any] = {}
    ranges = {
        "lr": (1e-3, 0.5),
        "momentum": (0, 0.99),
        "beta1": (0, 0.99),
        "beta2": (0, 0.999),
        "eps": (1e-3, 0.1),
        "gamma": (0.5, 3.0),
        "delta": (0, 0.5),
        "theta": (0.1, 2.0),
        "c": (0.1, 2.0),
        "lr_max": (0.01, 1.0),
        "weight_decay": (0, 0.1),
        "prox": (1e-3, 0.5),
        "clip": (0.1, 30.0),
    }
    required = {"lr", "eps", "beta1"} & entry.options.keys()
    for name in ranges.keys() & entry.options.keys():
        if name in required or draw(st.booleans()):
            options[name] = draw(st.floats(*ranges[name]))
    if "delay" in entry.options:
        options["delay"] = draw(st.integers(1, 4))
    if entry.cover is not None and entry.formula == "adagrad":
        made["beta1"] = options["beta1"]
    if entry.cover == "II" and draw(st.booleans()):
        made["delay_mode"] = "exact"
    return rule, options, made


@given(chosen=server_options(), d=LENGTHS, clients=st.one_of(st.none(), st.integers(1, 9)), seed=SEEDS)
@QUICK
def test_any_server_step(
    backend: str, chosen: tuple[str, dict[str, Any], dict[str, Any]], d: int, clients: int | None, seed: int
) -> None:
    rule, options, made = chosen
    x0 = normal(seed, d)

    def run(backend: str, dtype: torch.dtype) -> list[Snapshot]:
        x = x0.to(dtype, copy=True)
        state, shots = kernels.server_state(rule, x, **made), []
        for step in range(3):
            deltas = normal(seed + 1 + step, clients or 1, d, dtype=dtype)
            if clients is None:
                kernels.server_step(rule, x, deltas[0], state, backend=backend, **options)
            else:
                weights = normal(seed + 10 + step, clients, dtype=dtype) / clients
                kernels.aggregate_step(rule, x, deltas, weights, state, backend=backend, **options)
            shots.append(snapshot(x, state))
        return shots

    plain, exact = run("reference", torch.float32), run("reference", torch.float64)
    assert_runs_close(run(backend, torch.float32), plain, exact, x0)


@given(
    chosen=client_options(), d=LENGTHS, tensors=shapes(), clients=st.one_of(st.none(), st.integers(1, 5)), seed=SEEDS
)
@QUICK
def test_any_client_step(
    backend: str,
    chosen: tuple[str, dict[str, Any], dict[str, Any]],
    d: int,
    tensors: dict[str, tuple[int, ...]],
    clients: int | None,
    seed: int,
) -> None:
    rule, options, made = chosen
    packing = ff.Packing.from_shapes(tensors) if rule in SM3 else None
    if packing is not None:
        made = {**made, "packing": packing}
    lead = () if clients is None else (clients,)

    def vectors(seed: int, dtype: torch.dtype) -> Tensor:
        if packing is None:
            return normal(seed, *lead, d, dtype=dtype)
        return packed_normal(packing, seed, *lead, dtype=dtype)

    def run(backend: str, dtype: torch.dtype) -> list[Snapshot]:
        x = vectors(seed, dtype)
        state, shots = kernels.client_state(rule, x, **made), []
        for step in range(4):
            given = dict(options)
            if "prox" in given:
                given["anchor"] = vectors(seed + 50, dtype)
            if seed % 2:
                given["correction"] = vectors(seed + 60 + step, dtype)
            if seed % 3 == 0 and clients is not None:
                given["finished"] = torch.arange(clients) % 3 == step % 3
            if rule == "sps":
                given["loss"] = normal(seed + 70 + step, *lead, dtype=dtype).abs() * 100
            kernels.client_step(rule, x, vectors(seed + 1 + step, dtype), state, backend=backend, **given)
            shots.append(snapshot(x, state))
        return shots

    plain, exact = run("reference", torch.float32), run("reference", torch.float64)
    assert_runs_close(run(backend, torch.float32), plain, exact, vectors(seed, torch.float32))


@given(tensors=shapes(), seed=SEEDS, rule=st.sampled_from(SM3), delay=st.integers(1, 3))
@QUICK
def test_any_packed_shapes_match_their_sets(
    tensors: dict[str, tuple[int, ...]], seed: int, rule: str, delay: int
) -> None:
    """The axes of packed tensors are one explicit cover among others: the reference knows both."""
    packing = ff.Packing.from_shapes(tensors)
    within = inside(packing)
    place = torch.full((packing.size,), -1)
    place[within] = torch.arange(int(within.sum()))
    sets = [place[members].tolist() for members in axis_sets(packing)]
    x = packed_normal(packing, seed, dtype=torch.float64)
    y = x[within].clone()
    by_axis, by_set = kernels.client_state(rule, x, packing=packing), kernels.client_state(rule, y, cover=sets)
    for step in range(4):
        grad = packed_normal(packing, seed + 1 + step, dtype=torch.float64)
        kernels.client_step(rule, x, grad, by_axis, lr=0.1, delay=delay, backend="reference")
        kernels.client_step(rule, y, grad[within].clone(), by_set, lr=0.1, delay=delay, backend="reference")
    torch.testing.assert_close(x[within], y, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(by_axis["mu"], by_set["mu"], rtol=1e-12, atol=1e-14)
    assert not x[~within].any()
