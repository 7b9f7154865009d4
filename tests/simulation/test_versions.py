"""Clients that train on while the model moves: each starts from the very model of its version, kept as long as somebody
may need it and no longer, through checkpoints too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fastfed as ff

from .support import simulation

FLEET = ff.fleet.Fleet(step_seconds=0.1, spread=1.5, network_seconds=0.5, dropout=0.2)
TIMINGS = {
    "buffered": ff.timing.EventDriven(concurrency=7, buffer=2, fleet=FLEET),
    "one by one": ff.timing.EventDriven(concurrency=9, buffer=1, fleet=FLEET, max_age=3),
    "waves": ff.timing.Waves(6, wanted=3, fleet=FLEET),
    "client-centric": ff.timing.ClientCentric(buffer=2, max_delay=6),
}


def watch(sim: ff.Simulation, seen: dict[int, Tensor]) -> list[int]:
    """Compares what clients start from with the models that were there; the ages that were asked for."""
    ages: list[int] = []
    starts = sim.server.starts

    def compared(version: int, age: Tensor | None) -> tuple[Tensor, Tensor | None]:
        seen[version] = sim.params.clone()
        models, index = starts(version, age)
        for client, old in enumerate([] if age is None else age.tolist()):
            model = models if models.dim() == 1 else models[0 if index is None else int(index[client])]
            assert torch.equal(model, seen[version - old]), f"a client of version {version - old} at {version}"
            ages.append(old)
        return models, index

    sim.server.starts = compared  # type: ignore[method-assign]
    return ages


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("timing", TIMINGS)
def test_nobody_trains_from_a_version_that_is_gone(timing: str, seed: int, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"timing": TIMINGS[timing], "cohort": None, "seed": seed}
    settings |= {"epochs": None} if timing == "client-centric" else {}
    sim = simulation(**settings)
    seen: dict[int, Tensor] = {}
    ages = watch(sim, seen)
    for _ in range(2):
        for _ in range(15):
            sim.step()
            kept = set(sim.server.past.tensors()["versions"].tolist())
            assert kept >= set(sim.planner.versions() or ()) - {sim.round}
            assert len(kept) < 15  # and not all that there ever were
        sim.save(tmp_path)
        sim = ff.Simulation.resume(tmp_path, fed=sim.fed, model=sim.model)
        ages += watch(sim, seen)
    assert timing == "waves" or max(ages) > 1
