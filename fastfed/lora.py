"""Low-rank adapters on a frozen model: clients train and send two thin matrices per layer instead of its weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from .checks import nearest
from .saved.recipe import remembered


class AdaptedLinear(nn.Module):
    """``base(x) + scale * up @ down @ x``: a frozen linear layer, and a detour through `rank` numbers that is trained.

    `up` begins with zeros: a fresh adapter changes nothing.
    """

    def __init__(self, base: nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        self.base, self.scale = base, scale
        self.down, self.up = _thin(rank, base.in_features, base.out_features, base.weight)

    def extra_repr(self) -> str:
        return f"rank={len(self.down)}, scale={self.scale:g}"

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(x, self.down) * self.scale, self.up)

    def merged(self) -> nn.Linear:
        """A linear layer that does the same."""
        layer = copy.deepcopy(self.base)
        layer.weight.data += self.scale * (self.up.detach() @ self.down.detach())
        return layer


class AdaptedAttention(nn.Module):
    """``nn.MultiheadAttention`` with frozen projections, and a detour of low rank beside each of them: one for queries,
    keys and values together, and one for the outputs."""

    _qkv_same_embed_dim = False  # so that nn.TransformerEncoderLayer never reads frozen weights past the adapters

    def __init__(self, base: nn.MultiheadAttention, rank: int, scale: float) -> None:
        super().__init__()
        self.base, self.scale, self.batch_first = base, scale, base.batch_first
        channels = base.embed_dim
        self.down, self.up = _thin(rank, channels, 3 * channels, base.out_proj.weight)
        self.out_down, self.out_up = _thin(rank, channels, channels, base.out_proj.weight)

    def extra_repr(self) -> str:
        return f"rank={len(self.down)}, scale={self.scale:g}"

    @property
    def in_proj_bias(self) -> Tensor | None:
        return self.base.in_proj_bias

    def weights(self) -> dict[str, Tensor]:
        """The projections of `base` with their detours, by name."""
        return {
            "in_proj_weight": self.base.in_proj_weight + self.scale * (self.up @ self.down),
            "out_proj.weight": self.base.out_proj.weight + self.scale * (self.out_up @ self.out_down),
        }

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        return functional_call(self.base, self.weights(), (query, key, value, *args), kwargs)

    def merged(self) -> nn.MultiheadAttention:
        """Torch's layer, doing the same."""
        layer = copy.deepcopy(self.base)
        with torch.no_grad():
            for name, weight in self.weights().items():
                layer.get_parameter(name).copy_(weight)
        return layer


_Adapted = AdaptedLinear | AdaptedAttention


def _thin(rank: int, inputs: int, outputs: int, like: Tensor) -> tuple[nn.Parameter, nn.Parameter]:
    """(rank, inputs), drawn as nn.Linear draws its weights, and (outputs, rank) of zeros."""
    down, up = like.new_empty(rank, inputs), like.new_zeros(outputs, rank)
    nn.init.kaiming_uniform_(down, a=math.sqrt(5))
    return nn.Parameter(down), nn.Parameter(up)


@remembered
def lora(
    module: nn.Module,
    rank: int,
    alpha: float | None = None,
    targets: Sequence[str] | None = None,
    trained: Sequence[str] = (),
) -> nn.Module:
    """A copy of `module` whose weights are frozen, with trainable adapters of this rank beside its linear layers.

    `alpha`: adapters count alpha / rank times (default: once). `targets`: which layers get one, by the last parts of
    their names (default: every nn.Linear, and the projections of every nn.MultiheadAttention). `trained`: layers that
    are trained as a whole, such as a new head. Only what is trained is packed, sent and averaged.

    >>> model = lora(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)), rank=2, targets=["0"])
    >>> sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    192
    """
    if rank < 1:
        raise ValueError(f"rank: must be >= 1, got {rank}")
    changed = copy.deepcopy(module).requires_grad_(False)
    whole = {name: changed.get_submodule(name) for name in _chosen(dict(changed.named_modules()), trained, "trained")}
    adaptable = {name: layer for name, layer in _adaptable(changed).items() if not _is_inside(name, whole)}
    scale = 1.0 if alpha is None else alpha / rank
    for name in adaptable if targets is None else _chosen(adaptable, targets, "targets"):
        layer = adaptable[name]
        if isinstance(layer, nn.MultiheadAttention) and layer.in_proj_weight is None:
            raise ValueError(
                f"targets: layer {name!r} has keys or values of a width of their own (kdim, vdim), for which there are "
                "no adapters; name others"
            )
        kind = AdaptedLinear if isinstance(layer, nn.Linear) else AdaptedAttention
        adapted = kind(layer, rank, scale)  # type: ignore[arg-type]
        if not name:
            return adapted
        changed.set_submodule(name, adapted)
    for layer in changed.modules():
        if isinstance(layer, nn.TransformerEncoderLayer):
            layer.activation_relu_or_gelu = 0  # in evaluation it would read the layers' weights past the adapters
    for layer in whole.values():
        layer.requires_grad_(True)
    if not any(isinstance(layer, _Adapted) for layer in changed.modules()):
        raise ValueError("module: has no nn.Linear and no nn.MultiheadAttention that an adapter could stand beside")
    return changed


def merged(module: nn.Module) -> nn.Module:
    """A copy of a module of `lora` whose adapters are added to the weights: as fast as the module without them."""
    changed = copy.deepcopy(module)
    for name, layer in list(changed.named_modules()):
        if isinstance(layer, _Adapted):
            if not name:
                return layer.merged()
            changed.set_submodule(name, layer.merged())
    return changed


def _adaptable(module: nn.Module) -> dict[str, nn.Module]:
    """The layers by name that can have an adapter; what is inside attention belongs to it."""
    layers = {
        name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear | nn.MultiheadAttention)
    }
    attention = {name for name, layer in layers.items() if isinstance(layer, nn.MultiheadAttention)}
    return {name: layer for name, layer in layers.items() if not _is_inside(name, attention - {name})}


def _is_inside(name: str, others: Iterable[str]) -> bool:
    """Whether a layer is one of the others, or a part of one."""
    return any(other in ("", name) or name.startswith(f"{other}.") for other in others)


def _chosen(layers: dict[str, nn.Module], wanted: Sequence[str], argument: str) -> list[str]:
    """The names that end with one of those that are wanted, part by part."""
    if isinstance(wanted, str):
        raise ValueError(f"{argument}: must be a list of names, got {wanted!r}")
    found: dict[str, None] = {}
    for name in wanted:
        matching = [layer for layer in layers if layer == name or layer.endswith(f".{name}")]
        if not matching:
            known = tuple(sorted({layer.rpartition(".")[2] for layer in layers if layer}))
            raise ValueError(f"{argument}: no layer's name ends with {name!r}.{nearest(name, known)}")
        found |= dict.fromkeys(matching)
    return list(found)
