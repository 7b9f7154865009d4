"""One rank of a test: ``python -m tests.ranks.worker JOB.json``, in the environment that torchrun would make.

The job names set-ups; each is run to half of its rounds, saved, run to its end, and its bits are written down, by every
rank in a file of its own. With `resume`, it goes on from what an earlier job has saved; with `dies`, the last rank ends
by SIGKILL in the middle of a round of the second half.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

import fastfed as ff
from fastfed import training
from fastfed.training import work_of

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
    held = getattr(sim.fed, "rows", None) is not None
    sim.run(until=ROUNDS, evaluate_every=2, evaluate_training=held, per_client=held, progress=False)
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
    watch = Watch(sim, dies=job.get("dies", False))
    return {**bits(finished(sim)), "visits": watch.visits[0], "moved": watch.moved / sim.packing.size}


class Watch:
    """Notes from now on whose examples every round asks for, and how much a rank sends from one round to the next."""

    def __init__(self, sim: ff.Simulation, dies: bool) -> None:
        self.visits: list[list[int]] = []
        self.sent: list[int] = []
        self._inside = False
        visit = sim.fed.visit

        def noted_work(of: ff.Simulation, plan: Any) -> Any:
            if dies and sim.ranks is not None and sim.ranks.rank == sim.ranks.count - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            self.visits.append([])
            self.sent.append(0 if sim.ranks is None else sim.ranks.moved)
            self._inside = True
            made = work_of(of, plan)
            self._inside = False
            return made

        def noted_visit(cohort: torch.Tensor) -> Any:
            if self._inside:  # not that of an evaluation
                self.visits[-1] += cohort.tolist()
            return visit(cohort)

        training.work_of = noted_work
        object.__setattr__(sim.fed, "visit", noted_visit)

    @property
    def moved(self) -> int:
        return self.sent[1] - self.sent[0] if len(self.sent) > 1 else 0


def main() -> None:
    torch.set_num_threads(1)
    job = json.loads(Path(sys.argv[1]).read_text())
    with ff.ranks.join(timeout=120):
        found = {name: carried_out(name, job) for name in job["names"]}
    Path(job["folder"], f"rank-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
