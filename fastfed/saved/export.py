"""A model out of a checkpoint: without the data of the run, and as a plain state_dict on disk."""

from __future__ import annotations

from pathlib import Path

import safetensors.torch
import torch
from torch import nn

from ..batch_norm import make_statistics
from ..files import aside
from ..norms import frozen
from ..packing import Packing
from . import checkpoint as checkpoints
from .restore import CONSTANT, beginning_with, restore_model, restored

FORMATS = (".pt", ".safetensors")


def trained_model(path: str | Path, model: nn.Module | None = None) -> nn.Module:
    """The module with the global model of a checkpoint: of a file, or of a directory (a run's, too), whose newest is
    taken. A `model` that was not made by a function of ``ff.models`` must be given."""
    manifest, tensors = checkpoints.read(path)
    module = restored("model", manifest["model"], model)
    module = restore_model(module, manifest, beginning_with(CONSTANT, tensors))
    mode = manifest["settings"].get("batch_norm", "average")
    packing = Packing.of(frozen(module) if mode == "frozen" else module, batch_norm=True)
    packing.unpack(tensors["x"], module)
    statistics = make_statistics(mode, module, packing, torch.device("cpu"))
    statistics.load(beginning_with("batch_norm.", tensors))
    buffers = dict(module.named_buffers())
    for name, values in statistics.named().items():
        buffers[name].copy_(values)
    return module.eval()


def write_state(model: nn.Module, target: Path) -> None:
    """Writes the state_dict into a file of the format that its name says, whole or not at all; tied tensors under each
    of their names."""
    if target.suffix not in FORMATS:
        raise ValueError(f"{target}: must end in {' or '.join(FORMATS)}")
    state = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}
    with aside(target) as scratch:
        if target.suffix == ".pt":
            torch.save(state, scratch)
        else:
            safetensors.torch.save_file(state, scratch, metadata={"format": "pt"})
