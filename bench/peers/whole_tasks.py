"""How long each framework takes for a whole task, from its process's start: handed over, run in turns, as rows."""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from ...app.doctor import machine
from ...clients import SGD
from ...data import Federated
from ...data.errors import DataError
from ...packing import Packing
from ...train import RoundWork
from ...train.batches import Batches, steps_for
from ..rounds.rows import FASTFED, PLAIN
from .contender import ContenderFailed, environment_of
from .line_up import FEDJAX, PFL, missing_home, python_of
from .rows import WholeRow, summary
from .serving import save_arrays
from .tasks import SEED, Whole

if TYPE_CHECKING:
    from .run import Plan


def hand_over(whole: Whole, data: Path, folder: Path) -> None:
    """Writes a task for ``whole.WholeTask``; DataError where the real files are not there."""
    fed = whole.fed(data)
    module = whole.module()
    packing = Packing.of(module)
    folder.mkdir(parents=True, exist_ok=True)
    inputs, targets = fed.examples.batch(torch.arange(len(fed.examples)))
    assert fed.test is not None
    test_inputs, test_targets = fed.test.batch(torch.arange(len(fed.test)))
    cohorts = [_cohort(len(fed), whole.cohort, round) for round in range(whole.rounds)]
    orders, counts = zip(*(_orders(whole, fed, torch.from_numpy(c), r) for r, c in enumerate(cohorts)), strict=True)
    arrays = {
        "inputs": inputs, "targets": targets, "test_inputs": test_inputs, "test_targets": test_targets,
        "cohorts": np.stack(cohorts), "counts": np.stack(counts), "orders": np.concatenate(orders),
    }  # fmt: skip
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", np.asarray(array))
    save_arrays(folder / "start.npz", [view.numpy() for view in packing.views(packing.pack(module)).values()])
    told = {name: getattr(whole, name) for name in ("lr", "batch", "epochs", "rounds", "every", "target", "sizes")}
    told |= {"whole": whole.name, "data": str(data)}
    (folder / "task.json").write_text(json.dumps(told, indent=1) + "\n")


def _cohort(clients: int, size: int, round: int) -> np.ndarray:
    return np.sort(np.random.default_rng((SEED, round)).permutation(clients)[:size])


def _orders(whole: Whole, fed: Federated, cohort: torch.Tensor, round: int) -> tuple[np.ndarray, np.ndarray]:
    """What the clients of a round see, one after the other, in FastFed's own orders, and how many examples each has."""
    visit = fed.visit(cohort)
    counts = visit.offsets.diff()
    steps = steps_for(whole.epochs, counts, whole.batch)
    work = RoundWork(
        start=torch.zeros(1),
        rows=visit.rows,
        offsets=visit.offsets,
        ids=cohort,
        steps=steps,
        batch_size=whole.batch,
        optimizers=(SGD(lr=whole.lr),),
        seed=SEED,
        round=round,
    )
    seen = [Batches(work, place).at(step) for place in range(len(cohort)) for step in range(int(steps[place]))]
    return torch.cat(seen).numpy(), counts.numpy()


# ---- who does them


HOMES = {FASTFED: "", PLAIN: "", FEDJAX: FEDJAX, PFL: PFL}  # and their environments


def run_whole(whole: Whole, plan: Plan) -> Iterator[WholeRow]:
    """FastFed and those of the plan's peers who do whole tasks, in turns, each turn in a new process."""
    turns, threads = plan.turns, plan.threads
    with tempfile.TemporaryDirectory() as folder:
        try:
            hand_over(whole, plan.data, Path(folder))
        except DataError as error:
            yield _row(whole, FASTFED, [], turns, threads, str(error), None)
            return
        asked = {name: home for name, home in HOMES.items() if name in (FASTFED, *plan.peers)}
        found: dict[str, list[_Done] | str] = {
            name: missing_home(home, plan.environments) or [] for name, home in asked.items()
        }
        for _ in range(turns):
            for name, done in found.items():
                if isinstance(done, list):
                    try:
                        done.append(_once(name, HOMES[name], Path(folder), threads, plan.environments))
                    except ContenderFailed as error:
                        found[name] = str(error)
        ours = found[FASTFED]
        base = statistics.median(one.seconds for one in ours) if isinstance(ours, list) else None
        for name, done in found.items():
            reason = done if isinstance(done, str) else ""
            yield _row(whole, name, done if isinstance(done, list) else [], turns, threads, reason, base)


class _Done(NamedTuple):
    seconds: float
    rounds: int
    accuracy: float


def _once(name: str, home: str, task: Path, threads: int, environments: Path) -> _Done:
    """A process from its start until it says that it is there."""
    command = [python_of(home, environments), "-m", f"peers.whole_{name}", str(task), str(threads)]
    with tempfile.TemporaryFile("w+") as said:
        begun = time.perf_counter()
        with subprocess.Popen(
            command, env=environment_of(threads), stdout=subprocess.PIPE, stderr=said, text=True
        ) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            seconds = time.perf_counter() - begun
        if not line:
            said.seek(0)
            raise ContenderFailed(f"it ended: {(said.read().splitlines() or ['without a word'])[-1]}")
    told = json.loads(line)
    if "error" in told:
        raise ContenderFailed(told["error"])
    return _Done(seconds, told["rounds"], told["accuracy"])


def _row(
    whole: Whole, name: str, done: Sequence[_Done], turns: int, threads: int, reason: str, base: float | None
) -> WholeRow:
    median, p20, p80 = summary([one.seconds for one in done]) if done else (None, None, None)
    return WholeRow(
        task=whole.name,
        peer=name,
        target=whole.target,
        median=median,
        p20=p20,
        p80=p80,
        turns=turns,
        rounds=done[-1].rounds if done else 0,
        accuracy=done[-1].accuracy if done else 0.0,
        ratio=None if median is None or base is None else median / base,
        skipped=reason,
        threads=threads,
        machine=machine().words,
    )
