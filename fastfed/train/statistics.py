"""The running statistics of a module's batch norms as one vector, and batch norm for many clients' padded batches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..packing import batch_norm_layers

_PARTS = ("running_mean", "running_var")
_KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True)
class Statistics:
    """Where each layer's running mean and variance lie in a vector (size,), by the names of the buffers."""

    places: Mapping[str, slice]
    size: int

    @classmethod
    def of(cls, module: nn.Module) -> Statistics | None:
        """Those of a module; None if it keeps none. A batch norm that is none of torch's own, or that averages over all
        batches alike, is refused."""
        places: dict[str, slice] = {}
        end = 0
        for name, layer in batch_norm_layers(module).items():
            if type(layer) not in _KINDS or layer.momentum is None:
                what = "momentum=None" if type(layer) in _KINDS else type(layer).__name__
                raise ValueError(
                    f"module: layer {name or type(module).__name__!r} is a batch norm with {what}; FastFed has "
                    "nn.BatchNorm1d, 2d and 3d with a momentum"
                )
            for part in _PARTS:
                places[f"{name}.{part}".removeprefix(".")] = slice(end, end + layer.num_features)
                end += layer.num_features
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


class Watch:
    """What the batch norms of one forward pass are told, and what they find: `real` (n,) bool are the examples that are
    no padding, None: they normalise by the statistics that they have. `found`: the updated ones by name. `is_single`:
    one of them sees a single value per example and channel, so that an example alone shows no variance."""

    def __init__(self) -> None:
        self.real: Tensor | None = None
        self.found: dict[str, Tensor] = {}
        self.is_single = False


class PaddedNorm(nn.Module):
    """Batch norm over the examples of a batch that are real. It changes no buffer: what torch would write there is left
    with the watch."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, name: str, layer: _BatchNorm, watch: Watch) -> None:
        super().__init__()
        assert layer.momentum is not None
        self.name, self.eps, self.momentum = name, layer.eps, float(layer.momentum)
        self.weight, self.bias = layer.weight, layer.bias
        self.register_buffer("running_mean", layer.running_mean)
        self.register_buffer("running_var", layer.running_var)
        self._watch = (watch,)  # in a tuple, so that copies of the module share it

    def forward(self, x: Tensor) -> Tensor:
        real = self._watch[0].real
        self._watch[0].is_single |= math.prod(x.shape[2:]) == 1
        if real is None:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
        axes = [axis for axis in range(x.dim()) if axis != 1]
        shape = [1, -1] + [1] * (x.dim() - 2)
        mask = real.to(x.dtype).view(-1, *[1] * (x.dim() - 1))
        count = (real.sum() * math.prod(x.shape[2:])).clamp(min=1).to(x.dtype)
        mean = (x * mask).sum(axes) / count
        apart = x - mean.view(shape)
        variance = (apart.square() * mask).sum(axes) / count
        self._note(mean.detach(), variance.detach() * (count / (count - 1).clamp(min=1)))
        scaled = apart / (variance + self.eps).sqrt().view(shape)
        return scaled if self.weight is None else scaled * self.weight.view(shape) + self.bias.view(shape)

    def _note(self, mean: Tensor, variance: Tensor) -> None:
        """The variance is the unbiased one, as torch's running variance has it."""
        for part, measured in zip(_PARTS, (mean, variance), strict=True):
            name = f"{self.name}.{part}".removeprefix(".")
            before = self._watch[0].found.get(name, getattr(self, part))  # a layer may be called twice
            self._watch[0].found[name] = (1 - self.momentum) * before + self.momentum * measured


def padded(module: nn.Module, watch: Watch) -> nn.Module:
    """The module, whose own copy this is, with batch norms that know of padding."""
    for name, layer in batch_norm_layers(module).items():
        if not name:
            return PaddedNorm(name, layer, watch)
        module.set_submodule(name, PaddedNorm(name, layer, watch))
    return module
