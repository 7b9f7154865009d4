"""Batch norm for many clients' padded batches."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..norms import PARTS, name_of
from ..packing import batch_norm_layers


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
        for part, measured in zip(PARTS, (mean, variance), strict=True):
            name = name_of(self.name, part)
            before = self._watch[0].found.get(name, getattr(self, part))  # a layer may be called twice
            self._watch[0].found[name] = (1 - self.momentum) * before + self.momentum * measured


def padded(module: nn.Module, watch: Watch) -> nn.Module:
    """The module, whose own copy this is, with batch norms that know of padding."""
    for name, layer in batch_norm_layers(module).items():
        if not name:
            return PaddedNorm(name, layer, watch)
        module.set_submodule(name, PaddedNorm(name, layer, watch))
    return module
