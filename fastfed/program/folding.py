"""What a forward pass computes from constants alone, frozen parameters and buffers: done once, while it is read."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from .draft import Draft, Symbol, Weight

# Functions and tensor methods whose results depend on what they are given and on nothing else.
_PURE: frozenset[Any] = frozenset({
    operator.getitem, operator.add, operator.sub, operator.mul, operator.truediv, operator.neg, operator.invert,
    operator.and_, operator.or_, operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge,
    operator.matmul, torch.cat, torch.stack, torch.triu, torch.tril, torch.transpose, torch.unsqueeze, torch.squeeze,
    torch.logical_not, torch.masked_fill, torch.matmul, F.embedding, F.linear, torch.reshape, torch.permute,
    torch.narrow, torch.swapaxes, torch.flatten,
    "view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "transpose", "permute", "expand", "contiguous",
    "float", "bool", "long", "detach", "masked_fill", "logical_not", "triu", "tril", "t", "chunk", "split", "unbind",
    "narrow", "swapaxes", "select", "repeat", "clone",
})  # fmt: skip


def is_foldable(target: Any, given: Any) -> bool:
    """Whether `target` is given constants and no other tensor, and knows nothing else."""
    symbols: list[Symbol] = []
    fx.node.map_aggregate(given, lambda leaf: symbols.append(leaf) if isinstance(leaf, Symbol) else None)
    constant = all(isinstance(symbol, Weight) and symbol.constant is not None for symbol in symbols)
    return bool(symbols) and constant and target in _PURE


def folded(draft: Draft, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What `target` makes of constants: constants."""
    function = getattr(Tensor, target) if isinstance(target, str) else target
    held = fx.node.map_aggregate((args, dict(kwargs)), lambda leaf: leaf.constant if isinstance(leaf, Weight) else leaf)
    with draft.fitting(), torch.no_grad():
        found = function(*held[0], **held[1])
    several = isinstance(found, tuple | list)
    results = tuple(
        Weight(f"{draft.place.name}[{number}] of constants", tuple(one.shape), one)
        for number, one in enumerate(found if several else (found,))
    )
    return results if several else results[0]
