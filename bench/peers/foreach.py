"""Rules that torch.optim lacks, as one writes them with torch's operations on lists of tensors: nothing is computed
that the rule does not need, and what can be done in place is."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..common.timing import Call

_LR = 1e-3
Tensors = list[Tensor]


def _norm(tensors: Tensors) -> Tensor:
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors)))


def yogi(x: Tensors, grad: Tensors) -> Call:
    """FedYogi: v -= (1 - beta2) m^2 sign(v - m^2)."""
    m, v = ([torch.full_like(each, start) for each in x] for start in (0.0, 1e-6))

    @torch.no_grad()
    def step() -> None:
        torch._foreach_lerp_(m, grad, 0.1)
        q = torch._foreach_mul(m, m)
        signs = torch._foreach_sub(v, q)
        torch._foreach_sign_(signs)
        torch._foreach_addcmul_(v, q, signs, -0.01)
        roots = torch._foreach_sqrt(v)
        torch._foreach_add_(roots, 1e-3)
        torch._foreach_addcdiv_(x, m, roots, -_LR)

    return step


def delta_sgd(x: Tensors, grad: Tensors, delta: float = 0.1) -> Call:
    """Delta-SGD: a norm of the gradients' change, a norm of the move, and the move."""
    before = [torch.zeros_like(each) for each in grad]
    lr, theta, move = _LR, 1.0, 0.0

    @torch.no_grad()
    def step() -> None:
        nonlocal lr, theta, move
        change = float(_norm(list(torch._foreach_sub(grad, before))))
        if move > 0:
            grown = math.sqrt(1 + delta * theta) * lr
            found = min(move / change, grown) if change > 0 else grown
            theta, lr = found / lr, found
        move = lr * float(_norm(grad))
        torch._foreach_copy_(before, grad)
        torch._foreach_add_(x, grad, alpha=-lr)

    return step


def sps(x: Tensors, grad: Tensors) -> Call:
    """Polyak's step: a norm, and the move."""

    @torch.no_grad()
    def step() -> None:
        lr = min(3.0 / (0.5 * float(_norm(grad)) ** 2 + 1e-8), _LR)
        torch._foreach_add_(x, grad, alpha=-lr)

    return step


def sm3(x: Tensors, grad: Tensors, form: str = "II", adam: bool = False) -> Call:
    """SM3, tensor by tensor: torch has no operation on lists that reduces along an axis."""
    mus = [[_along(each, axis, torch.zeros(size)) for axis, size in enumerate(each.shape)] for each in x]
    ms = [torch.zeros_like(each) for each in x]

    @torch.no_grad()
    def step() -> None:
        for p, g, mu, m in zip(x, grad, mus, ms, strict=True):
            squares = g * g
            if form == "I":
                for axis, bound in enumerate(mu):
                    bound.add_(_largest(squares, axis))
            nu = mu[0] if len(mu) == 1 else torch.minimum(mu[0], mu[1])
            for bound in mu[2:]:
                nu = torch.minimum(nu, bound)
            if form == "II":
                nu = torch.lerp(nu, squares, 0.001) if adam else nu + squares
                for axis in range(len(mu)):
                    mu[axis] = _largest(nu, axis)
            root = nu.sqrt().add_(1e-8)
            p.addcdiv_(m.lerp_(g, 0.1) if adam else g, root, value=-_LR)

    return step


def _along(tensor: Tensor, axis: int, vector: Tensor) -> Tensor:
    """A vector of one axis, shaped to broadcast beside the tensor."""
    return vector.view([-1 if other == axis else 1 for other in range(tensor.dim())])


def _largest(tensor: Tensor, axis: int) -> Tensor:
    others = [other for other in range(tensor.dim()) if other != axis]
    return tensor.amax(dim=others, keepdim=True) if others else tensor.clone()
