"""Compressed deltas with error feedback against their pseudo-code: the model, every client's error memory and the bytes
sent, after every round; eight bits are rounded by the uniform numbers of the public stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import fastfed as ff
from fastfed.purposes import Purpose
from fastfed.train.threads import one_thread_per_operation

from ..simulation import literal, literal_uplink
from ..simulation.literal import Array, Server, Snapshot
from ..simulation.literal_async import Clients
from ..simulation.literal_compare import (
    NETWORK,
    SEED,
    SIZES,
    batches_per_epoch,
    examples,
    federation,
    flat,
    same_in_both,
    shuffled,
    simulation,
    start_model,
    steps,
)
from ..simulation.literal_uplink import Private, Uplink

COHORTS = ((0, 4, 8), (1, 3, 6, 7), (2, 5, 8), (), (0, 1, 2, 3, 4, 5, 6, 7, 8), (3, 7), (6, 8, 0))
ROUNDS = len(COHORTS)
BATCH, EPOCHS = 3, 1
PARAMETERS, TENSORS = 43, 4

TopK, Sign, Int8 = ff.compression.TopK, ff.compression.Sign, ff.compression.Int8
Twin = Callable[[ff.Packing, int, int, Array], Array]


def top_k(fraction: float) -> Twin:
    return lambda packing, round, client, vector: literal_uplink.top_k(vector, fraction)


def signs(packing: ff.Packing, round: int, client: int, vector: Array) -> Array:
    return literal_uplink.signs(vector, NETWORK.shapes)


def eight_bits(packing: ff.Packing, round: int, client: int, vector: Array) -> Array:
    draws = ff.kernels.uniform(packing.size, ff.kernels.Stream(SEED, Purpose.COMPRESSION, round, client))
    return literal_uplink.eight_bits(vector, NETWORK.shapes, flat(packing, draws))


@dataclass(frozen=True)
class Case:
    """`compression` and its twin, `settings` besides; `server` and `method` are their twin."""

    compression: ff.compression.Compression
    twin: Twin
    settings: dict[str, Any] = field(default_factory=dict)
    server: dict[str, Any] = field(default_factory=dict)
    method: dict[str, Any] = field(default_factory=dict)
    poisoned: int | None = None

    def simulated(self) -> dict[str, Any]:
        defaults = {"client": ff.clients.SGD(lr=0.3), "epochs": EPOCHS, "batch_size": BATCH, "cohort": COHORTS}
        return {
            **defaults,
            "compression": self.compression,
            "weights": self.method.get("weights", "uniform"),
            "fed": federation(self.poisoned),
            **self.settings,
        }


KINDS: dict[str, tuple[Callable[..., ff.compression.Compression], Twin]] = {
    "a tenth": (partial(TopK, 0.1), top_k(0.1)),
    "signs": (Sign, signs),
    "eight bits": (Int8, eight_bits),
}
FEDADAM = {"server": ff.servers.FedAdam(lr=0.05, tau=0.02)}
FEDADAM_TWIN = {"rule": "adam", "lr": 0.05, "tau": 0.02}
LIMITS = {"divide_by_steps": True, "delta_clip": 0.05}
PER_STEP = {"divide_by_steps": True}
RATE, CLIP, NOISE = 0.4, 0.25, 0.8
PRIVATE = {"cohort": ff.plan.Poisson(RATE), "privacy": ff.privacy.Privacy(clip=CLIP, noise=NOISE, delta=0.01)}


def cases() -> Iterator[tuple[str, Case]]:
    for name, (make, twin) in KINDS.items():
        yield name, Case(make(), twin)
        yield f"{name}, forgotten", Case(make(feedback=False), twin, method={"feedback": False})
        yield f"{name}, per step and clipped", Case(make(), twin, LIMITS, method={**LIMITS, "weights": "examples"})
        yield f"{name}, private", Case(make(), twin, PRIVATE)
    yield "everything", Case(TopK(1.0), top_k(1.0))
    yield "one number", Case(TopK(0.001), top_k(0.001), FEDADAM, FEDADAM_TWIN)
    yield (
        "signs, clipped, forgotten",
        Case(*(Sign(feedback=False), signs, {"delta_clip": 0.1}, {}, {"feedback": False, "delta_clip": 0.1})),
    )
    yield "eight bits, FedAdam", Case(Int8(), eight_bits, FEDADAM, FEDADAM_TWIN, {"weights": "examples"})
    yield "a tenth, private, per step", Case(TopK(0.1), top_k(0.1), {**PRIVATE, **PER_STEP}, method=PER_STEP)
    yield "signs, private, forgotten", Case(Sign(feedback=False), signs, PRIVATE, method={"feedback": False})
    yield "a poisoned client", Case(TopK(0.3), top_k(0.3), method={"weights": "examples"}, poisoned=8)


CASES = dict(cases())


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with one_thread_per_operation():
        yield


def cohorts(case: Case) -> list[list[int]]:
    """Those given, or drawn in the plan."""
    sim = simulation(torch.float64, "eager", case.simulated())
    plans = [sim.planner.plan(t, sim.tuner.tuning) for t in range(ROUNDS)]
    return [plan.cohort.tolist() for plan in plans if plan is not None]


def batches(round: int, client: int) -> list[literal.Batch]:
    return shuffled(round, client, BATCH, EPOCHS * batches_per_epoch(client, BATCH))


def normals(packing: ff.Packing, round: int) -> Array:
    return flat(packing, ff.kernels.normal(packing.size, ff.kernels.Stream(SEED, Purpose.NOISE, round)))


def run_literally(case: Case, dtype: str, packing: ff.Packing) -> tuple[list[Snapshot], list[int]]:
    clients = Clients(NETWORK, examples(case.poisoned), partial(literal.SGD, lr=0.3))
    private = None
    if isinstance(who := case.simulated()["cohort"], ff.plan.Poisson):
        private = Private(CLIP, NOISE, who.rate * len(SIZES), partial(normals, packing))
    sent = partial(case.twin, packing)
    uplink = Uplink(clients, Server(**case.server), batches, compression=sent, private=private, **case.method)
    with np.errstate(invalid="ignore"):  # the poisoned client's
        return uplink.run(start_model(dtype), cohorts(case))


@pytest.mark.parametrize("name", CASES)
def test_compressed_rounds_are_their_pseudo_code(name: str) -> None:
    case = CASES[name]
    same_in_both(case.simulated(), lambda dtype, packing: run_literally(case, dtype, packing)[0], ROUNDS)


UNSENT = ((0, 4), (3,), (8, 2), (0, 3, 6))  # in the second, nobody has examples


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("settings", "method"),
    [
        ({"cohort": UNSENT}, {}),
        ({"cohort": UNSENT, "delta_clip": 0.1}, {"delta_clip": 0.1}),
        ({**PRIVATE, "cohort": ff.plan.Poisson(0.07)}, {}),
    ],
    ids=["plain", "clipped", "private"],
)
def test_a_round_in_which_nobody_sends(kind: str, settings: dict[str, Any], method: dict[str, Any]) -> None:
    make, twin = KINDS[kind]
    case = Case(make(), twin, settings, method=method)
    assert [3] in cohorts(case)
    same_in_both(case.simulated(), lambda dtype, packing: run_literally(case, dtype, packing)[0], ROUNDS)


MESSAGES = {  # values of 8 or 4 bytes; indices of 4; a number per tensor
    "a tenth, private": lambda size: 5 * (size + 4),
    "one number": lambda size: size + 4,
    "everything": lambda size: PARAMETERS * (size + 4),
    "signs": lambda size: 6 + TENSORS * size,
    "signs, private, forgotten": lambda size: 6 + TENSORS * size,
    "eight bits": lambda size: PARAMETERS + TENSORS * size,
    "a poisoned client": lambda size: 13 * (size + 4),
}


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize(("dtype", "executor"), [(torch.float64, "eager"), (torch.float32, "native")])
def test_rows_count_the_bytes_of_those_who_sent(name: str, dtype: torch.dtype, executor: str) -> None:
    case = CASES[name]
    sim = simulation(dtype, executor, case.simulated())
    _, senders = run_literally(case, "float64", sim.packing)
    asked = [len(cohort) for cohort in cohorts(case)]
    for t, _ in enumerate(steps(sim, ROUNDS)):
        row = sim.history.rounds[t]
        assert row["bytes_up"] == senders[t] * MESSAGES[name](dtype.itemsize)
        assert row["bytes_down"] == asked[t] * PARAMETERS * dtype.itemsize
    assert sum(senders) < sum(asked)


def test_every_case_leads_elsewhere() -> None:
    """What a case sets must show in where it ends."""
    packing = simulation(torch.float64, "eager", CASES["signs"].simulated()).packing
    ends = {name: run_literally(case, "float64", packing)[0][-1]["x"] for name, case in CASES.items()}
    alike = {(a, b) for a in ends for b in ends if a < b and literal.norm(ends[a] - ends[b]) < 1e-6}
    assert alike == set()
