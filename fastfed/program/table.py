"""One table from torch's functions, tensor methods and leaf modules to the builders of their instructions.

Layers such as nn.Conv2d need no row: torch.fx looks into them and sees F.conv2d. A builder takes what the torch
function takes, with a `Draft` in front (and, for a leaf module, the module and a way to its parameters); what it does
not take is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..lora import AdaptedAttention
from ..norms import FrozenNorm

Builder = Callable[..., Any]

BUILDERS: dict[Any, Builder] = {}  # by function, name of a tensor method, or type of a leaf module
AS_SEEN: set[Any] = set()  # those whose builders take views as they are; others get copies in the engine's order
OF_PARAMETERS: set[Any] = set()  # those that take parameters as data, and not as a layer's weights

# torch's layers that are understood through the functions they call
LAYERS: tuple[type[nn.Module], ...] = (
    nn.Linear, nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.ReLU, nn.GELU,
    nn.Sigmoid, nn.Tanh, nn.SiLU, nn.Dropout, nn.GroupNorm, nn.LayerNorm, nn.Embedding, nn.Flatten, nn.Unflatten,
    nn.Identity, nn.Sequential, nn.Softmax,
)  # fmt: skip

_LOGITS = "leave it out: the losses take logits"
_INDICES = "leave out return_indices"
HINTS: dict[Any, str] = {
    nn.InstanceNorm2d: "use nn.GroupNorm with as many groups as channels",
    nn.LogSoftmax: _LOGITS,
    F.log_softmax: _LOGITS,
    torch.log_softmax: _LOGITS,
    nn.Dropout2d: "use nn.Dropout",
    F.dropout2d: "use F.dropout",
    nn.GRU: "use nn.LSTM",
    nn.RNN: "use nn.LSTM",
    F.max_pool2d_with_indices: _INDICES,
    F.adaptive_max_pool2d_with_indices: _INDICES,
    F.pad: "use the convolution's own padding, with padding_mode='zeros'",
}


def builds(*targets: Any, seen: bool = False, parameters: bool = False) -> Callable[[Builder], Builder]:
    """Enters a builder into the table for these functions, methods (by name) or module types. `seen`: it takes views as
    they are; `parameters`: it takes parameters as data."""

    def enter(builder: Builder) -> Builder:
        BUILDERS.update(dict.fromkeys(targets, builder))
        AS_SEEN.update(targets if seen else ())
        OF_PARAMETERS.update(targets if parameters else ())
        return builder

    return enter


def abilities() -> str:
    """The layers that the engine has, for the end of a refusal."""
    leaves = (target for target in BUILDERS if isinstance(target, type))
    inside = {nn.Sequential, nn.Softmax, FrozenNorm, AdaptedAttention}  # what nobody would ask for by name
    names = {layer.__name__ for layer in {*LAYERS, *leaves} - inside}
    return f"FastFed's engine has: {', '.join(sorted(names))}, attention, residual sums and their functional forms"
