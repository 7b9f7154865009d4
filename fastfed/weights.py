"""The weights of a model out of a file: what training begins from, or adapters stand beside."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

_WRAPPED = ("state_dict", "model_state_dict", "model")  # where training scripts put it, beside other things


def load_weights(module: nn.Module, path: str | Path, new: Sequence[str] = ()) -> None:
    """Gives a module the weights of a file: safetensors, or a state_dict by ``torch.save``, out of which no code runs.

    Every tensor must be there and fit. Only layers whose names end with one of `new` may be missing, or have another
    shape: they keep the weights that they have.
    """
    held, target = read_weights(path), module.state_dict()
    free = {name for name in target if any(_is_of(name, layer) for layer in new)}
    fitting = {name: tensor for name, tensor in held.items() if _fits(tensor, target.get(name)) or name not in free}
    lacking = [name for name in target if name not in fitting and name not in free]
    unknown = [name for name in fitting if name not in target]
    if lacking or unknown:
        problem = f"has no {_some(lacking)}" if lacking else f"has {_some(unknown)}, which the model has not"
        raise ValueError(f"{path} {problem}")
    for name, tensor in fitting.items():
        if not _fits(tensor, target[name]):
            raise ValueError(f"{path} has {name} as {tuple(tensor.shape)}, the model as {tuple(target[name].shape)}")
    with torch.no_grad():
        for name, tensor in fitting.items():
            target[name].copy_(tensor)


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a file by name, on the CPU."""
    if not Path(path).is_file():
        raise ValueError(f"{path}: no such file")
    try:
        if Path(path).suffix == ".safetensors":
            found: Any = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise ValueError(f"{path} holds no weights that can be read: {str(error).splitlines()[0]}") from error
    for key in _WRAPPED:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise ValueError(f"{path} must hold a state_dict, tensors by name")
    return dict(found)


def _fits(tensor: Tensor, wanted: Tensor | None) -> bool:
    return wanted is not None and tensor.shape == wanted.shape


def _is_of(name: str, layer: str) -> bool:
    """Whether a tensor belongs to the layer whose name ends so."""
    home = name.rpartition(".")[0]
    return any(part == layer or part.endswith(f".{layer}") for part in (home, home.rpartition(".")[0]))


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return f"{', '.join(names[:2])}{more}"
