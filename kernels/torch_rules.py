"""The rules over torch's tensors: whole vectors in the reference backend, a number per client in all of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import bind


def _as_tensor(value: Any, like: Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else torch.full_like(like, value)


def _pairwise(function: Any) -> Any:
    """torch.minimum and torch.maximum take tensors only; the rules also hand them numbers."""

    def apply(a: Any, b: Any) -> Tensor:
        like = a if isinstance(a, Tensor) else b
        return function(_as_tensor(a, like), _as_tensor(b, like))

    return apply


TORCH_NAMES = {
    "sqrt": torch.sqrt,
    "maximum": _pairwise(torch.maximum),
    "minimum": _pairwise(torch.minimum),
    "where": torch.where,
    "sign": torch.sign,
}
rules = bind.load("rules", "torch", TORCH_NAMES)
