"""Every reader of files that FastFed has: how to write what it reads, and what it makes of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import fastfed as ff
from fastfed import runs
from fastfed.app.config.config import load
from tests.data import (
    test_cifar,
    test_disk,
    test_idx,
    test_landmarks,
    test_leaf,
    test_shakespeare,
    test_stackexchange,
    test_tff,
)


@dataclass(frozen=True)
class Reader:
    """`write(root)` makes a folder that `read(root)` reads. `seals`: what is read must be what was written, or be
    refused; other formats have nothing that would tell."""

    write: Callable[[Path], object]
    read: Callable[[Path], Any]
    seals: bool = False


def _emnist(root: Path) -> None:
    test_tff.emnist(root)


def _leaf(root: Path) -> None:
    test_leaf.write(root, test_leaf.TRAIN, test_leaf.TEST)


def _posts(root: Path) -> None:
    rows = [test_stackexchange.row(number, OwnerUserId=str(number % 3)) for number in range(12)]
    test_stackexchange.written(root, *rows)


def _landmarks(root: Path) -> None:
    test_landmarks.root.__wrapped__(root)  # type: ignore[attr-defined]


def _topics(root: Path) -> None:
    for part in ("train", "test"):
        lines = [f'"{1 + row % 4}","Title {row}","Some ""words"" of, number {row}"' for row in range(8)]
        (root / f"{part}.csv").write_text("\n".join(lines))


def _plays(root: Path) -> None:
    (root / "Nothing.txt").write_text(test_shakespeare.PLAY)


def _store(make: Callable[[], Any]) -> Callable[[Path], object]:
    return lambda root: ff.data.save_store(make(), root / "store")


def _partition(root: Path) -> None:
    ff.data.save_partition(ff.data.dirichlet(ff.data.digits(), clients=5, alpha=0.3, seed=0), root / "clients.json")


def _simulation() -> ff.Simulation:
    fed = ff.data.dirichlet(ff.data.digits(), clients=5, alpha=0.3, seed=0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = ff.models.mlp(64, 4, 10)
    return ff.Simulation(model, fed, cohort=2, batch_size=50, **ff.methods.scaffold(client_lr=0.1))


def _checkpoint(root: Path) -> None:
    sim = _simulation()
    sim.run(rounds=2, progress=False, evaluate_every=0)
    sim.save(root)


def _resumed(root: Path) -> Any:
    sim = ff.Simulation.resume(root)
    return sim.params, sim.history.rounds


CONFIGURATION = """
method = "fedyogi"
name = "a run"

[data]
name = "digits"
partition = "dirichlet"
clients = 10
alpha = 0.3

[model]
name = "mlp"
sizes = [64, 4, 10]

[client]
lr = 0.1

[server]
lr = 0.03

[run]
rounds = 2
cohort = 2
"""


def _configuration(root: Path) -> None:
    (root / "run.toml").write_text(CONFIGURATION)


def _run_directory(root: Path) -> None:
    """What `fastfed run` leaves, made once for all cases."""
    kept = root.parent / "a run"
    if not kept.exists():
        file = root.parent / "a run.toml"
        file.write_text(CONFIGURATION)
        runs.execute(load(file), kept, progress=False)
    shutil.copytree(kept, root, dirs_exist_ok=True)


READERS: dict[str, Reader] = {
    "mnist": Reader(test_idx.write_four, lambda root: ff.data.mnist(root)),
    "mnist packed": Reader(lambda root: test_idx.write_four(root, packed=True), lambda root: ff.data.mnist(root)),
    "cifar binary": Reader(test_cifar.write_binary, lambda root: ff.data.cifar10(root)),
    "cifar pickles": Reader(test_cifar.write_pickles, lambda root: ff.data.cifar10(root)),
    "federated emnist": Reader(_emnist, lambda root: ff.data.federated_emnist(root)),
    "stack overflow words": Reader(test_tff.stack_overflow, lambda root: ff.data.stack_overflow_nwp(root, words=3)),
    "stack overflow tags": Reader(
        test_tff.stack_overflow, lambda root: ff.data.stack_overflow_tags(root, words=3, tags=2)
    ),
    "leaf": Reader(_leaf, lambda root: ff.data.leaf(root)),
    "stack exchange": Reader(_posts, lambda root: ff.data.stack_exchange(root, words=5, tags=2)),
    "landmarks": Reader(_landmarks, lambda root: ff.data.gld23k(root, size=8)),
    "topics": Reader(_topics, lambda root: ff.data.ag_news(root, words=10)),
    "plays": Reader(_plays, lambda root: ff.data.shakespeare_plays(root)),
    "partition": Reader(_partition, lambda root: ff.data.load_partition(root / "clients.json", ff.data.digits())),
    "checkpoint": Reader(_checkpoint, _resumed, seals=True),
    "configuration": Reader(_configuration, lambda root: load(root / "run.toml")),
    "run": Reader(_run_directory, lambda root: runs.read(root)),
    **{
        f"store of {make.__name__}": Reader(_store(make), lambda root: ff.data.open_store(root / "store"), seals=True)
        for make in test_disk.KINDS
    },
}
