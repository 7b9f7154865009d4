"""Batches found by the device's kernels, against those of each client alone. Needs a session like test_device.py's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fastfed.kernels import registry
from fastfed.train import RoundWork
from fastfed.train.batches import Batches, steps_taken

from .support import DEVICE, round_of

pytest.importorskip("triton", reason="Triton is not installed")
if not registry.interpreting() and DEVICE == "cpu":
    pytest.skip("device kernels run in Triton's interpreter here (TRITON_INTERPRET=1)", allow_module_level=True)

from fastfed.kernels.triton import races
from fastfed.kernels.triton.engine import orders
from fastfed.kernels.triton.launch import launches
from fastfed.train.device.orders import KernelBatches

pytestmark = pytest.mark.device

SIZES = (5, 0, 70, 12, 1, 33)


def work_of(**given: Any) -> RoundWork:
    rows = torch.randperm(sum(SIZES), generator=torch.Generator().manual_seed(0)) + 100
    fixed: dict[str, Any] = {"rows": rows, "seed": (7 << 40) + 3, "round": 2, "batch_size": 3}
    return round_of(torch.zeros(3), SIZES, **{**fixed, "steps": torch.tensor([3, 2, 40, 9, 6, 1]), **given})


def assert_batches_of_each(work: RoundWork, clients: torch.Tensor, memory: int = 1 << 20) -> None:
    """Every client's rows at every step are those it has alone; the padding of a batch is its first row."""
    taken = steps_taken(work)[clients].tolist()
    chunk = KernelBatches(work, clients, DEVICE, widths=[work.batch_size] * max(taken), memory=memory)
    alone = [Batches(work, position) for position in clients.tolist()]
    step = 0
    while step < max(taken):
        known, table = chunk.table(step)
        assert table.shape == (len(known), len(clients), work.batch_size)
        for at, rows in zip(known, table.tolist(), strict=True):
            for own, steps, found in zip(alone, taken, rows, strict=True):
                if at < steps:
                    wanted = own.at(at).tolist()
                    assert found == wanted + [wanted[0]] * (work.batch_size - len(wanted))
        assert int(table.min()) >= 0
        assert int(table.max()) <= int(work.rows.max())  # padding is read, too
        step = known.stop


@pytest.mark.parametrize("memory", [1, 400, 1 << 20])
@pytest.mark.parametrize("positions", [None, [8, 0, 130, 30, 2, 7]])
def test_kernels_find_the_batches_of_each_client(positions: list[int] | None, memory: int) -> None:
    work = work_of(seen=None if positions is None else torch.tensor(positions))
    with races.watched() as verdict:
        assert_batches_of_each(work, torch.tensor([2, 0, 1, 5, 4, 3]), memory)
    assert verdict.launches > 0
    assert verdict.races == []


@pytest.mark.parametrize(("batch_size", "seed", "round"), [(1, 0, 0), (20, 2**64 - 1, 2**31), (100, 5, 1)])
def test_batches_of_any_size_seed_and_round(batch_size: int, seed: int, round: int) -> None:
    assert_batches_of_each(work_of(batch_size=batch_size, seed=seed, round=round), torch.tensor([5, 3, 0]))


@pytest.mark.parametrize("width", [pytest.param(orders.LONGEST, marks=pytest.mark.exhaustive), orders.LONGEST + 1])
def test_long_orders_are_sorted_by_torch(width: int) -> None:
    work = round_of(torch.zeros(3), (width, 900), steps=torch.tensor([4, 3]), batch_size=300, seed=1)
    with launches() as seen:
        assert_batches_of_each(work, torch.arange(2))
    assert seen["_shuffle"] == (width == orders.LONGEST)


def test_of_equal_keys_the_first_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE != "cpu":
        pytest.skip("keys that are equal are made up in the interpreter only")
    monkeypatch.setattr(orders, "_sort_keys", lambda at, *words: at // 4 % 2)
    source = torch.arange(50, 61)
    shuffled = torch.zeros(12, dtype=torch.int64)
    table = torch.tensor([[3], [0], [11], [1], [0]])
    orders.shuffle(shuffled, source, table, 11, _words())
    wanted = torch.arange(11)[(torch.arange(11) // 4 % 2).sort(stable=True).indices] + 50
    assert shuffled.tolist() == [0, *wanted.tolist()]


def _words() -> Any:
    from fastfed.kernels import Stream

    return Stream(1, 2).words()
