"""What every contender of `bench peers` runs, in its own environment: it trains when a line asks it to.

Nothing but Python and NumPy is needed here: `python -m peers.in_<stem> TASK CLIENTS THREADS CHUNK`, with the folder
`bench` on Python's path. Lines in and out are JSON; `docs/peers.md` has the questions.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from . import resident


class Trainer(Protocol):
    """A framework that averages the models of all clients of its task, round after round (FedAvg)."""

    def begin(self, steps: int | None) -> None:
        """Goes back to the start model; clients take so many local steps from now on (None: all of the task)."""

    def run(self, rounds: int) -> None:
        """Trains so many rounds, each from the model that the one before has left; the same batches in each."""

    def model(self) -> Sequence[np.ndarray]:
        """The model's arrays, in the task's order, names and layouts."""


@dataclass(frozen=True)
class Task:
    """What is trained, as `handing.hand_over` wrote it into `folder`, for the first `clients` clients, on `threads`
    cores; `chunk` is how many clients or processes side by side, where a framework has something of the kind."""

    folder: Path
    clients: int
    threads: int
    chunk: int

    @classmethod
    def of_command(cls) -> Task:
        """The task of this process's arguments."""
        folder, clients, threads, chunk = sys.argv[1:]
        return cls(Path(folder), int(clients), int(threads), int(chunk))

    @cached_property
    def told(self) -> dict[str, Any]:
        """`workload`, `loss`, `lr`, the `names` of parameters, and `heads` of attention (0: has none)."""
        told: dict[str, Any] = json.loads((self.folder / "task.json").read_text())
        return told

    @cached_property
    def inputs(self) -> np.ndarray:
        """All examples, (n, ...)."""
        return self._array("inputs")

    @cached_property
    def targets(self) -> np.ndarray:
        """What belongs to them, (n, ...)."""
        return self._array("targets")

    @cached_property
    def batches(self) -> np.ndarray:
        """The rows of the examples of every client's every step: (clients, steps, batch) int64."""
        return self._array("batches")[: self.clients]

    @cached_property
    def start(self) -> list[np.ndarray]:
        """The arrays of the model that all begin with."""
        with np.load(self.folder / "start.npz") as held:
            return [held[str(place)] for place in range(len(held.files))]

    def steps(self, wanted: int | None) -> int:
        """How many local steps that is."""
        return int(self.batches.shape[1]) if wanted is None else wanted

    def visit(self, client: int, steps: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """A client's inputs and targets in the order of its batches: (steps * batch, ...) both."""
        rows = self.batches[client][:steps].reshape(-1)
        return self.inputs[rows], self.targets[rows]

    def _array(self, name: str) -> np.ndarray:
        found: np.ndarray = np.load(self.folder / f"{name}.npy")
        return found


def save_arrays(path: Path, arrays: Sequence[np.ndarray]) -> None:
    """A model as a file: its arrays by their places."""
    named: dict[str, Any] = {str(place): array for place, array in enumerate(arrays)}
    with path.open("wb") as out:
        np.savez(out, **named)


def serve(make: Callable[[Task], Trainer], versions: Mapping[str, str]) -> None:
    """Answers the lines of standard input until it ends; `versions` are told first."""
    answers = own_output()
    try:
        task = Task.of_command()
        trainer = make(task)
        answer(answers, {"versions": dict(versions)})
        for line in sys.stdin:
            asked = json.loads(line)
            answer(answers, _of_memory(make, task, asked) or _carried_out(trainer, asked))
    except Exception as error:
        traceback.print_exc()
        answer(answers, {"error": f"{type(error).__name__}: {error}".splitlines()[0]})
        sys.exit(1)


def _carried_out(trainer: Trainer, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The seconds that it took."""
    begun = time.perf_counter()
    if asked["ask"] == "begin":
        trainer.begin(asked["steps"])
    elif asked["ask"] == "run":
        trainer.run(asked["rounds"])
    elif asked["ask"] == "model":
        save_arrays(Path(asked["into"]), trainer.model())
    else:
        raise ValueError(f"ask: must be begin, run or model, got {asked['ask']!r}")
    return {"seconds": time.perf_counter() - begun}


def _of_memory(make: Callable[[Task], Trainer], task: Task, asked: Mapping[str, Any]) -> dict[str, Any] | None:
    """The bytes that are resident, at the peak or now; None where that is not asked. A framework that is woken trains
    a round of another task first, so that its libraries and threads are not taken for what a round needs."""
    if asked["ask"] == "peak":
        return {"bytes": resident.peak()}
    if asked["ask"] != "watch":
        return None
    _woken(make, replace(task, folder=Path(asked["wake"]), clients=task.threads))
    _ = task.inputs, task.targets, task.batches  # are there before, whenever a framework looks at them
    return {"bytes": resident.watch()}


def _woken(make: Callable[[Task], Trainer], small: Task) -> None:
    trainer = make(small)
    trainer.begin(None)
    trainer.run(1)


def own_output() -> IO[str]:
    """Standard output for answers alone: what a framework prints goes to standard error instead."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def answer(answers: IO[str], told: Mapping[str, Any]) -> None:
    answers.write(json.dumps(told) + "\n")
    answers.flush()
