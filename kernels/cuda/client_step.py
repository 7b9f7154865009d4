"""The passes of a client step as kernel launches; their order and the numbers between them are in ``passes.py``."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import passes
from ..client_call import ClientCall
from . import client_arguments
from .launch import quad_blocks, run, suffix, sum_blocks
from .norms import empty_partials, fold
from .sm3_step import CoverPasses


def client_step(call: ClientCall) -> None:
    passes.client_step(CudaPasses(), call)


class CudaPasses(CoverPasses):
    """`passes.Passes` in CUDA; those with a cover are in ``sm3_step.py``."""

    def gradient_squares(self, call: ClientCall, coef: Tensor) -> Tensor:
        return _squares("gradient_squares", call, coef, writes=False)

    def change_squares(self, call: ClientCall, coef: Tensor) -> Tensor:
        return _squares("change_squares", call, coef, writes=False)

    def direction_squares(self, call: ClientCall, coef: Tensor) -> Tensor:
        return _squares(f"direction_squares_{call.rule.formula}", call, coef, writes=False)

    def update(self, call: ClientCall, coef: Tensor) -> Tensor | None:
        if call.rule.step_size == "delta_sgd":
            return _squares("update_delta_sgd", call, coef, writes=True)
        rows, wide = client_arguments.vectors(call, coef, writes=True)
        kernel = f"update_{call.rule.formula}{suffix(wide)}"
        blocks = quad_blocks(rows.d)
        run("client_step", kernel, call.x.device, blocks, call.clients, rows, client_arguments.numbers(call))
        return None


def _squares(kernel: str, call: ClientCall, coef: Tensor, *, writes: bool) -> Tensor:
    """Launches a pass with a sum of squares per client: (clients,) float64."""
    rows, wide = client_arguments.vectors(call, coef, writes=writes)
    device, blocks = call.x.device, sum_blocks(rows.d)
    partials = empty_partials(call.clients, blocks, device)
    out = torch.empty(call.clients, dtype=torch.float64, device=device)
    name, n = f"{kernel}{suffix(wide)}", client_arguments.numbers(call)
    run("client_step", name, device, blocks, call.clients, rows, n, partials)
    fold(partials, out)
    return out
