"""FastFed on a whole task: a Simulation with a target, on data that its own loaders read."""

from __future__ import annotations

from pathlib import Path

import fastfed as ff
from fastfed.bench.peers.tasks import SEED, WHOLE_TASKS

from .whole import WholeTask, tell


def reached(task: WholeTask) -> tuple[int, float]:
    """Rounds and accuracy; the cohorts are those that everybody has."""
    told, whole = task.told, WHOLE_TASKS[task.told["whole"]]
    sim = ff.Simulation(
        whole.module(),
        whole.fed(Path(told["data"])),
        client=ff.clients.SGD(lr=told["lr"]),
        cohort=task.array("cohorts").tolist(),
        epochs=told["epochs"],
        batch_size=told["batch"],
        seed=SEED,
        threads=task.threads,
    )
    target = {"test_accuracy": told["target"]}
    history = sim.run(told["rounds"], evaluate_every=told["every"], target=target, progress=False)
    found = history.column("test_accuracy")[-1]
    if found < told["target"]:
        raise RuntimeError(f"an accuracy of {found:.3f} after all rounds, not {told['target']}")
    return len(history), found


if __name__ == "__main__":
    tell(reached)
