"""A rank has no room for the vectors of clients that others train."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fastfed.kernels import registry
from fastfed.sharing import _scattered
from fastfed.train.peers import untouched_zeros
from fastfed.train.sharded import _nothing
from fastfed.training import work_of

from . import setups

pytestmark = [
    pytest.mark.skipif(registry.interpreting(), reason="belongs to the session of the CPU's executors"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="how much memory is in use is read from /proc"),
]
MEGABYTE = 1 << 20


def resident() -> int:
    """Bytes of memory that this process really has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_the_vectors_of_clients_that_others_train_take_no_room() -> None:
    n, d, here = 100, MEGABYTE, torch.tensor([3, 40, 99])
    values = torch.randn(3, d)
    before = resident()
    whole = _scattered(values, here, n, 0.0)
    assert resident() - before < 40 * MEGABYTE  # three rows of 4 MiB, of 400
    assert torch.equal(whole[here], values)
    assert not whole[[0, 4, 98]].any()


def test_a_rank_that_trains_nobody_has_sums_of_nothing_and_no_room_for_deltas() -> None:
    sim = setups.begun("many-median")
    plan = sim.planner.plan(0, sim.tuner.tuning)
    assert plan is not None
    work = replace(work_of(sim, plan), start=torch.zeros(MEGABYTE))
    assert work.keep_deltas
    before = resident()
    found = _nothing(work, 0)
    assert resident() - before < 40 * MEGABYTE  # of 480
    assert found.deltas is not None
    assert found.deltas.shape == (120, MEGABYTE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64])
def test_zeros_are_of_the_kind_that_is_asked_for(dtype: torch.dtype) -> None:
    zeros = untouched_zeros(torch.ones(2, dtype=dtype), 3, 5)
    assert torch.equal(zeros, torch.zeros(3, 5, dtype=dtype))
    zeros[1] = 1
    assert int(zeros.sum()) == 5
