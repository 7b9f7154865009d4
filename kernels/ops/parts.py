"""`aggregate_step` on a model in parts: lists of arrays as other frameworks hold models, one array for each layer.

Nothing is packed or copied: the compiled backend reads every client's arrays where they are. Other backends go layer by
layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import check, extension, hosts, registry
from ..table import ServerNumbers, ServerRule

Parts = list[Tensor]


def are_parts(x: object) -> bool:
    return isinstance(x, (list, tuple))


def written(name: str, given: Any, like: Parts | None = None) -> Parts:
    """The arrays of a list that an op writes, as tensors."""
    return [hosts.written(f"{name}[{i}]", one) for i, one in enumerate(_listed(name, given, like))]


def read(name: str, given: Any, like: Parts) -> Parts:
    """The arrays of a list that an op reads, of the shapes and the dtype of others."""
    found = [hosts.read(f"{name}[{i}]", one) for i, one in enumerate(_listed(name, given, like))]
    for i, (one, wanted) in enumerate(zip(found, like, strict=True)):
        check.like(f"{name}[{i}]", one, wanted)
    return found


def _listed(name: str, given: Any, like: Sequence[Any] | None) -> Sequence[Any]:
    if not are_parts(given):
        raise TypeError(f"{name}: must be a list of arrays like x, got {type(given).__name__}")
    if not given or (like is not None and len(given) != len(like)):
        wanted = "at least one array" if like is None else f"{len(like)} arrays like x"
        raise ValueError(f"{name}: must hold {wanted}, got {len(given)}")
    return given


def check_model(x: Parts) -> None:
    """Contiguous floats of one dtype on one device, in any shapes."""
    for i, part in enumerate(x):
        name = f"x[{i}]"
        check.is_tensor(name, part)
        if part.dtype not in check.FLOATS or part.dtype is not x[0].dtype:
            wanted = "float32 or float64" if part.dtype not in check.FLOATS else f"{x[0].dtype} like x[0]"
            raise TypeError(f"{name}: must be {wanted}, got {part.dtype}")
        if part.device != x[0].device:
            raise ValueError(f"{name}: must be on {x[0].device} like x[0], got {part.device}")
        check.plain(name, part)


def aggregate(
    rule: ServerRule,
    x: Parts,
    clients: list[Parts],
    weights: Tensor,
    moments: dict[str, Parts],
    numbers: ServerNumbers,
    *,
    subtract: bool,
    backend: str | None,
) -> None:
    """The step, after all checks."""
    ops = registry.pick(backend, x[0])
    parts = [tuple(moments[name][i] if name in moments else None for name in ("m", "v", "vmax")) for i in range(len(x))]
    if ops.name == "cpp":
        vectors = [(part, *held) for part, held in zip(x, parts, strict=True)]
        formula = extension.numbers("server_formulas")[rule.formula]
        extension.load().aggregate_parts(formula, vectors, clients, weights, subtract, numbers)
        return
    for i, (part, held) in enumerate(zip(x, parts, strict=True)):
        if part.numel() == 0:
            continue
        flat = part.view(-1)
        rows = torch.stack([client[i].reshape(-1) for client in clients])
        deltas = rows - flat if subtract else rows
        m, v, vmax = (moment if moment is None else moment.view(-1) for moment in held)
        ops.aggregate_step(rule, flat, deltas, weights, m, v, vmax, numbers)
