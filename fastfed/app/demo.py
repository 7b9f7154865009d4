"""A comparison to look at: four methods on the digits that come with FastFed, some seeds each. What `make run` shows.

The runs are those of `fastfed run`: each has a directory with its configuration, rounds and checkpoints, and a run that
is finished there is not run again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import runs
from .config import Config, parse
from .counting import counted

_SHARED: Mapping[str, Any] = {
    "data": {"name": "digits", "partition": "dirichlet", "clients": 100, "alpha": 0.3},
    "model": {"name": "mlp", "sizes": [64, 64, 10]},
}
_RUN: Mapping[str, Any] = {"cohort": 10, "epochs": 2.0, "batch_size": 10, "evaluate_every": 5, "checkpoint_every": 50}
# Learning rates that do well here; nobody has searched for the best.
METHODS: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {"client": {"lr": 0.1}},
    "fedyogi": {"client": {"lr": 0.1}, "server": {"lr": 0.03}},
    "fedada2": {"client": {"rule": "adagrad", "lr": 0.03}, "server": {"rule": "adam", "lr": 0.03}},
    "delta_sgd": {},
}


def configurations(rounds: int, seeds: int) -> dict[str, Config]:
    """Every method with the seeds 0, 1, ..., by the names of the runs' directories."""
    return {
        f"{method}-{seed}": parse(
            {**_SHARED, **tables, "method": method, "run": {**_RUN, "rounds": rounds, "seed": seed}}
        )
        for method, tables in METHODS.items()
        for seed in range(seeds)
    }


def run(home: Path, rounds: int, seeds: int, say: Callable[[str], None] = print) -> list[runs.Run]:
    """Runs them all below a directory, or reads what is finished there; `say` hears a line for each.

    A run that was interrupted goes on. Where a directory holds another run, nothing is changed: ``runs.RunExists``.
    """
    chosen = configurations(rounds, seeds)
    held = {name: _held(config, home / name, rounds) for name, config in chosen.items()}
    fed = next(iter(chosen.values())).federation()  # all have the same data
    done = []
    for name, config in chosen.items():
        there = held[name]
        if there is not None and there.status == "done" and len(there.history) == rounds:
            done.append(there)
            say(f"{name}: {_words(there)}, run before")
        else:
            done.append(runs.execute(config, home / name, resume=there is not None, progress=False, fed=fed))
            say(f"{name}: {_words(done[-1])}, {done[-1].info['seconds']:.1f} s")
    return done


def _held(config: Config, home: Path, rounds: int) -> runs.Run | None:
    """The run that a directory holds already, which must be this one, or none."""
    if not runs.holds_run(home):
        return None
    there = runs.read(home)
    difference = runs.difference_from(there, config)
    if difference is not None:
        raise runs.RunExists(_taken(home, difference))
    if len(there.history) > rounds:
        raise runs.RunExists(
            _taken(home, f"it has {counted(len(there.history), 'round')}, and {rounds} were asked for")
        )
    return there


def _taken(home: Path, why: str) -> str:
    return f"{home}: holds another run already ({why}); use another --out, or remove it"


def _words(one: runs.Run) -> str:
    return f"{one.history.last(one.metric):.1%} after {counted(len(one.history), 'round')}"
