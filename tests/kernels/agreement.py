"""How close is close: at most twice plain torch's own float32 error against float64."""

from __future__ import annotations

import torch
from torch import Tensor

from .cases import Snapshot

EPSILON = torch.finfo(torch.float32).eps


def assert_close(got: Tensor, plain: Tensor, exact: Tensor, what: str) -> None:
    """`got` errs from `exact` by at most twice what `plain` (torch, float32) does, plus one rounding of the largest
    value (where plain torch happens to round exactly right, twice its error would be nothing)."""
    assert got.shape == exact.shape, what
    if not got.dtype.is_floating_point:
        assert torch.equal(got, exact), what
        return
    got, plain, exact = got.double(), plain.double(), exact.double()
    allowed = 2 * (plain - exact).abs().max() + EPSILON * exact.abs().max()
    error = (got - exact).abs().max()
    assert error <= allowed, f"{what}: error {error:.3e} against float64, allowed {allowed:.3e}"


def assert_runs_agree(got: list[Snapshot], plain: list[Snapshot], exact: list[Snapshot]) -> None:
    """x and every state tensor, after every step."""
    assert len(got) == len(exact)
    for step, (g, p, e) in enumerate(zip(got, plain, exact, strict=True), start=1):
        assert g.keys() == e.keys()
        for name in e:
            assert_close(g[name], p[name], e[name], f"{name} after step {step}")
