"""FATHOM's measure of how far local steps agree: the least cosine between a gradient and the sum of those before."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import kernels


class LeastCosine:
    """min over local steps K >= 1 of cos(sum_{k<K} g_k, g_K), for gradients (d,) or (clients, d); with `includes_step`
    the sum goes to k = K.

    `least` is float64, one per client: NaN before the second step. The cosine with a zero vector is 0.
    """

    def __init__(self, like: Tensor, includes_step: bool = False) -> None:
        self.includes_step = includes_step
        self.sum = torch.zeros_like(like)
        self.least = torch.full(like.shape[:-1], torch.nan, dtype=torch.float64, device=like.device)
        self.is_first = True

    def add(self, grad: Tensor, active: Tensor | None = None) -> None:
        """Counts the next gradient, of the `active` (clients,) bool only if given."""
        if self.includes_step:
            self._count(grad, active)
        if not self.is_first:
            cosine = _cosine(self.sum, grad)
            least = torch.where(self.least.isnan(), cosine, torch.minimum(self.least, cosine))
            self.least = least if active is None else torch.where(active, least, self.least)
        if not self.includes_step:
            self._count(grad, active)
        self.is_first = False

    def _count(self, grad: Tensor, active: Tensor | None) -> None:
        self.sum += grad if active is None else torch.where(active[:, None], grad, 0)


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    product = kernels.norms(a) * kernels.norms(b)
    dot = torch.linalg.vecdot(a.double(), b.double())
    return torch.where(product == 0, 0.0, dot / torch.where(product == 0, 1.0, product))
