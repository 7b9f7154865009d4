"""FedExP, FedNova, FedDyn, FedLion, Ditto and kept momentum are their listings: model, server's state and what clients
keep, over several rounds of odd clients with settings other than the defaults."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import fastfed as ff

from ..simulation import literal as common
from ..simulation import literal_compare as problem
from ..simulation.literal import Snapshot
from . import literal

LR, BATCH, STEPS = 0.2, 3, 5
COHORTS = [[0, 2, 4, 7, 8], [1, 3, 5, 6], [0, 2, 3, 6], [4, 7, 8], [0, 1, 2, 8]]  # client 3 has no examples

EXP = ff.methods.fedexp(LR, eps=1e-4)
NOVA = ff.methods.fednova(LR, server_lr=0.7, momentum=0.6)
DYN = ff.methods.feddyn(LR, alpha=0.3)
LION = ff.methods.fedlion(0.02, server_lr=0.8, beta1=0.7, beta2=0.95)
DITTO = ff.methods.ditto(LR, lam=0.7)
KEPT = {"client": ff.algorithms.KeptMomentum(LR, momentum=0.7), "server": ff.servers.FedAvg()}

CASES: dict[str, tuple[dict[str, Any], Callable[..., list[Snapshot]], tuple[str, ...]]] = {
    "fedexp": (EXP, partial(literal.fedexp, lr=LR, eps=1e-4), ("eager", "batched", "native")),
    "fednova": (NOVA, partial(literal.fednova, lr=LR, server_lr=0.7, momentum=0.6), ("eager", "batched", "native")),
    "feddyn": (DYN, partial(literal.feddyn, lr=LR, alpha=0.3), ("eager", "batched")),
    "fedlion": (LION, partial(literal.fedlion, lr=0.02, server_lr=0.8, beta1=0.7, beta2=0.95), ("eager", "batched")),
    "ditto": (DITTO, partial(literal.ditto, lr=LR, lam=0.7), ("eager",)),
    "kept momentum": (KEPT, partial(literal.kept_momentum, lr=LR, momentum=0.7), ("eager", "batched")),
}
PAIRS = [(name, executor) for name, (_, _, executors) in CASES.items() for executor in executors]


def steps_of(client: int) -> int:
    """Clients that take different numbers of steps, as FedNova is about."""
    return 2 * problem.batches_per_epoch(client, BATCH)


def truth(listing: Callable[..., list[Snapshot]], dtype: str) -> list[Snapshot]:
    def batches(t: int, i: int) -> list[common.Batch]:
        return problem.shuffled(t, i, BATCH, steps_of(i))

    fed = common.Federation(problem.NETWORK, problem.examples(), batches)
    return listing(fed, problem.start_model(dtype), COHORTS)


def begun(name: str, executor: str, dtype: torch.dtype) -> ff.Simulation:
    settings: dict[str, Any] = {"cohort": COHORTS, "epochs": 2, "batch_size": BATCH}
    threads = {"threads": None} if executor == "batched" else {}  # it has no use for them
    return problem.simulation(dtype, executor, {**CASES[name][0], **settings, **threads})


def held(sim: ff.Simulation) -> Snapshot:
    """All that is kept, without gaps."""
    vectors = {"x": sim.params, **{name: one for name, one in sim.server.state.items() if one.dim() == 1}}
    kept = sim.exchanger.tensors()
    if "ids" in kept:
        vectors |= {f"kept{i}": v for i, v in zip(kept["ids"].tolist(), kept["vectors"], strict=True)}
    if "common" in kept:
        vectors["common"] = kept["common"]
    assert not any(problem.gaps(sim.packing, vector).any() for vector in vectors.values())
    return {name: problem.flat(sim.packing, vector) for name, vector in vectors.items()}


@pytest.mark.parametrize(("name", "executor"), PAIRS)
def test_it_is_the_listing(name: str, executor: str) -> None:
    exact = truth(CASES[name][1], "float64")
    dtype = torch.float32 if executor == "native" else torch.float64
    limit = 1e-5 if executor == "native" else 1e-10
    sim = begun(name, executor, dtype)
    for t, wanted in enumerate(exact):
        sim.step()
        found = held(sim)
        assert found.keys() == wanted.keys() - {"eta"}, f"after round {t + 1}"
        for key, vector in found.items():
            away = common.norm(vector - wanted[key])
            assert away <= limit * common.norm(wanted[key]), f"{key} after round {t + 1}: {away:.3g} away"


def test_the_problem_shows_what_the_algorithms_are_about() -> None:
    """FedExP's step size is more than 1 in some rounds, and less would be taken in none."""
    etas = [float(one["eta"]) for one in truth(CASES["fedexp"][1], "float64")]
    assert max(etas) > 1.05
    assert len({steps_of(client) for client in range(9)}) > 2


@pytest.mark.parametrize(("name", "executor"), PAIRS)
def test_a_resumed_run_has_the_same_bits(name: str, executor: str, tmp_path: Any) -> None:
    whole, half = (begun(name, executor, torch.float32) for _ in range(2))
    whole.run(rounds=4, evaluate_every=0, progress=False)
    half.run(rounds=2, evaluate_every=0, progress=False)
    resumed = ff.Simulation.resume(half.save(tmp_path), model=half.model, fed=half.fed)
    resumed.run(rounds=2, evaluate_every=0, progress=False)
    assert resumed.tensors().keys() == whole.tensors().keys()
    for key, tensor in whole.tensors().items():
        assert torch.equal(resumed.tensors()[key], tensor), key
    assert resumed.history.without_seconds() == whole.history.without_seconds()
