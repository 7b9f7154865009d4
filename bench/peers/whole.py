"""What frameworks do for a whole task of `bench peers`: learn until a test accuracy is there, from their own start on.

Nothing but Python and NumPy is needed here, as for `serving`: `python -m peers.whole_<framework> TASK THREADS`.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from .serving import answer, own_output


class Visit(NamedTuple):
    """One client's part in a round: the rows (n,) of every step's batch, and how many examples the client has."""

    batches: list[np.ndarray]
    examples: int


class Learner(Protocol):
    """A framework that goes from round to round (FedAvg, clients weighted by examples)."""

    def learn(self, visits: Sequence[Visit]) -> None:
        """One round of these clients."""

    def accuracy(self) -> float:
        """The share of the test examples that the model has right now."""


@dataclass(frozen=True)
class WholeTask:
    """What `whole_tasks.hand_over` wrote into `folder`: data, start model, and who trains on what in every round."""

    folder: Path
    threads: int

    @classmethod
    def of_command(cls) -> WholeTask:
        """The task of this process's arguments."""
        folder, threads = sys.argv[1:]
        return cls(Path(folder), int(threads))

    @cached_property
    def told(self) -> dict[str, Any]:
        """`whole`, `data`, `sizes` of the MLP, `lr`, `batch`, `epochs`, `rounds`, `every`, `target`."""
        told: dict[str, Any] = json.loads((self.folder / "task.json").read_text())
        return told

    @cached_property
    def start(self) -> list[np.ndarray]:
        """The arrays of the model that all begin with."""
        with np.load(self.folder / "start.npz") as held:
            return [held[str(place)] for place in range(len(held.files))]

    def array(self, name: str) -> np.ndarray:
        """`inputs`, `targets`, `test_inputs`, `test_targets`, `cohorts`, `counts` or `orders`."""
        found: np.ndarray = np.load(self.folder / f"{name}.npy")
        return found

    def rounds(self) -> list[list[Visit]]:
        """Every round's visits. A client goes over its examples `epochs` times; the last batch of each may be short."""
        counts, orders = self.array("counts"), self.array("orders")
        epochs, size = int(self.told["epochs"]), int(self.told["batch"])
        ends = np.concatenate([[0], np.cumsum(epochs * counts.reshape(-1))])
        visits = [
            Visit([part for epoch in orders[a:b].reshape(epochs, n) for part in _cut(epoch, size)], int(n))
            for (a, b), n in zip(pairwise(ends), counts.reshape(-1), strict=True)
        ]
        return [visits[at : at + counts.shape[1]] for at in range(0, len(visits), counts.shape[1])]


def _cut(rows: np.ndarray, size: int) -> list[np.ndarray]:
    return [rows[at : at + size] for at in range(0, len(rows), size)]


def reach(make: Callable[[WholeTask], Learner]) -> None:
    """Learns until the task's accuracy is there, and answers with one line: rounds and accuracy."""
    tell(lambda task: _reached(task, make(task)))


def tell(work: Callable[[WholeTask], tuple[int, float]]) -> None:
    """Answers with what `work` gives: rounds and accuracy."""
    answers = own_output()
    try:
        rounds, accuracy = work(WholeTask.of_command())
        answer(answers, {"rounds": rounds, "accuracy": accuracy})
    except Exception as error:
        traceback.print_exc()
        answer(answers, {"error": f"{type(error).__name__}: {error}".splitlines()[0]})
        sys.exit(1)


def _reached(task: WholeTask, learner: Learner) -> tuple[int, float]:
    found = 0.0
    for number, visits in enumerate(task.rounds(), 1):
        learner.learn(visits)
        if number % task.told["every"] == 0:
            found = learner.accuracy()
            if found >= task.told["target"]:
                return number, found
    raise RuntimeError(f"an accuracy of {found:.3f} after all rounds, not {task.told['target']}")
