"""Launches the server kernels; also what `aggregate_step` shares with them."""

from __future__ import annotations

import ctypes

from torch import Tensor

from ..table import ServerNumbers, ServerRule, ServerScalars
from .launch import address, is_wide, quad_blocks, run, suffix
from .weighted_sum import DTYPES


class ServerVectors(ctypes.Structure):
    """``ServerVectors`` of csrc/cuda/server.h."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("x", "m", "v", "vmax")]


class Numbers(ctypes.Structure):
    """``ServerNumbers<float>`` of csrc/rules.h."""

    _fields_ = [(name, ctypes.c_float) for name in ServerScalars._fields]


def variant(rule: ServerRule, m: Tensor | None, n: ServerNumbers) -> str:
    """The name of the rule's compiled variant. Without m, which would equal the delta, of_delta makes no difference."""
    if m is None and "m" in rule.moments:
        return f"{rule.formula}_without_m"
    return f"{rule.formula}_of_delta" if n.of_delta else rule.formula


def server_step(
    rule: ServerRule,
    x: Tensor,
    delta: Tensor,
    m: Tensor | None,
    v: Tensor | None,
    vmax: Tensor | None,
    n: ServerNumbers,
) -> None:
    d = x.numel()
    name = f"server_step_{variant(rule, m, n)}_{DTYPES[delta.dtype]}{suffix(is_wide(d, x, delta, m, v, vmax))}"
    to = ServerVectors(*(address(t) for t in (x, m, v, vmax)))
    run("server_step", name, x.device, quad_blocks(d), 1, to, delta, d, Numbers(*n.scalars))
