"""What goes wrong on two ranks, one thing after the other: ``python -m tests.ranks.trouble FOLDER``. Every rank writes
down what it was told of each."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import fastfed as ff
from fastfed.ranks import Ranks
from fastfed.record.writers import JsonLines, read_json_lines
from fastfed.saved import checkpoint
from fastfed.train import batched

from ..simulation.support import simulation, small_federation, small_model


def told(function: Callable[[], Any]) -> str:
    """What an error says; "nothing" where there is none."""
    try:
        function()
    except (Exception, KeyboardInterrupt) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


class Keeping:
    """An exchange of somebody's own that says nothing of what its clients keep."""

    down = up = kept = 1
    any_timing = True
    split = None

    def check(self, client: Any, server: Any) -> None: ...

    def begin(self, x: torch.Tensor, clients: int) -> Any:
        class Own:
            keeps_deltas = False

            def extras(self, cohort: torch.Tensor, server_state: dict[str, torch.Tensor]) -> dict[str, Any]:
                return {}

            def absorb(self, work: Any, outcome: Any) -> None: ...

            def tensors(self) -> dict[str, torch.Tensor]:
                return {}

            def load(self, tensors: dict[str, torch.Tensor]) -> None: ...

        return Own()


class StopsAtOnce(ff.hooks.Hook):
    """Asks to stop after a round, on the last rank only, or on the first only."""

    def __init__(self, asks: bool) -> None:
        self.asks = asks

    def asks_to_stop(self, sim: ff.Simulation) -> bool:
        return self.asks and sim.round > 0


class Interrupts(ff.hooks.Hook):
    """Ctrl-C in the second round, on one rank only."""

    def after_round(self, sim: ff.Simulation, row: dict[str, Any], last: bool) -> None:
        if sim.round == 2 and sim.ranks is not None and sim.ranks.rank == 1:
            os.kill(os.getpid(), signal.SIGINT)


def failing_client(ranks: Ranks) -> str:
    """A loss that cannot be computed, on one rank: all hear of it, and none waits for ever."""

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if ranks.rank == 1:
            raise ArithmeticError("no such loss")
        return torch.nn.functional.cross_entropy(outputs, targets)

    return told(lambda: simulation(loss=loss, executor="eager").run(rounds=1, evaluate_every=0, progress=False))


class Fails(ff.hooks.Hook):
    """Cannot do something, on one rank; on the others it evaluates meanwhile, if it is to."""

    def __init__(self, what: str, evaluates: bool = False) -> None:
        self.what, self.evaluates = what, evaluates

    def _do(self, what: str, sim: ff.Simulation) -> None:
        if what == self.what and (what != "after_round" or sim.round == 2):
            if sim.ranks is not None and sim.ranks.rank == 1:
                raise ArithmeticError(f"cannot {what}")
            if self.evaluates:
                sim.evaluate()

    def begin(self, sim: ff.Simulation) -> None:
        self._do("begin", sim)

    def after_round(self, sim: ff.Simulation, row: dict[str, Any], last: bool) -> None:
        self._do("after_round", sim)

    def end(self, sim: ff.Simulation) -> None:
        self._do("end", sim)


def failing_hooks(folder: Path) -> dict[str, Any]:
    """A hook of the second rank fails: both hear of it, and save what they have if both are in the run."""
    found = {}
    for what, evaluates in (("begin", False), ("after_round", False), ("after_round", True), ("end", False)):
        name = f"{what} beside an evaluation" if evaluates else what
        sim, home = simulation(**ff.methods.scaffold(0.1)), folder / name
        hooks = [Fails(what, evaluates)]
        said = told(lambda: sim.run(rounds=3, checkpoint=home, progress=False, evaluate_every=0, hooks=hooks))  # noqa: B023
        found[name] = {"said": said, "saved": sorted(checkpoint.rounds_of(home))}
    return found


def failing_evaluation(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """A loss that cannot be computed in an evaluation, on one rank."""

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if ranks.rank == 1 and not torch.is_grad_enabled():
            raise ArithmeticError("no such loss")
        return torch.nn.functional.cross_entropy(outputs, targets)

    home = folder / "evaluation"
    sim = simulation(loss=loss, executor="eager")
    said = told(lambda: sim.run(rounds=4, checkpoint=home, progress=False, evaluate_every=2))
    return {"said": said, "saved": sorted(checkpoint.rounds_of(home))}


def full_disk(folder: Path) -> dict[str, Any]:
    """Rows cannot be written, which only the first rank does."""

    def write(self: JsonLines, row: dict[str, Any]) -> None:
        raise OSError(28, "No space left on device")

    home, before = folder / "full", JsonLines.write
    sim = simulation()
    JsonLines.write = write  # type: ignore[method-assign]
    said = told(lambda: sim.run(rounds=4, checkpoint=home, log=folder / "full.jsonl", progress=False, evaluate_every=0))
    JsonLines.write = before  # type: ignore[method-assign]
    return {"said": said, "saved": sorted(checkpoint.rounds_of(home))}


def other_memory(ranks: Ranks) -> dict[str, Any]:
    """A card, or whatever stands for it, with more room on the second rank."""
    before = batched.MEMORY
    batched.MEMORY = 20_000 * (1 + 9 * ranks.rank)
    sim = simulation(executor="batched", cohort=9)
    batched.MEMORY = before
    said = told(lambda: sim.run(rounds=2, progress=False, evaluate_every=0))
    return {"said": said, "memory": sim.executor.inner.memory, "params": sim.params.tolist()}  # type: ignore[attr-defined]


def failing_parts(ranks: Ranks) -> dict[str, str]:
    """A cohort, and data, that one rank cannot have."""

    def cohort(round: int) -> list[int]:
        if ranks.rank == 1 and round == 1:
            raise ArithmeticError("no such cohort")
        return [0, 1, 2, 3]

    sim = simulation(cohort=cohort)
    sim.step()
    found = {"cohort": told(sim.step)}
    for name, executor in (("data", "native"), ("data on eager", "eager")):
        sim = simulation(executor=executor)
        visit = sim.fed.visit

        def unread(clients: torch.Tensor, visit: Any = visit) -> Any:
            if ranks.rank == 1:
                raise OSError(5, "Input/output error")
            return visit(clients)

        object.__setattr__(sim.fed, "visit", unread)
        found[name] = told(sim.step)
    return found


def interrupted(folder: Path) -> dict[str, Any]:
    """Ctrl-C reaches one rank; both end after the same round, with a checkpoint and the row of that round."""
    sim, home, log = simulation(**ff.methods.scaffold(0.1)), folder / "interrupted", folder / "interrupted.jsonl"
    asked: dict[str, Any] = {"checkpoint": home, "log": log, "progress": False, "evaluate_every": 0}
    said = told(lambda: sim.run(rounds=50, hooks=[Interrupts()], **asked))
    rows = len(read_json_lines(log)) if sim.ranks is not None and sim.ranks.is_first else 3
    return {"said": said, "round": sim.round, "saved": sorted(checkpoint.rounds_of(home)), "rows": rows}


def stopped(ranks: Ranks, by: int) -> int:
    """After how many rounds a run ends that only the hook of one rank wants to end."""
    sim = simulation()
    sim.run(rounds=4, progress=False, evaluate_every=0, hooks=[StopsAtOnce(ranks.rank == by)])
    return sim.round


def threads_of_gloo() -> list[str]:
    """Which threads of a process group are still there, by name."""
    names = [task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")]
    return sorted(name for name in names if "gloo" in name)


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    with ff.ranks.join(timeout=120) as ranks:
        assert ranks is not None
        found = {
            "other settings": told(lambda: simulation(seed=ranks.rank)),
            "other model": told(lambda: ff.Simulation(small_model(ranks.rank), small_federation(), **_simple())),
            "other data": told(lambda: simulation(small_federation(seed=ranks.rank))),
            "exchange": told(lambda: simulation(exchange=Keeping())),
            "joined twice": told(lambda: ff.ranks.join().__enter__()),
            "failing client": failing_client(ranks),
            "each": told(lambda: ranks.each(lambda: 1 // ranks.rank)),
            "disk": told(lambda: simulation().save("/dev/null/nowhere")),
            "interrupted": interrupted(folder),
            "hooks": failing_hooks(folder),
            "evaluation": failing_evaluation(ranks, folder),
            "full disk": full_disk(folder),
            **failing_parts(ranks),
            "other memory": other_memory(ranks),
            "stopped by the first": stopped(ranks, 0),
            "stopped by the second": stopped(ranks, 1),
        }
        left = simulation()
    found["after the block"] = told(left.step)
    found["threads after the block"] = threads_of_gloo()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    found["a group of its own"] = told(lambda: ff.ranks.join().__enter__())
    dist.destroy_process_group()
    (folder / f"rank-{ranks.rank}.json").write_text(json.dumps(found))


def _simple() -> dict[str, Any]:
    return {"client": ff.clients.SGD(lr=0.1), "cohort": 3}


if __name__ == "__main__":
    main()
