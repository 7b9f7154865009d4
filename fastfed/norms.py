"""What a module's batch norms have that is no parameter: running statistics, as one vector, and norms that keep them as
they are."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .packing import batch_norm_layers

PARTS = ("running_mean", "running_var")
_KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class PackedModel(NamedTuple):
    """A model as vectors: its parameters `x` (d,), and the running statistics (s,) that its batch norms have learnt;
    None without any."""

    x: Tensor
    statistics: Tensor | None = None


class FrozenNorm(nn.Module):
    """A batch norm that normalises by the statistics it has, in training too; the names of its tensors stay."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, layer: _BatchNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = layer.weight, layer.bias, layer.eps
        self.register_buffer("running_mean", layer.running_mean)
        self.register_buffer("running_var", layer.running_var)

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)


def frozen(module: nn.Module) -> nn.Module:
    """A copy whose batch norms keep the statistics that they have."""
    changed = copy.deepcopy(module)
    for name, layer in batch_norm_layers(changed).items():
        if not name:
            return FrozenNorm(layer)
        changed.set_submodule(name, FrozenNorm(layer))
    return changed


@dataclass(frozen=True)
class Statistics:
    """Where each layer's running mean and variance lie in a vector (size,), by the names of the buffers."""

    places: Mapping[str, slice]
    size: int

    @classmethod
    def of(cls, module: nn.Module) -> Statistics | None:
        """Those of a module; None if it keeps none. A batch norm that is none of torch's own, or that averages over all
        batches alike, is refused."""
        layers = batch_norm_layers(module)
        for name, layer in layers.items():
            if type(layer) not in _KINDS or layer.momentum is None:
                what = "momentum=None" if type(layer) in _KINDS else type(layer).__name__
                raise ValueError(
                    f"module: layer {name or type(module).__name__!r} is a batch norm with {what}; FastFed has "
                    "nn.BatchNorm1d, 2d and 3d with a momentum"
                )
        return cls._in_order({name: layer.num_features for name, layer in layers.items()})

    @classmethod
    def of_frozen(cls, module: nn.Module) -> Statistics | None:
        """Those of a module's frozen norms; None if it has none."""
        layers = ((name, layer) for name, layer in module.named_modules() if isinstance(layer, FrozenNorm))
        return cls._in_order({name: len(layer.running_mean) for name, layer in layers})

    @classmethod
    def _in_order(cls, channels: Mapping[str, int]) -> Statistics | None:
        """Of layers by name with so many channels each."""
        places: dict[str, slice] = {}
        end = 0
        for layer, size in channels.items():
            for part in PARTS:
                places[name_of(layer, part)] = slice(end, end + size)
                end += size
        return cls(places, end) if places else None

    def pack(self, module: nn.Module, dtype: torch.dtype) -> Tensor:
        """The statistics that a module has: (size,)."""
        buffers = dict(module.named_buffers())
        return torch.cat([buffers[name].detach().to(dtype) for name in self.places])

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """By the names of the buffers, views of (size,) or (clients, size)."""
        return {name: vector[..., place] for name, place in self.places.items()}

    def unpack(self, vector: Tensor, module: nn.Module) -> None:
        """Writes them into a module's buffers."""
        buffers = dict(module.named_buffers())
        for name, view in self.views(vector).items():
            buffers[name].copy_(view)

    def start_of(self, statistics: Tensor | None, position: int) -> Tensor:
        """A copy of what the client at this position starts from, of a work's `statistics`."""
        given = self.checked(statistics)
        return (given if given.dim() == 1 else given[position]).clone()

    def checked(self, statistics: Tensor | None) -> Tensor:
        """Refuses a work that lacks them, or has those of another module."""
        if statistics is None or statistics.shape[-1] != self.size:
            found = "none" if statistics is None else f"{tuple(statistics.shape)}"
            raise ValueError(f"statistics: the module's batch norms have {self.size} of them, got {found}")
        return statistics


def name_of(layer: str, part: str) -> str:
    """The full name of a layer's buffer; the layer's own is empty where it is the whole module."""
    return f"{layer}.{part}".removeprefix(".")
