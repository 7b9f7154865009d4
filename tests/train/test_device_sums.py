"""The delta pass of `device` in Triton's interpreter, and cohorts dealt to several devices: same sums, same bits.

Needs a session of its own, as ``test_device.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fastfed as ff
from fastfed.kernels import registry, server_state
from fastfed.train import DeltaPolicy, Outcome, RoundWork
from fastfed.train.batches import steps_taken
from fastfed.train.policy import DeltaSum

from ..simulation.support import simulation
from .agreement import TASKS, Case, assert_close, examples_of, kept, module_of, work_of
from .support import normal, round_of

pytest.importorskip("triton", reason="Triton is not installed")
if not registry.interpreting():
    pytest.skip("device kernels run in Triton's interpreter here (TRITON_INTERPRET=1)", allow_module_level=True)

from fastfed.kernels.triton import races
from fastfed.kernels.triton.counted import counted
from fastfed.kernels.triton.engine import deltas
from fastfed.kernels.triton.launch import launches
from fastfed.train.device.engine import Device, terms_of
from fastfed.train.device.lanes import LANES, LaneSum, LaneTotal, Layout, outcome
from fastfed.train.device.several import SeveralDevices

pytestmark = [
    pytest.mark.device,
    pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning"),  # numpy warns of the NaN that are tested
]

N = 11
SIZES = [1, 48, 1100]  # less than a block, aligned, several blocks of norms
SUMS = [1, 48, 100]  # several blocks of sums, the last of them not whole
starts = pytest.mark.parametrize("own", [False, True], ids=["one start", "own starts"])


def models(d: int, own: bool) -> tuple[Tensor, Tensor]:
    """Models (N, d) and what they started from; two of them have gone wrong."""
    x, start = normal(1, N, d), normal(2, N, d) if own else normal(2, d)
    x[4, d // 2], x[9, d - 1] = torch.nan, torch.inf
    return x, start


FINITE = [client for client in range(N) if client not in (4, 9)]

# ---- kernels --------------------------------------------------------------------------------------------------------


@starts
@pytest.mark.parametrize("d", SIZES)
@pytest.mark.parametrize("clipped", [False, True])
def test_weights_and_norms(d: int, own: bool, clipped: bool) -> None:
    x, start = models(d, own)
    shares, norms = torch.rand(N, dtype=torch.float64) + 0.1, torch.zeros(N, dtype=torch.float64)
    exact = (x - start).double().norm(dim=1)
    limits = exact * torch.linspace(0.5, 1.5, N, dtype=torch.float64) if clipped else None
    with races.watched() as verdict:
        weights = deltas.weigh(x, start, shares, limits, norms)
    verdict.check()
    assert norms[4].isnan()
    assert norms[9].isinf()
    torch.testing.assert_close(norms[FINITE], exact[FINITE], rtol=1e-15, atol=0)
    wanted = shares if limits is None else shares * (limits / exact).clamp(max=1)
    assert torch.equal(weights[[4, 9]], torch.zeros(2))
    torch.testing.assert_close(weights[FINITE], wanted[FINITE].float(), rtol=1e-7, atol=0)


def test_norms_that_training_has_found_are_not_measured_again() -> None:
    x, start = models(48, own=False)
    shares, norms = torch.ones(N, dtype=torch.float64), torch.zeros(N, dtype=torch.float64)
    known = torch.arange(N, dtype=torch.float64) ** 2
    known[7] = torch.nan
    weights = deltas.weigh(x, start, shares, torch.full_like(shares, 4.0), norms, known)
    assert norms.nan_to_num(-1).tolist() == [0, 1, 2, 3, 4, 5, 6, -1, 8, 9, 10]
    assert weights.tolist() == pytest.approx([1, 1, 1, 1, 1, 4 / 5, 4 / 6, 0, 4 / 8, 4 / 9, 4 / 10])


def test_models_are_read_twice_and_no_delta_is_written() -> None:
    d, lanes, floats = 1100, 4, 4 * N * 1100
    x, start, sums = normal(1, N, d), normal(2, d), torch.zeros(lanes, d)
    doubles = torch.ones(N, dtype=torch.float64)
    with counted() as seen:
        weights = deltas.weigh(x, start, doubles, None, doubles)
        deltas.fold(x, start, weights, sums, 0, 3)
    measuring, weighing, folding = seen
    assert measuring.bytes_read == 2 * floats  # the start model beside every model, from the cache
    assert measuring.bytes_written == 8 * N * 2  # two parts of a norm
    assert weighing.bytes_written == (8 + 4) * N
    blocks = folding.programs // lanes
    assert folding.bytes_read == floats + 2 * 4 * lanes * d + 4 * N * blocks  # models, start and sums, weights
    assert folding.bytes_written == 4 * lanes * d


def one_after_another(x: Tensor, start: Tensor, weights: Tensor, run: int) -> Tensor:
    """The lanes, by the definition: client after client, in float32."""
    sums = torch.zeros(-(-len(x) // run), x.shape[1])
    for client, delta in enumerate(x - start):
        if weights[client] != 0:
            sums[client // run] += weights[client] * delta
    return sums


@starts
@pytest.mark.parametrize("d", SUMS)
@pytest.mark.parametrize("run", [1, 3, 6, N])
def test_lanes_are_summed_client_after_client_to_the_last_bit(d: int, own: bool, run: int) -> None:
    x, start = models(d, own)
    weights = torch.rand(N)
    weights[[0, 4, 9]] = 0
    wanted = one_after_another(x, start, weights, run)
    for portion in (1, 4, N):
        sums = torch.zeros_like(wanted)
        with races.watched() as verdict:
            for first in range(0, N, portion):
                part = slice(first, first + portion)
                deltas.fold(x[part], start[part] if own else start, weights[part], sums, first, run)
        verdict.check()
        assert torch.equal(sums, wanted), portion


@pytest.mark.parametrize("clients", [37, 70])
def test_long_lanes_are_read_many_clients_at_a_time(clients: int) -> None:
    """More than one turn of the loop over many clients, and of the one over what is left."""
    x, start, weights = normal(1, clients, 40), normal(2, 40), torch.rand(clients)
    sums = torch.zeros(1, 40)
    deltas.fold(x, start, weights, sums, 0, clients)
    assert torch.equal(sums, one_after_another(x, start, weights, clients))


@pytest.mark.parametrize("d", [*SIZES, 1024])
def test_lanes_are_joined_one_after_another(d: int) -> None:
    sums = normal(3, LANES, d)
    with races.watched() as verdict:
        joined, largest = deltas.join(sums)
    verdict.check()
    wanted = sums[0].clone()
    for lane in sums[1:]:
        wanted += lane
    assert torch.equal(joined, wanted)
    assert float(largest) == float(wanted.abs().max())
    for bad in (torch.nan, -torch.inf):
        sums[5, d - 1] = bad
        assert float(deltas.join(sums)[1]) == torch.inf


# ---- policies -------------------------------------------------------------------------------------------------------

POLICIES = {
    "examples": DeltaPolicy(),
    "uniform clip": DeltaPolicy("uniform", clip=4.0),
    "given": DeltaPolicy(torch.linspace(0, 1, N)),
    "divide": DeltaPolicy(divide_by_steps=True),
    "divide clip": DeltaPolicy(clip=2.0, divide_by_steps=True),
}
BROKEN = {"nobody": [], "some": [4, 9], "all": list(range(N))}


def in_lanes(work: RoundWork, x: Tensor) -> Outcome:
    """The sum of models x (clients, d), as if they had trained."""
    terms = terms_of(work)
    part = LaneSum(terms, range(LANES), torch.device("cpu"), Layout(lambda vectors: vectors, None))
    for place in range(0, len(terms.order), 4):
        chunk = terms.order[place : place + 4]
        part.add(place, x[chunk], work.start, {"mean_loss": chunk.double()})
    return outcome([part])


def one_by_one(work: RoundWork, x: Tensor) -> Outcome:
    steps = steps_taken(work)
    total = DeltaSum(work, steps)
    trained = (steps > 0).nonzero().flatten()
    total.add(trained, x[trained] - work.start)
    losses = torch.where(steps > 0, torch.arange(len(work)).double(), torch.nan)
    return total.outcome({"mean_loss": losses})


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("policy", POLICIES)
def test_lanes_follow_the_policy(policy: str, broken: str) -> None:
    steps = torch.arange(N) % 5  # some take none
    work = round_of(normal(2, 20), range(3, 3 + N), steps=steps, batch_size=1, policy=POLICIES[policy])
    x = normal(1, N, 20) + work.start
    x[BROKEN[broken], 7] = torch.nan
    x[steps == 0] = work.start
    got, plain = in_lanes(work, x), one_by_one(work, x)
    exact = one_by_one(replace(work, start=work.start.double()), x.double())
    assert_close("delta", got.delta, plain.delta, exact.delta)
    assert torch.equal(got.refused, plain.refused)
    assert int(got.refused.sum()) == sum(int(steps[i]) > 0 for i in BROKEN[broken])
    assert torch.equal(kept(got).nan_to_num(), kept(plain).nan_to_num())
    for name in ("examples", "steps", "delta_norm", "mean_loss"):
        torch.testing.assert_close(got.scalars[name], plain.scalars[name], equal_nan=True)
    assert got.total.largest == float(got.delta.abs().max())


def test_a_round_in_which_nobody_trains() -> None:
    work = round_of(normal(2, 20), (3, 4), steps=torch.zeros(2, dtype=torch.int64))
    got = in_lanes(work, work.start.repeat(2, 1))
    assert not bool(got.delta.any())
    assert not bool(kept(got).any())
    assert not bool(got.refused.any())
    assert got.total.largest == 0
    assert got.scalars["delta_norm"].tolist() == [0, 0]


# ---- several devices ------------------------------------------------------------------------------------------------

CASES = {
    "conv net": Case("cnn", ("sgd",), frozenset({"clip"})),
    "two rules": Case("mlp", ("momentum", "delta-sgd"), frozenset({"models", "divide", "corrections", "weights"})),
}


HEAVY = pytest.param(CASES["conv net"], id="conv net", marks=pytest.mark.exhaustive)


@pytest.mark.parametrize("case", [HEAVY, pytest.param(CASES["two rules"], id="two rules")])
def test_same_bits_for_any_number_of_devices(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    given = (module_of(case.task), TASKS[case.task].loss, examples_of(case.task))
    work = replace(work_of(case, torch.float32), measure_cosine=False, steps=torch.tensor([2, 1, 1, 1, 1, 1, 0]))
    wanted = Device(*given, device="cpu").run(work)
    joined = wanted.delta  # before the step
    model = after_a_step(wanted, "_server_step")
    for devices in (1, 3, 5, 2):
        if devices == 2:
            one_at_a_time(monkeypatch)
        got = SeveralDevices(*given, devices=["cpu"] * devices).run(work)
        assert torch.equal(after_a_step(got, "_aggregate_step"), model), devices
        assert torch.equal(got.delta, joined), devices
        assert torch.equal(kept(got), kept(wanted)), devices
        assert got.total.largest == wanted.total.largest
        for name, values in wanted.scalars.items():
            assert torch.equal(got.scalars[name].nan_to_num(), values.nan_to_num()), (devices, name)


def after_a_step(outcome: Outcome, kernel: str) -> Tensor:
    """A model and its moments after a server's step along the sum, which this kernel makes."""
    assert isinstance(outcome.total, LaneTotal)
    x = normal(6, outcome.total.sums.shape[1])
    state = server_state("yogi", x)
    with pytest.MonkeyPatch.context() as patch, launches() as seen:
        patch.setattr(registry, "default", "triton")
        outcome.total.step("yogi", x, state, lr=0.1)
    assert seen == {kernel: 1}
    return torch.cat([x, *state.values()])


def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients train in chunks of one."""
    monkeypatch.setattr(Device, "_clients_at_once", lambda *_: 1)


def many_clients(task: str = "mlp") -> tuple[tuple[Any, ...], RoundWork]:
    """20 clients, three a lane, of a model that trains layer by layer ("softmax": all in one launch)."""
    module, sizes = module_of(task), [1 + client % 3 for client in range(20)]
    rows, steps = torch.arange(sum(sizes)), torch.ones(20, dtype=torch.int64)
    work = round_of(module, sizes, rows=rows, steps=steps, keep_deltas=False)
    return (module, "cross_entropy", examples_of(task)), work


@pytest.mark.exhaustive
@pytest.mark.parametrize("policy", [DeltaPolicy(), DeltaPolicy("uniform", clip=0.1, divide_by_steps=True)])
def test_lanes_of_several_clients_have_the_same_bits_on_several_devices(
    policy: DeltaPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, work = many_clients("softmax")
    work = replace(work, policy=policy, steps=torch.full((20,), 2))
    wanted = Device(*given, device="cpu").run(work)
    for devices in (2, 3, LANES + 1):
        got = SeveralDevices(*given, devices=["cpu"] * devices).run(work)
        assert torch.equal(got.delta, wanted.delta)
        assert torch.equal(got.scalars["delta_norm"], wanted.scalars["delta_norm"])
    one_at_a_time(monkeypatch)
    chunked = Device(*given, device="cpu").run(work)
    assert torch.equal(chunked.delta, wanted.delta)


def test_every_device_trains_its_share_in_buffers_of_its_own() -> None:
    given, work = many_clients()
    several = SeveralDevices(*given, devices=["cpu"] * 3)
    several.run(work)
    arenas = [engine.arena for engine in several.engines]
    d = several.engines[0].packing.size
    assert len({id(arena) for arena in arenas}) == 3
    assert [arena._held["x"].numel() // (4 * d) for arena in arenas] == [
        6,
        6,
        8,
    ]  # 20 in lanes of 3: 2, 2 and 3 of them


@pytest.mark.parametrize(("task", "measured"), [("mlp", 1), ("softmax", 0)])
def test_the_delta_pass_is_three_launches_a_chunk(task: str, measured: int) -> None:
    """Two, where training has found the norms by the way. Nobody has asked for the sum of the lanes yet."""
    given, work = many_clients(task)
    with launches() as seen:
        Device(*given, device="cpu").run(work)
    passes = ("_delta_squares", "_weigh", "_fold_deltas", "_join")
    assert [seen[name] for name in passes] == [measured, 1, 1, 0]
    assert not seen.keys() & {"_row_squares", "_scale_rows", "_weighted_sum"}


def test_an_error_on_a_device_is_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    given, work = many_clients()
    several = SeveralDevices(*given, devices=["cpu"] * 2)
    monkeypatch.setattr(several.engines[1], "train", lambda part: (_ for _ in ()).throw(MemoryError("card is full")))
    with pytest.raises(MemoryError, match="card is full"):
        several.run(work)


# ---- whole runs -----------------------------------------------------------------------------------------------------


def small(device: Any, **settings: Any) -> ff.Simulation:
    return simulation(executor="device", device=device, steps=1, epochs=None, **settings)


def without_seconds(sim: ff.Simulation) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if not k.startswith("seconds")} for row in sim.history.rounds]


def test_a_run_on_several_devices_is_the_run_on_one(tmp_path: Path) -> None:
    one, several = small("cpu"), small(["cpu", "cpu", "cpu"])
    assert several.executor.name == "device"
    assert "dealt to cpu, cpu, cpu" in several.executor.why
    one.run(2, evaluate_every=2, progress=False)
    several.run(1, evaluate_every=0, progress=False)
    again = ff.Simulation.resume(several.save(tmp_path), fed=several.fed, device="cpu,cpu")
    assert again.settings.device == "cpu,cpu"
    assert again.executor.name == "device"
    again.run(1, evaluate_every=2, progress=False)
    assert torch.equal(again.params, one.params)
    assert without_seconds(again) == without_seconds(one)


def test_an_overlarge_sum_changes_nothing() -> None:
    sim = small("cpu", client=ff.clients.SGD(lr=1e30))
    before = sim.params.clone()
    assert not sim.step()["changed"]
    assert torch.equal(sim.params, before)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "eager": (lambda: simulation(executor="eager", device="cpu,cpu"), r"^device: executor 'eager' runs on one, only"),
    "native": (lambda: simulation(executor="native", device=["cpu"] * 2), r"^device: executor 'native' runs on one"),
    "threads": (lambda: small("cpu,cpu", threads=2), r"^threads: executor 'device' has no use for them, got 2"),
    "none": (lambda: SeveralDevices(*many_clients()[0], devices=[]), r"^devices: must name at least one device"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    refused, sentence = REFUSED[name]
    with pytest.raises(ValueError, match=sentence):
        refused()
