"""The server's step of `device` in Triton's interpreter: lanes are joined on its way, to the bits that a sum of its own
and a step behind it would have.

Needs a session of its own, as ``test_device.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastfed as ff
from fastfed import kernels, methods
from fastfed.aggregate import result
from fastfed.kernels import registry
from fastfed.server import ServerModel
from fastfed.train import Outcome, RoundWork, total

from ..kernels.cases import SERVER_CASES, ServerCase
from ..simulation.support import simulation
from .support import normal, round_of

pytest.importorskip("triton", reason="Triton is not installed")
if not registry.interpreting():
    pytest.skip("device kernels run in Triton's interpreter here (TRITON_INTERPRET=1)", allow_module_level=True)

from fastfed.kernels.ops import lanes_step
from fastfed.kernels.triton import races
from fastfed.kernels.triton.counted import counted
from fastfed.kernels.triton.engine import deltas
from fastfed.kernels.triton.launch import launches
from fastfed.train.device import lanes
from fastfed.train.device.engine import terms_of
from fastfed.train.device.lanes import LANES, LaneSum, LaneTotal, Layout, outcome

pytestmark = pytest.mark.device

SAME = Layout(lambda vectors: vectors, None)


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Zeros of another sign are other bits."""
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


# ---- the kernel -----------------------------------------------------------------------------------------------------

# Every rule with every option of it that chooses other arithmetic.
RULES = [case for case in SERVER_CASES if case.clients is None and case.delta_dtype is torch.float32 and case.d <= 257]
SIZES = [1, 33, 1100]


def shuffled(d: int) -> Tensor:
    return torch.randperm(d, generator=torch.Generator().manual_seed(d)).int()


def lanes_of(seed: int, d: int) -> Tensor:
    """Some of whose elements are zeros in every lane, as where no client has moved."""
    made = normal(seed, LANES, d)
    made[:, 1::3] = 0
    return made


def after(case: ServerCase, d: int, step: Callable[[Tensor, Tensor, dict[str, Tensor]], None]) -> dict[str, Tensor]:
    """Model and state after two steps; zeros of both signs are among the model's numbers."""
    x = normal(8, d)
    x[::4], x[1::4] = 0.0, -0.0
    state = kernels.server_state(case.rule, x, **case.state, **correction(case))
    for number in range(2):
        step(x, lanes_of(number, d), state)
    return {"x": x, **state}


def correction(case: ServerCase) -> dict[str, Any]:
    asked = case.options.get("bias_correction", False)
    return {"bias_correction": asked} if asked and "bias_correction" not in case.state else {}


@pytest.mark.parametrize("moved", [False, True], ids=["same places", "other places"])
@pytest.mark.parametrize("d", [pytest.param(d, marks=pytest.mark.exhaustive if d != 33 else ()) for d in SIZES])
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.id, marks=pytest.mark.exhaustive if n % 2 else ()) for n, case in enumerate(RULES)],
)
def test_lanes_joined_on_the_way_give_the_same_bits(case: ServerCase, d: int, moved: bool) -> None:
    places = shuffled(d) if moved else None

    def in_one(x: Tensor, sums: Tensor, state: dict[str, Tensor]) -> None:
        lanes_step(case.rule, x, sums, places, state, **case.options)

    def in_two(x: Tensor, sums: Tensor, state: dict[str, Tensor]) -> None:
        joined, _ = deltas.join(sums)
        delta = joined if places is None else torch.empty_like(joined).index_copy_(0, places.long(), joined)
        kernels.server_step(case.rule, x, delta, state, backend="triton", **case.options)

    with races.watched() as verdict:
        got = after(case, d, in_one)
    verdict.check()
    wanted = after(case, d, in_two)
    assert got.keys() == wanted.keys()
    for name, tensor in wanted.items():
        same = same_bits if tensor.dtype is torch.float32 else torch.equal
        assert same(got[name], tensor), name


def test_all_rules_are_among_them() -> None:
    assert {case.rule for case in RULES} == set(kernels.SERVER_RULES)
    options = {name for case in RULES for name in case.options}
    assert {"second_moment_of", "bias_correction"} <= options


def test_lanes_hold_no_negative_zero() -> None:
    """Of products that underflow, and of numbers that cancel: a sum that begins at 0 has the bits of one that begins
    with a lane."""
    moves = torch.tensor([[-1e-30, -1.0], [-0.0, 1.0], [-1e-30, -0.0]])
    sums = torch.zeros(2, 2)
    deltas.fold(moves, torch.zeros(2), torch.full((3,), 1e-20), sums, 0, 2)
    assert same_bits(sums, torch.zeros(2, 2))


@pytest.mark.parametrize(("rule", "vectors"), [("sgd", 0), ("momentum", 1), ("adam", 2), ("ams", 3)])
def test_lanes_are_read_once_and_their_sum_is_never_written(rule: str, vectors: int) -> None:
    d = 1100
    x, sums = normal(1, d), normal(2, LANES, d)
    state = kernels.server_state(rule, x)
    for places in (None, shuffled(d)):
        with counted() as seen:
            lanes_step(rule, x, sums, places, state, lr=0.1)
        (step,) = seen
        assert step.bytes_read == 4 * d * (LANES + 1 + vectors + (places is not None))
        assert step.bytes_written == 4 * d * (1 + vectors)


# ---- the total of a round -------------------------------------------------------------------------------------------


def in_lanes(work: RoundWork, x: Tensor) -> Outcome:
    """The sum of models x (clients, d), as if they had trained."""
    terms = terms_of(work)
    part = LaneSum(terms, range(LANES), torch.device("cpu"), SAME)
    part.add(0, x[terms.order], work.start, {})
    return outcome([part])


def work_for(moves: Tensor) -> tuple[RoundWork, Tensor]:
    """A round whose clients move so, (clients, d), from zero."""
    clients, d = moves.shape
    steps = torch.ones(clients, dtype=torch.int64)
    return round_of(torch.zeros(d), [4] * clients, steps=steps, keep_deltas=False), moves


def stepped(outcome: Outcome, server: ff.servers.Server, x: Tensor) -> tuple[bool, Tensor, Counter[str]]:
    """Whether the server moves along it, the model after that, and the launches of it."""
    counts = result.counted(outcome)
    norms = {"multipliers": torch.ones(len(counts)), "norms": torch.zeros(len(counts))}  # which no kernel looks at
    aggregate = result.summary(outcome.total, outcome, counts, counts.double(), **norms)
    model = ServerModel(server, x.clone())
    with launches() as seen:
        moved = model.step(aggregate, 1.0)
    return moved, model.x, seen


ADAM, PLAIN = ff.servers.FedAdam(lr=0.1), ff.servers.FedAvg()
MOST = (0.01 * torch.finfo(torch.float32).max) ** 0.5  # what a server with second moments takes


def test_an_ordinary_round_is_one_launch_behind_its_lanes() -> None:
    got = in_lanes(*work_for(normal(1, 5, 40)))
    moved, x, seen = stepped(got, ADAM, normal(2, 40))
    assert moved
    assert seen == {"_aggregate_step": 1}
    again = in_lanes(*work_for(normal(1, 5, 40)))
    assert again.delta is again.delta  # joined, once
    moved, apart, seen = stepped(again, ADAM, normal(2, 40))
    assert moved
    assert "_aggregate_step" not in seen
    assert same_bits(x, apart)


def test_who_asks_after_the_step_is_given_the_sum() -> None:
    moves = normal(1, 5, 40)
    got, wanted = (in_lanes(*work_for(moves)) for _ in range(2))
    stepped(got, ADAM, normal(2, 40))
    assert same_bits(got.delta, wanted.delta)
    assert got.total.largest == float(wanted.delta.abs().max())


def test_a_sum_that_could_be_too_large_but_is_not_is_looked_at_and_moves() -> None:
    """Two clients that all but cancel."""
    moves = torch.full((2, 40), 2 * MOST)
    moves[1] = -0.5 * moves[0]
    moves[1, 1:] = -moves[0, 1:]
    got = in_lanes(*work_for(moves * torch.tensor(0.9)))
    assert isinstance(got.total, LaneTotal)
    assert got.total.bound > MOST > got.total.largest
    moved, x, seen = stepped(got, ADAM, torch.zeros(40))
    assert moved
    assert seen["_aggregate_step"] == 0
    assert bool(x[0] > 0)
    assert not bool(x[1:].any())


@pytest.mark.parametrize("server", [ADAM, PLAIN])
def test_a_sum_that_is_too_large_changes_nothing(server: ff.servers.Server) -> None:
    most = 0.02 * torch.finfo(torch.float32).max if server is PLAIN else 2 * MOST
    got, before = in_lanes(*work_for(torch.full((3, 40), most))), normal(2, 40)
    moved, x, seen = stepped(got, server, before)
    assert not moved
    assert same_bits(x, before)
    assert seen["_aggregate_step"] == 0


def test_lanes_that_overflow_change_nothing() -> None:
    got, before = in_lanes(*work_for(torch.full((3, 40), 3e38))), normal(2, 40)
    assert not stepped(got, PLAIN, before)[0]


def test_a_refused_client_leaves_its_share_to_the_others() -> None:
    moves = normal(1, 5, 40)
    without = moves[[0, 1, 3, 4]]
    moves[2, 7] = torch.nan
    got = in_lanes(*work_for(moves))
    assert isinstance(got.total, LaneTotal)
    assert got.total.bound == torch.inf  # that of the lanes is not the sum's, which is divided
    unasked = torch.zeros(40)
    got.total.step("sgd", unasked, {})
    moved, x, seen = stepped(in_lanes(*work_for(moves)), PLAIN, torch.zeros(40))
    assert moved
    assert seen["_aggregate_step"] == 0
    for model in (x, unasked):
        torch.testing.assert_close(model, without.mean(0))


def test_another_backend_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "default", "reference")
    *_, seen = stepped(in_lanes(*work_for(normal(1, 5, 40))), PLAIN, normal(2, 40))
    assert seen["_aggregate_step"] == 0


# ---- whole runs -----------------------------------------------------------------------------------------------------


def conv_net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 4))


def pictures() -> ff.data.Federated:
    """Four clients with three pictures of 6 by 6 each."""
    store = ff.data.Examples(normal(3, 12, 1, 6, 6), torch.arange(12) % 4)
    return ff.data.Federated("pictures", store, torch.arange(12), torch.arange(0, 13, 3))


def small(**settings: Any) -> ff.Simulation:
    return simulation(**({"executor": "device", "device": "cpu", "steps": 1, "epochs": None} | settings))


def of_pictures(**settings: Any) -> ff.Simulation:
    given: dict[str, Any] = {"client": ff.clients.SGD(lr=0.1), "cohort": 3, "steps": 1, "batch_size": 2, "seed": 5}
    return ff.Simulation(conv_net(), pictures(), executor="device", device="cpu", **(given | settings))


def run_of(sim: ff.Simulation, rounds: int = 2) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    sim.run(rounds, evaluate_every=0, progress=False)
    return {name: tensor.clone() for name, tensor in sim.tensors().items()}, sim.history.without_seconds()


SERVERS: dict[str, Callable[[], ff.Simulation]] = {
    "FedAvg": lambda: small(server=ff.servers.FedAvg()),
    "FedYogi": small,
    "FedAMS": lambda: small(server=ff.servers.FedAMS(lr=0.1)),
    "conv net": lambda: of_pictures(server=ff.servers.FedAdam(lr=0.1)),
    "clipped deltas": lambda: small(delta_clip=0.01, divide_by_steps=True),
    "SCAFFOLD": lambda: small(**methods.scaffold()),
    "ages": lambda: small(
        timing=ff.timing.ClientCentric(buffer=3, max_delay=2, epochs=None, randomness=None), cohort=None
    ),
}


@pytest.mark.parametrize("name", SERVERS)
def test_a_run_has_the_bits_of_one_that_joins_first(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with launches() as seen:
        got, rows = run_of(SERVERS[name]())
    assert seen["_aggregate_step"] == 2
    monkeypatch.setattr(LaneTotal, "_is_to_be_joined_on_the_way", lambda *_: False)
    with launches() as seen:
        wanted, wanted_rows = run_of(SERVERS[name]())
    assert seen["_aggregate_step"] == 0
    assert rows == wanted_rows
    assert got.keys() == wanted.keys()
    for tensor, value in wanted.items():
        assert torch.equal(got[tensor], value), tensor


def test_a_round_waits_for_its_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    fetch = lanes.fetch
    monkeypatch.setattr(lanes, "fetch", lambda numbers: (waits.append(1), fetch(numbers))[1])
    for module in (total, lanes):
        monkeypatch.setattr(module, "largest", lambda vector: pytest.fail("waits for the device once more"))
    assert small().step()["changed"]
    assert waits == [1]


NOISE = {"privacy": ff.privacy.Privacy(clip=1.0, noise=0.5, delta=1e-3), "weights": "uniform"}
READERS: dict[str, Callable[[], ff.Simulation]] = {
    "noise": lambda: small(**NOISE, cohort=ff.plan.Poisson(0.9)),
    "tuner": lambda: small(tuner=ff.tune.Fathom(), steps=None, epochs=1),
}


@pytest.mark.parametrize("reader", READERS)
def test_who_reads_the_sum_has_it_before_the_step(reader: str) -> None:
    with launches() as seen:
        row = READERS[reader]().step()
    assert row["changed"]
    assert (seen["_join"], seen["_aggregate_step"]) == (1, 0)
