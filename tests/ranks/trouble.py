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

import fastfed as ff
from fastfed.ranks import Ranks
from fastfed.saved import checkpoint

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


def interrupted(folder: Path) -> dict[str, Any]:
    """Ctrl-C reaches one rank; both end after the same round, with a checkpoint."""
    sim, home = simulation(**ff.methods.scaffold(0.1)), folder / "interrupted"
    said = told(lambda: sim.run(rounds=50, checkpoint=home, progress=False, evaluate_every=0, hooks=[Interrupts()]))
    return {"said": said, "round": sim.round, "saved": sorted(checkpoint.rounds_of(home))}


def stopped(ranks: Ranks, by: int) -> int:
    """After how many rounds a run ends that only the hook of one rank wants to end."""
    sim = simulation()
    sim.run(rounds=4, progress=False, evaluate_every=0, hooks=[StopsAtOnce(ranks.rank == by)])
    return sim.round


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
            "stopped by the first": stopped(ranks, 0),
            "stopped by the second": stopped(ranks, 1),
        }
        (folder / f"rank-{ranks.rank}.json").write_text(json.dumps(found))


def _simple() -> dict[str, Any]:
    return {"client": ff.clients.SGD(lr=0.1), "cohort": 3}


if __name__ == "__main__":
    main()
