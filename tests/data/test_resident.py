"""Examples on a device. The device is the CPU here: a budget makes it copy what it would otherwise read in place."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor

from fastfed.data import Examples, Pixels, Sparse
from fastfed.data import resident as room
from fastfed.data.resident import Copied, InPlace, Resident, bytes_of, passing, resident

N = 23
ENOUGH = 1 << 20
EVERY = torch.arange(N)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=generator())


def whole(high: int, *shape: int) -> Tensor:
    return torch.randint(-100, high, shape, generator=generator())


def mostly_zeros(width: int) -> Tensor:
    """Rows of any length: the first has every entry, the last and one more have none."""
    dense = normal(N, width) * (torch.rand(N, width, generator=generator()) < 0.3)
    dense[0] = 1.5
    dense[7] = 0
    dense[-1] = 0
    return dense


def pixels(channels: int, **statistics: Any) -> Pixels:
    bytes = torch.arange(N * channels * 16 * 8, dtype=torch.int64) % 256  # all of them
    return Pixels(bytes.to(torch.uint8).view(N, channels, 16, 8), **statistics)


STORES: dict[str, Examples] = {
    "floats to labels": Examples(normal(N, 5), whole(10, N)),
    "images to images": Examples(normal(N, 2, 4, 3), normal(N, 7)),
    "bytes": Examples(pixels(1), whole(10, N)),
    "normalised bytes": Examples(pixels(3, mean=(0.49, 0.48, 0.44), std=(0.2470, 0.2435, 0.2616)), whole(10, N)),
    "tokens to sequences": Examples(whole(90, N, 6), whole(90, N, 6)),
    "large tokens": Examples(whole(90, N, 6) + 2**40, whole(90, N)),
    "words to tags": Examples(Sparse.of(mostly_zeros(1100)), Sparse.of(mostly_zeros(3))),
    "empty words": Examples(Sparse.of(torch.zeros(N, 4)), normal(N)),
}
every_store = pytest.mark.parametrize("examples", STORES.values(), ids=STORES)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def assert_same(got: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> None:
    for one, other in zip(got, wanted, strict=True):
        assert one.dtype is other.dtype
        assert one.shape == other.shape
        assert one.is_contiguous()
        assert torch.equal(one, other)


@every_store
@every_dtype
@pytest.mark.parametrize("budget", [None, ENOUGH, 0], ids=["in place", "copied", "streamed"])
def test_a_device_gathers_what_the_store_batches(examples: Examples, dtype: torch.dtype, budget: int | None) -> None:
    store = Resident(examples, "cpu", budget)
    assert store.streamed == (budget == 0)
    rows = torch.tensor([[4, 0, 4, 22], [21, 7, 1, 2], [0, 0, 22, 7]])
    gatherer, numbers = store.portion(rows.flatten())
    inputs, targets = examples.batch(rows.flatten(), dtype)
    assert_same(gatherer.gather(numbers, dtype), (inputs, targets))
    assert_same(gatherer.gather(numbers.view(3, 4), dtype), (inputs.unflatten(0, (3, 4)), targets.unflatten(0, (3, 4))))
    assert_same(gatherer.gather(numbers[:0], dtype), examples.batch(rows.flatten()[:0], dtype))


@every_store
def test_copies_are_made_in_pieces(examples: Examples, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "PIECE", 100)
    monkeypatch.setattr(room, "STRIP", 7)
    some = torch.tensor([3, 22, 0, 7, 7])
    for copied, numbers in (
        Resident(examples, "cpu", ENOUGH).portion(some),
        Resident(examples, "cpu", 0).portion(some),
    ):
        assert isinstance(copied, Copied)
        assert_same(copied.gather(numbers), examples.batch(some))


def test_the_cpu_reads_in_place() -> None:
    examples = STORES["normalised bytes"]
    store = Resident(examples, "cpu")
    rows = torch.tensor([5, 1])
    gatherer, numbers = store.portion(rows)
    assert isinstance(gatherer, InPlace)
    assert numbers is rows
    assert "where they are" in store.why
    assert isinstance(passing(examples, "cpu").portion(rows)[0], InPlace)


def test_the_size_decides() -> None:
    examples = STORES["floats to labels"]
    size = bytes_of(examples)
    assert size == N * 5 * 4 + N * 4  # labels fit into 32 bits
    fits, does_not = Resident(examples, "cpu", size), Resident(examples, "cpu", size - 1)
    assert not fits.streamed
    assert fits.why == "examples (552 bytes) were copied to cpu once"
    assert does_not.streamed
    assert does_not.why == (
        "examples are copied to cpu when clients need them, because all of them (552 bytes) would not fit into the 551 "
        "bytes that they may take"
    )


def test_half_of_what_is_free_on_the_card_is_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    examples = STORES["floats to labels"]
    for free, streamed in ((2 * 552, False), (2 * 552 - 1, True)):
        monkeypatch.setattr(room, "free_memory", lambda device, free=free: free)
        assert Resident(examples, "meta").streamed is streamed


def test_what_torch_keeps_for_itself_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"mem_get_info": (1000, 5000), "memory_reserved": 300, "memory_allocated": 100}
    for name, value in given.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    assert room.free_memory(torch.device("cuda", 0)) == 1200
    assert room.free_memory(torch.device("cpu")) is None


def test_sizes_of_every_form() -> None:
    sparse = Sparse.of(mostly_zeros(3))
    entries = sparse.values.numel()
    assert bytes_of(Examples(sparse, whole(2, N) + 2**40)) == 4 * (N + 1) + 8 * entries + 8 * N
    assert bytes_of(Examples(pixels(3), normal(N, 2))) == 3 * 16 * 8 * N + 8 * N


def test_a_portion_of_a_streamed_store_has_every_row_once() -> None:
    examples = STORES["floats to labels"]
    gatherer, numbers = Resident(examples, "cpu", 0).portion(torch.tensor([9, 2, 9, 9, 4]))
    assert numbers.tolist() == [2, 0, 2, 2, 1]
    with pytest.raises(IndexError):
        gatherer.gather(torch.tensor([3]))


def test_one_copy_for_all_who_ask() -> None:
    examples = Examples(normal(N, 5), whole(10, N))
    one = resident(examples, "cpu", ENOUGH)
    assert resident(examples, torch.device("cpu"), ENOUGH) is one
    assert resident(examples, "cpu", 0) is not one
    assert resident(Examples(examples.inputs, examples.targets), "cpu", ENOUGH) is not one
    gc.collect()  # what other tests have left
    kept = len(room._shared)
    del one
    gc.collect()
    assert len(room._shared) == kept - 1


@pytest.mark.parametrize("budget", [-1, 1.5, True, "1 GB"])
def test_a_bad_budget_is_refused(budget: Any) -> None:
    with pytest.raises(ValueError, match=r"^budget: must be a whole number of bytes >= 0, or None, got"):
        Resident(STORES["bytes"], "cpu", budget)
