"""Every executor agrees with `eager`, on the whole table of cases."""

from __future__ import annotations

import pytest
import torch

from .agreement import (
    BATCH_NORM_CASES,
    CASES,
    TRANSFORMER_CASES,
    Case,
    assert_agrees,
    assert_close,
    executors,
    kept,
    reference,
    run,
)

ALL = [*CASES, *BATCH_NORM_CASES, *TRANSFORMER_CASES]


# torch.func.vmap takes its attention client by client, and says so.
slow_vmap = pytest.mark.filterwarnings("ignore:There is a performance drop because we have not yet implemented")


@slow_vmap
@executors("batched", "native")
@pytest.mark.parametrize("case", ALL, ids=lambda case: case.id)
def test_agrees_with_eager(case: Case, executor: str) -> None:
    assert_agrees(case, run(case, executor))


PLAIN = [case for case in ALL if case.rules == ("sgd",) and "corrections" not in case.asks]


@slow_vmap
@executors("batched", "native")
@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case.id)
def test_agrees_with_eager_where_gradients_need_not_be_kept(case: Case, executor: str) -> None:
    """Plain SGD of which only the sum of deltas is wanted: the native engine moves weights as it finds gradients."""
    got, plain, exact = (
        run(case, name, dtype, keep_deltas=False, measure_cosine=False)
        for name, dtype in ((executor, torch.float32), ("eager", torch.float32), ("eager", torch.float64))
    )
    assert_close("delta", got.delta, plain.delta, exact.delta)
    for found in ("statistics", "own"):
        if getattr(exact, found) is not None:
            assert_close(found, *(getattr(outcome, found) for outcome in (got, plain, exact)))
    for name in ("first_loss", "last_loss", "mean_loss", "delta_norm"):
        assert_close(name, *(outcome.scalars[name].nan_to_num() for outcome in (got, plain, exact)))


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.id)
def test_the_table_trains(case: Case) -> None:
    """The oracle itself: everybody with steps moves, float32 is close to float64, and nothing is refused."""
    plain, exact = reference(case, torch.float32), reference(case, torch.float64)
    assert not bool(exact.refused.any())
    moved = kept(plain).norm(dim=1) > 0
    assert torch.equal(moved, exact.scalars["steps"] > 0)
    assert 1e-3 < float(exact.delta.norm()) < 10
    assert float((plain.delta - exact.delta).norm()) < 1e-4 * float(exact.delta.norm())
