"""Every executor agrees with `eager`, on the whole table of cases."""

from __future__ import annotations

import pytest
import torch

from .agreement import CASES, Case, assert_agrees, executors, kept, reference, run


@executors("batched", "native")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_agrees_with_eager(case: Case, executor: str) -> None:
    assert_agrees(case, run(case, executor))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_table_trains(case: Case) -> None:
    """The oracle itself: everybody with steps moves, float32 is close to float64, and nothing is refused."""
    plain, exact = reference(case, torch.float32), reference(case, torch.float64)
    assert not bool(exact.refused.any())
    moved = kept(plain).norm(dim=1) > 0
    assert torch.equal(moved, exact.scalars["steps"] > 0)
    assert 1e-3 < float(exact.delta.norm()) < 10
    assert float((plain.delta - exact.delta).norm()) < 1e-4 * float(exact.delta.norm())
