"""One rank of a test: ``python -m tests.ranks.worker JOB.json``, in the environment that torchrun would make.

The job names set-ups; each is run to half of its rounds, saved, run to its end, and its bits are written down, by every
rank in a file of its own. With ``resume``, it goes on from what an earlier job has saved.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

import fastfed as ff

from ..golden.setups import ROUNDS, digests
from . import setups


def bits(sim: ff.Simulation) -> dict[str, str]:
    """Hashes of the model, of the rows, and of everything that a checkpoint would hold."""
    held = sim.tensors()
    everything = hashlib.sha256()
    for name in sorted(held):
        everything.update(f"{name} {tuple(held[name].shape)}".encode())
        everything.update(held[name].detach().cpu().contiguous().numpy().tobytes())
    return {**digests(sim.params, sim.history), "state": everything.hexdigest()[:16]}


def half_done(name: str) -> ff.Simulation:
    sim = setups.begun(name)
    sim.run(rounds=ROUNDS // 2, evaluate_every=0, progress=False)
    return sim


def finished(sim: ff.Simulation) -> ff.Simulation:
    sim.run(until=ROUNDS, evaluate_every=2, evaluate_training=sim.fed.name != "synthetic_images", progress=False)
    return sim


def alone(name: str) -> dict[str, str]:
    """The bits of a set-up without any ranks."""
    return bits(finished(half_done(name)))


def carried_out(name: str, job: dict[str, Any]) -> dict[str, Any]:
    saved = Path(job["folder"]) / name.replace("/", "-")
    if job.get("resume"):
        sim = setups.resumed(name, str(saved))
    else:
        sim = half_done(name)
        sim.save(saved)
    visited = watched(sim)
    return {**bits(finished(sim)), "visited": sorted(visited), "moved": 0 if sim.ranks is None else sim.ranks.moved}


def watched(sim: ff.Simulation) -> set[int]:
    """The clients whose examples the simulation asks for from now on."""
    visited: set[int] = set()
    visit = sim.fed.visit

    def noted(cohort: torch.Tensor) -> Any:
        visited.update(cohort.tolist())
        return visit(cohort)

    object.__setattr__(sim.fed, "visit", noted)
    return visited


def main() -> None:
    torch.set_num_threads(1)
    job = json.loads(Path(sys.argv[1]).read_text())
    with ff.ranks.join(timeout=60):
        found = {name: carried_out(name, job) for name in job["names"]}
    Path(job["folder"], f"rank-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
