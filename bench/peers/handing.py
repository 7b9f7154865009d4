"""A workload as files that any framework can read: examples, batches as ready-made rows, the start model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ...data import Inputs
from ...packing import Packing
from ...train import RoundWork
from ...train.batches import Batches
from ..rounds.workloads import LEARNING_RATE, Workload
from .serving import save_arrays


def hand_over(workload: Workload, clients: int, folder: Path) -> Packing:
    """Writes the task of the first `clients` clients into `folder`, for ``serving.Task``; how its model is packed."""
    module = workload.make_module()
    packing = Packing.of(module)
    examples = workload.data(clients * workload.examples)
    work = workload.work(packing.pack(module), clients, clients)
    folder.mkdir(parents=True, exist_ok=True)
    for name, store in (("inputs", examples.inputs), ("targets", examples.targets)):
        np.save(folder / f"{name}.npy", _dense(store))
    np.save(folder / "batches.npy", np.stack([_rows(work, client) for client in range(clients)]))
    save_arrays(folder / "start.npz", [view.numpy() for view in packing.views(work.start).values()])
    told = {
        "workload": workload.name,
        "loss": workload.loss,
        "lr": LEARNING_RATE,
        "batch": workload.batch,
        "names": [slot.name for slot in packing.slots],
        "heads": _heads(module),
    }
    (folder / "task.json").write_text(json.dumps(told, indent=1) + "\n")
    return packing


def read_model(packing: Packing, path: Path) -> Tensor:
    """A model that a contender has left, packed: (d,)."""
    x = packing.zeros()
    with np.load(path) as held:
        if len(held.files) != len(packing.slots):
            raise ValueError(f"a model must have {len(packing.slots)} arrays, got {len(held.files)}")
        for place, (name, view) in enumerate(packing.views(x).items()):
            array = torch.from_numpy(held[str(place)])
            if array.shape != view.shape:
                raise ValueError(f"parameter {name!r}: must be {tuple(view.shape)}, got {tuple(array.shape)}")
            view.copy_(array)
    return x


def _rows(work: RoundWork, client: int) -> np.ndarray:
    """(steps, batch) int64: batches of a workload are all full."""
    own = Batches(work, client)
    return torch.stack([own.at(step) for step in range(int(work.steps[client]))]).numpy()


def _dense(store: Inputs) -> np.ndarray:
    if not isinstance(store, Tensor):
        raise ValueError(f"examples that other frameworks read must be tensors, got {type(store).__name__}")
    return store.numpy()


def _heads(module: nn.Module) -> int:
    """How many heads the attention of a module has: not to be seen in its parameters."""
    found = [getattr(part, "heads", 0) for part in module.modules()]
    return max(int(heads) for heads in found)
