"""The example store: batches of every kind of rows, and bad input refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fastfed.data import Augment, Examples, Pixels, Sparse, store

DTYPES = (torch.float32, torch.float64)
ROWS = torch.tensor([4, 0, 4, 2])


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def mostly_zeros() -> Tensor:
    dense = numbers(5, 7)
    dense[dense.abs() < 0.8] = 0
    dense[2] = 0  # an empty row
    return dense


def test_sparse_rows_are_the_dense_ones() -> None:
    dense = mostly_zeros()
    sparse = Sparse.of(dense)
    assert len(sparse) == 5
    assert sparse.values.numel() == int((dense != 0).sum())
    for dtype in DTYPES:
        rows = sparse.dense(ROWS, dtype)
        assert rows.dtype is dtype
        assert torch.equal(rows, dense[ROWS].to(dtype))
    assert sparse.dense(torch.tensor([2])).shape == (1, 7)


@pytest.mark.parametrize(("mean", "std"), [((0.0,), (1.0,)), ((0.5,), (0.25,)), ((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))])
def test_pixels_are_normalised_per_channel(mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    images = torch.randint(256, (5, 3, 2, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    pixels = Pixels(images, mean, std)
    assert len(pixels) == 5
    for dtype in DTYPES:
        got = pixels.dense(ROWS, dtype)
        assert got.dtype is dtype
        for channel in range(3):
            m, s = mean[channel % len(mean)], std[channel % len(std)]
            wanted = (images[ROWS][:, channel].double() / 255 - m) / s
            torch.testing.assert_close(got[:, channel].double(), wanted, rtol=1e-5, atol=1e-6)
    exact = pixels.dense(ROWS, torch.float64) * torch.tensor(std, dtype=torch.float64).view(1, -1, 1, 1)
    shift = torch.tensor(mean, dtype=torch.float64).view(1, -1, 1, 1)
    torch.testing.assert_close((exact + shift) * 255, images[ROWS].double(), rtol=1e-13, atol=1e-11)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_batch_has_floats_in_the_dtype_asked_for(dtype: torch.dtype) -> None:
    vectors, tokens = numbers(5, 3), torch.arange(10).view(5, 2)
    inputs, targets = Examples(vectors, tokens).batch(ROWS, dtype)
    assert inputs.dtype is dtype
    assert torch.equal(inputs, vectors[ROWS].to(dtype))
    assert targets.dtype is torch.int64
    assert torch.equal(targets, tokens[ROWS])
    inputs, targets = Examples(tokens, Sparse.of(mostly_zeros())).batch(ROWS, dtype)
    assert torch.equal(inputs, tokens[ROWS])
    assert torch.equal(targets, mostly_zeros()[ROWS].to(dtype))


def augmented(height: int, width: int, std: tuple[float, ...] = (1.0,), **asked: Any) -> Pixels:
    return Pixels(torch.zeros(1, dtype=torch.uint8).expand(1, 1, height, width), std=std, augment=Augment(**asked))


def sparse_of(**changed: Any) -> Sparse:
    good: dict[str, Any] = {
        "starts": torch.tensor([0, 2, 3]),
        "columns": torch.tensor([0, 4, 1], dtype=torch.int32),
        "values": torch.ones(3),
        "width": 5,
    }
    return Sparse(**{**good, **changed})


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("starts", lambda: sparse_of(starts=torch.tensor([0, 2, 4]))),
        ("starts", lambda: sparse_of(starts=torch.tensor([0, 3, 2, 3]))),
        ("starts", lambda: sparse_of(starts=torch.tensor([0.0, 2.0, 3.0]))),
        ("columns", lambda: sparse_of(columns=torch.tensor([0, 5, 1], dtype=torch.int32))),
        ("columns", lambda: sparse_of(columns=torch.tensor([0, 1], dtype=torch.int32))),
        ("columns", lambda: sparse_of(columns=torch.tensor([0, 4, 1]))),
        ("columns", lambda: sparse_of(columns=torch.tensor([4, 4, 1], dtype=torch.int32))),
        ("values", lambda: sparse_of(values=torch.ones(3).double())),
        ("bytes", lambda: Pixels(torch.zeros(2, 1, 3, 3))),
        ("bytes", lambda: Pixels(torch.zeros(2, 9, dtype=torch.uint8))),
        ("mean", lambda: Pixels(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), mean=(0.1, 0.2))),
        ("std", lambda: Pixels(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), std=(0.0,))),
        ("crop", lambda: Augment(crop=0)),
        ("crop", lambda: Augment(crop=True)),
        ("flip", lambda: Augment(flip=1)),  # type: ignore[arg-type]
        ("standardise", lambda: Augment(standardise="yes")),  # type: ignore[arg-type]
        ("crop", lambda: augmented(5, 4, crop=5)),
        ("crop", lambda: augmented(4, 5, crop=5)),
        ("standardise", lambda: augmented(4, 4, std=(0.5,), standardise=True)),
        ("standardise", lambda: augmented(3000, 3000, standardise=True)),
        ("augment", lambda: Pixels(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), augment={"crop": 3})),  # type: ignore[arg-type]
        ("targets", lambda: Examples(numbers(3, 2), torch.zeros(4).long())),
        ("targets", lambda: Examples(numbers(3, 2), torch.zeros(3).int())),
        ("inputs", lambda: Examples(numbers(3, 2).double(), torch.zeros(3).long())),
        ("inputs", lambda: Examples(numbers(3, 2).numpy(), torch.zeros(3).long())),  # type: ignore[arg-type]
        ("targets", lambda: Examples(numbers(3, 2), torch.zeros(3).long().numpy())),  # type: ignore[arg-type]
        ("targets", lambda: Examples(numbers(3, 2), Pixels(torch.zeros(3, 1, 4, 4, dtype=torch.uint8)))),  # type: ignore[arg-type]
    ],
)
def test_bad_input_is_named(name: str, make: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{name}: "):
        make()


@pytest.mark.parametrize("piece", [1, 3, 1 << 20])
def test_a_column_twice_in_any_row_is_found(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_PIECE", piece)
    starts = torch.tensor([0, 0, 3, 3, 5, 9, 9])
    for columns, row, column in (
        ([2, 0, 1, 1, 2, 3, 1, 4, 0], None, None),  # of other rows, columns are others
        ([2, 0, 2, 1, 2, 3, 1, 4, 0], 1, 2),
        ([2, 0, 1, 1, 1, 3, 1, 4, 0], 3, 1),
        ([2, 0, 1, 1, 2, 3, 1, 4, 3], 4, 3),
        ([0, 1, 2, 0, 1, 0, 1, 4, 4], 4, 4),
    ):
        given = {"starts": starts, "columns": torch.tensor(columns, dtype=torch.int32), "values": torch.ones(9)}
        if row is None:
            assert len(sparse_of(**given)) == 6
            continue
        with pytest.raises(ValueError, match=f"^columns: row {row} has column {column} more than once; add up"):
            sparse_of(**given)


def test_arrays_of_numpy_are_sent_where_they_are_taken() -> None:
    sentence = "inputs: must be a float32 or int64 tensor, or Sparse or Pixels, got numpy.ndarray; ff.data.as_dataset"
    with pytest.raises(TypeError, match=f"^{sentence}"):
        Examples(numbers(3, 2).numpy(), torch.zeros(3).long())  # type: ignore[arg-type]
