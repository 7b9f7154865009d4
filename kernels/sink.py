"""Where the gradients of parameters go in kernels that make them: shared by the device backends."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Sink(NamedTuple):
    """Where gradients of parameters go: into `grad` (clients, d), or, if that is None, into `x` by the client rule.

    Vectors are (clients, d), None where the rule has none; `anchor` may be shared by all clients (stride 0). `coef` is
    (clients, COEFFICIENTS) of ``passes.py``; `mu` and `maxima` (as bits) are SM3's (clients, mu_size), over `axes`.
    """

    size: int
    grad: Tensor | None = None
    x: Tensor | None = None
    m: Tensor | None = None
    v: Tensor | None = None
    nu: Tensor | None = None
    mu: Tensor | None = None
    maxima: Tensor | None = None
    axes: Tensor | None = None
    mu_size: int = 0
    coef: Tensor | None = None
    anchor: Tensor | None = None
    anchor_stride: int = 0
    correction: Tensor | None = None
    correction_stride: int = 0
    weight_decay: float = 0.0
    prox: float = 0.0
    beta1: float = 0.0
    gain1: float = 1.0
    beta2: float = 0.0
    gain2: float = 1.0
    eps: float = 0.0
    root_eps: float = 0.0
