"""Reductions other than the mean: against numpy and scipy, under compression, resumed, and among hostile clients."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

import fastfed as ff
from fastfed.aggregate import Mean, Median, TrimmedMean
from fastfed.app.config import parse
from fastfed.compression import Encoded, TopK
from fastfed.kernels.registry import interpreting

from ..app.config.support import tables
from ..simulation.support import simulation, small_federation

EXECUTORS = ("device",) if interpreting() else ("native", "batched", "eager")
every_executor = pytest.mark.parametrize(
    "executor", [pytest.param(name, marks=[pytest.mark.device] if name == "device" else []) for name in EXECUTORS]
)


@dataclass
class Watched:
    """A reduction of a user's own: another one, whose deltas and results are written down."""

    inner: Any
    seen: list[tuple[Any, Any]] = field(default_factory=list)

    def reduce(self, deltas: Tensor, weights: Tensor) -> Tensor:
        given = deltas.double().cpu().numpy()
        out: Tensor = self.inner.reduce(deltas, weights)
        self.seen.append((given, out.double().cpu().numpy()))
        return out


def run(rounds: int = 2, **settings: Any) -> ff.Simulation:
    usual = {"cohort": 5, "weights": "uniform", "epochs": None, "steps": 2, "client": ff.clients.SGD(lr=0.1)}
    sim = simulation(small_federation(), **{**usual, **settings})
    sim.run(rounds=rounds, evaluate_every=0, progress=False)
    return sim


@every_executor
@pytest.mark.parametrize("cohort", [4, 5])
def test_medians_and_trimmed_means_are_those_of_numpy_and_scipy(executor: str, cohort: int) -> None:
    for reduction, oracle in (
        (Median(), lambda d: np.median(d, axis=0)),
        (TrimmedMean(0.25), lambda d: scipy.stats.trim_mean(d, 0.25, axis=0)),
    ):
        watched = Watched(reduction)
        sim = run(cohort=cohort, executor=executor, aggregation=watched)
        assert len(watched.seen) == 2
        for deltas, got in watched.seen:
            assert deltas.shape == (cohort, sim.packing.size)
            np.testing.assert_allclose(got, oracle(deltas), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("settings", [{}, {"compression": TopK(0.2)}, {"aggregation": Median()}], ids=str)
def test_a_round_of_nobody_changes_and_sends_nothing(settings: dict[str, Any]) -> None:
    sim = simulation(small_federation(), **{"cohort": [[]], "weights": "uniform", **settings})
    before = sim.params.clone()
    row = sim.step()
    assert torch.equal(sim.params, before)
    told = {name: row[name] for name in ("clients", "counted", "skipped", "idle", "examples", "steps", "bytes_up")}
    assert told == dict.fromkeys(told, 0)
    assert (row["changed"], row["train_loss"], row["delta_norm"], row["step_size"]) == (False, None, None, None)


def test_the_mean_given_is_the_mean_that_is_usual() -> None:
    """In passing or delta by delta, to rounding."""
    usual, given, kept = (run(aggregation=each).params for each in (None, Mean(), Watched(Mean())))
    assert torch.equal(usual, given)
    torch.testing.assert_close(kept, usual, rtol=1e-5, atol=1e-7)


@every_executor
def test_a_trimmed_mean_of_compressed_deltas_is_resumed_to_the_same_bits(executor: str, tmp_path: Path) -> None:
    settings = {"aggregation": TrimmedMean(0.3), "compression": TopK(0.2), "executor": executor}
    whole = run(rounds=4, **settings)
    run(rounds=2, **settings).save(tmp_path)
    resumed = ff.Simulation.resume(tmp_path, model=whole.model, fed=whole.fed)
    assert resumed.settings.aggregation == TrimmedMean(0.3)
    resumed.run(rounds=2, evaluate_every=0, progress=False)
    assert torch.equal(resumed.params, whole.params)
    assert resumed.history.without_seconds() == whole.history.without_seconds()
    assert not torch.equal(whole.params, run(rounds=4, **{**settings, "aggregation": None}).params)


# ---- hostile clients ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hostile:
    """A compression that is none: client 0 sends its delta the other way, a thousand times as large."""

    feedback = False

    def encode(self, vectors: Tensor, packing: ff.Packing, ids: Tensor, seed: int, round: int) -> Encoded:
        factors = torch.where(ids == 0, -1000.0, 1.0).to(vectors)
        return Encoded(vectors * factors[:, None], self.message_bytes(packing))

    def message_bytes(self, packing: ff.Packing, dtype: torch.dtype = torch.float32) -> int:
        return 4 * packing.size


def test_one_hostile_client_of_ten_ruins_the_mean_and_not_the_median() -> None:
    """Digits after 20 rounds of ten clients."""
    fed = ff.data.iid(ff.data.digits(), 10)
    found = {}
    for name, reduction in (("mean", None), ("median", Median()), ("trimmed", TrimmedMean(0.1))):
        for hostile in (False, True):
            torch.manual_seed(0)
            sim = ff.Simulation(
                ff.models.mlp(64, 64, 10), fed, client=ff.clients.SGD(lr=0.1), cohort=10, weights="uniform",
                aggregation=reduction, compression=Hostile() if hostile else None,
            )  # fmt: skip
            sim.run(rounds=20, evaluate_every=0, progress=False)
            found[name, hostile] = sim.evaluate()["test_accuracy"]
    assert min(found[name, False] for name in ("mean", "median", "trimmed")) > 0.9, found
    assert found["mean", True] < 0.3, found
    assert found["median", True] > 0.9, found
    assert found["trimmed", True] > 0.9, found


# ---- at the door ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"aggregation": Median(), "weights": "examples"}, r"^weights: in a Median all clients count alike"),
        (
            {"aggregation": "median"},
            r"^aggregation: must be like those of fastfed.aggregate",
        ),
        (
            {"aggregation": Median(), "cohort": ff.plan.Poisson(0.5), "privacy": ff.privacy.Privacy(1.0, 1.0, 1e-3)},
            r"^aggregation: the accounting of privacy is that of a mean, and Median is another reduction",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises((TypeError, ValueError), match=sentence):
        run(rounds=0, **settings)


@pytest.mark.parametrize("trim", [-0.1, 0.5, True, "a"])
def test_shares_that_leave_nothing_are_refused(trim: Any) -> None:
    with pytest.raises(ValueError, match=r"^trim: must be a number in \[0, 0.5\)"):
        TrimmedMean(trim)


@pytest.mark.parametrize(("clients", "trim", "left"), [(30, 0.1, 24), (10, 0.1, 8), (9, 0.1, 9), (7, 0.45, 1)])
def test_shares_are_rounded_down_to_whole_clients(clients: int, trim: float, left: int) -> None:
    deltas = torch.arange(clients, dtype=torch.float64)[:, None] ** 2
    cut = (clients - left) // 2
    wanted = deltas[cut : clients - cut].mean(0)
    torch.testing.assert_close(TrimmedMean(trim).reduce(deltas, torch.empty(0)), wanted, rtol=1e-14, atol=0)


def test_a_file_names_a_reduction() -> None:
    given = {"run": {"rounds": 1, "cohort": 3, "weights": "uniform"}, "aggregation": {"kind": "median"}}
    config = parse(tables(**given))
    assert config.settings["aggregation"] == Median()
    assert parse(config.resolved()).settings["aggregation"] == Median()
