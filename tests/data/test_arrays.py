"""Arrays and torch data sets become stores: the same numbers, the right types, and bad input refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, TensorDataset

from fastfed.data import Augment, Pixels, Sparse
from fastfed.data.arrays import as_dataset, from_arrays, from_torch

X = torch.arange(12, dtype=torch.float32).view(6, 2) / 8
Y = torch.tensor([0, 1, 2, 0, 1, 2])
CLIENT = [7, 3, 7, 10, 3, 7]
IMAGES = (torch.arange(6 * 3 * 5 * 4) * 7 % 256).to(torch.uint8).view(6, 3, 5, 4)


def matrix() -> Any:
    dense = X.numpy().copy()
    dense[2] = 0
    return scipy.sparse.csr_array(dense)


def test_rows_go_to_their_clients() -> None:
    fed = from_arrays(X, Y, client=CLIENT, test=(X[:2], Y[:2]))
    assert fed.client_names == ("3", "7", "10")  # by number, not by text
    assert [fed.rows_of(client).tolist() for client in range(3)] == [[1, 4], [0, 2, 5], [3]]
    assert fed.name == "arrays"
    assert torch.equal(fed.examples.batch(fed.rows_of(0))[0], X[[1, 4]])
    assert fed.test is not None
    assert len(fed.test) == 2
    assert fed.recipe is None  # arrays cannot be made again from JSON


@pytest.mark.parametrize(
    "client",
    [
        ["b", "a", "b", "c", "a", "b"],
        np.array(["b", "a", "b", "c", "a", "b"]),
        np.array(["b", "a", "b", "c", "a", "b"], dtype=object),
    ],
    ids=["list", "numpy", "objects"],
)
def test_clients_may_have_names(client: Any) -> None:
    fed = from_arrays(X, Y, client=client)
    assert fed.client_names == ("a", "b", "c")
    assert fed.sizes.tolist() == [2, 3, 1]


@pytest.mark.parametrize("client", [torch.tensor([2, 0, 1, 0, 1, 2]), np.array([2, 0, 1, 0, 1, 2], np.uint8)])
def test_ids_from_0_keep_their_numbers(client: Any) -> None:
    data = as_dataset(X, Y, client=client)
    assert data.client is not None
    assert data.client.tolist() == [2, 0, 1, 0, 1, 2]


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        *((np.float16, torch.float32), (np.float32, torch.float32), (np.float64, torch.float32)),
        *((np.longdouble, torch.float32), (">f8", torch.float32), (np.int8, torch.int64), (np.int16, torch.int64)),
        *((np.uint16, torch.int64), (np.uint32, torch.int64), (np.uint64, torch.int64), (">i4", torch.int64)),
    ],
)
def test_numpy_numbers_of_any_width(given: Any, dtype: torch.dtype) -> None:
    numbers = (np.arange(12) * 3).reshape(6, 2).astype(given)
    data = as_dataset(numbers, numbers)
    for found in (data.train.inputs, data.train.targets):
        assert isinstance(found, Tensor)
        assert found.dtype is dtype
        assert found.tolist() == numbers.astype(np.float64).tolist()


@pytest.mark.parametrize("given", [torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.int64])
def test_torch_numbers_of_any_width(given: torch.dtype) -> None:
    data = as_dataset(Y.to(given), Y.to(given))
    wanted = torch.float32 if given.is_floating_point else torch.int64
    for found in (data.train.inputs, data.train.targets):
        assert isinstance(found, Tensor)
        assert found.dtype is wanted
        assert found.tolist() == Y.tolist()


def test_bytes_are_labels_as_targets_and_images_as_inputs() -> None:
    data = as_dataset(IMAGES.numpy(), Y.numpy().astype(np.uint8), mean=(0.1, 0.2, 0.3), std=0.5)
    assert data.labels.dtype is torch.int64
    assert data.labels.tolist() == Y.tolist()
    assert isinstance(data.train.inputs, Pixels)
    assert torch.equal(data.train.inputs.bytes, IMAGES)
    assert (data.train.inputs.mean, data.train.inputs.std) == ((0.1, 0.2, 0.3), (0.5,))
    grey = as_dataset(IMAGES[:, 0], Y).train.inputs
    assert isinstance(grey, Pixels)
    assert torch.equal(grey.bytes, IMAGES[:, :1])
    assert (grey.mean, grey.std) == ((0.0,), (1.0,))


def test_test_images_are_normalised_alike() -> None:
    data = as_dataset(IMAGES, Y, test=(IMAGES[:2], Y[:2]), mean=0.5, std=0.25)
    assert data.test is not None
    assert isinstance(data.test.inputs, Pixels)
    assert (data.test.inputs.mean, data.test.inputs.std) == ((0.5,), (0.25,))


def test_images_are_augmented_alike() -> None:
    augment = Augment(crop=2, flip=True, standardise=True)
    data = as_dataset(IMAGES, Y, test=(IMAGES[:2], Y[:2]), augment=augment)
    fed = from_arrays(IMAGES, Y, client=torch.arange(len(Y)), augment=augment)
    for examples in (data.train, data.test, fed.examples):
        assert examples is not None
        assert examples.augmented is not None
        assert examples.augmented.augment == augment
    assert fed.fingerprint() != from_arrays(IMAGES, Y, client=torch.arange(len(Y))).fingerprint()


def test_nothing_is_copied_that_need_not_be(tmp_path: Path) -> None:
    numbers = X.numpy().copy()
    inputs = as_dataset(numbers, Y).train.inputs
    numbers[0, 0] = 5
    assert isinstance(inputs, Tensor)
    assert float(inputs[0, 0]) == 5
    np.save(tmp_path / "images.npy", IMAGES.numpy())
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")  # read-only, of which torch would warn
    stored = as_dataset(mapped, Y).train.inputs
    assert isinstance(stored, Pixels)
    assert stored.bytes.data_ptr() == mapped.ctypes.data


def test_awkward_memory_is_put_in_order() -> None:
    turned = as_dataset(X.numpy()[::-1], Y.flip(0)).train
    assert isinstance(turned.inputs, Tensor)
    assert torch.equal(turned.inputs, X.flip(0))
    grown = as_dataset((X * 1.0).requires_grad_().t().t(), Y).train.inputs
    assert isinstance(grown, Tensor)
    assert not grown.requires_grad


def test_csr_matrices_are_sparse_rows() -> None:
    data = as_dataset(matrix(), matrix())
    for found in (data.train.inputs, data.train.targets):
        assert isinstance(found, Sparse)
        assert found.values.numel() == matrix().nnz
        assert torch.equal(found.dense(torch.arange(6)), torch.from_numpy(matrix().toarray()))
    own = SimpleNamespace(indptr=[0, 1, 1], indices=[2], data=[5], shape=(2, 3))  # any library's
    inputs = as_dataset(own, Y[:2]).train.inputs
    assert isinstance(inputs, Sparse)
    assert inputs.dense(torch.arange(2)).tolist() == [[0, 0, 5], [0, 0, 0]]


def test_unsorted_columns_are_fine_and_doubled_ones_are_not() -> None:
    def csr(columns: list[int]) -> SimpleNamespace:
        return SimpleNamespace(indptr=[0, 3, 4], indices=[*columns, 0], data=[1, 2, 3, 4], shape=(2, 3))

    inputs = as_dataset(csr([2, 0, 1]), Y[:2]).train.inputs
    assert isinstance(inputs, Sparse)
    assert inputs.dense(torch.arange(2)).tolist() == [[2, 3, 1], [4, 0, 0]]
    with pytest.raises(ValueError, match=r"^x: is no valid CSR matrix: columns: row 0 has column 2 more than once"):
        as_dataset(csr([2, 0, 2]), Y[:2])
    with pytest.raises(ValueError, match=r"^x: is no valid CSR matrix: columns: must lie in \[0, 3\)"):
        as_dataset(csr([2, 0, 2**32]), Y[:2])


def test_numbers_beyond_float32_are_refused() -> None:
    wide = torch.ones(6, 4, dtype=torch.float64)
    wide[2, 1] = -1e39
    for x, y, name in ((wide, Y, "x"), (X, wide, "y"), (scipy.sparse.csr_array(wide.numpy()), Y, "x")):
        with pytest.raises(ValueError, match=rf"^{name}: must fit into float32, its largest entry is 1e\+39"):
            as_dataset(x, y)
    wide[2, 1] = torch.inf  # was none before, either
    assert as_dataset(wide, Y).train.inputs[2, 1] == torch.inf  # type: ignore[index]


BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "no client": ("client: must hold one id per row; for rows", {"client": None}),
    "fewer clients": ("client: must hold one id per row", {"client": [0, 1]}),
    "table of clients": ("client: must hold one id per row", {"client": np.zeros((6, 1), int)}),
    "floats for clients": ("client: must hold integers or strings", {"client": [0.5] * 6}),
    "truths for clients": ("client: must hold integers or strings", {"client": [True] * 6}),
    "objects for clients": ("client: must hold integers or strings", {"client": [None] * 6}),
    "fewer targets": ("y: has 5 rows, x has 6", {"y": Y[:5]}),
    "no rows": ("x: has no rows", {"x": X[:0], "y": Y[:0], "client": np.zeros(0, int)}),
    "a list": ("x: must be a numpy array, .* got list", {"x": [[1.0]] * 6}),
    "truths": ("y: must hold integers or floating", {"y": Y == 0}),
    "numpy truths": ("y: must hold integers or floating", {"y": (Y == 0).numpy()}),
    "texts": ("x: must hold integers or floating", {"x": np.array(["a"] * 6)}),
    "objects": ("x: must hold integers or floating", {"x": np.array([None] * 6)}),
    "complex": ("x: must hold integers or floating", {"x": X.to(torch.complex64)}),
    "a number": ("y: must have one row per example", {"y": torch.tensor(1)}),
    "large numbers": ("y: must fit into int64", {"y": np.full(6, 2**63, np.uint64)}),
    "torch sparse": ("x: must be a dense tensor or", {"x": X.to_sparse()}),
    "flat bytes": ("x: uint8 inputs are images and must be", {"x": IMAGES.view(6, -1)}),
    "channels last": ("x: .* looks like", {"x": IMAGES.permute(0, 2, 3, 1)}),
    "mean of floats": ("mean: normalises uint8 images only, and x is torch.float32", {"mean": 0.5}),
    "augmented floats": (
        "augment: changes uint8 images only, and x is torch.float32",
        {"augment": Augment(crop=2)},
    ),
    "std of sparse": ("std: normalises uint8 images only, and x is Sparse", {"x": matrix(), "std": 0.5}),
    "two means": ("mean: must hold one number, or one per channel", {"x": IMAGES, "mean": (0.1, 0.2)}),
    "text mean": ("mean: must be made of numbers", {"x": IMAGES, "mean": "0.1"}),
    "std 0": ("std: must be > 0", {"x": IMAGES, "std": 0.0}),
    "columns first": ("x: must be a CSR matrix, got csc", {"x": matrix().tocsc()}),
    "wrong column": (
        "x: is no valid CSR matrix: columns: must lie in",
        {"x": SimpleNamespace(indptr=[0] * 6 + [1], indices=[9], data=[1.0], shape=(6, 2))},
    ),
    "wrong starts": (
        "x: indptr, indices and data must be",
        {"x": SimpleNamespace(indptr=[0, 1], indices=[0], data=[1.0], shape=(6, 2))},
    ),
    "sparse objects": (
        "x: must hold numbers",
        {"x": SimpleNamespace(indptr=[0] * 6 + [1], indices=[0], data=["a"], shape=(6, 2))},
    ),
    "test alone": ("test: must be a pair", {"test": X}),
    "test rows": (r"test\[1\]: has 1 rows, test\[0\] has 6", {"test": (X, Y[:1])}),
    "test shape": (r"test\[0\]: must be like x, torch.float32 rows of \(2,\), got", {"test": (X[:, :1], Y)}),
    "test type": (r"test\[1\]: must be like y, torch.int64", {"test": (X, X[:, 0])}),
    "test size": (
        r"test\[0\]: must be like x, images \(3, 5, 4\), got",
        {"x": IMAGES, "test": (IMAGES[:, :, :3], Y)},
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(case: str) -> None:
    message, changed = BAD[case]
    with pytest.raises((TypeError, ValueError), match=f"^{message}"):
        from_arrays(**{"x": X, "y": Y, "client": CLIENT, **changed})


class Pairs(TorchDataset[Any]):
    """A torch data set of given items."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> Any:
        return self.items[row]


class Picture:
    """What PIL's images show of themselves: numpy can read them."""

    def __init__(self, array: np.ndarray) -> None:
        self.__array_interface__ = array.__array_interface__
        self.kept = array


def test_tensors_of_a_torch_data_set_are_taken_whole() -> None:
    data = from_torch(TensorDataset(X, Y), test=TensorDataset(X[:3], Y[:3]), client=CLIENT)
    assert isinstance(data.train.inputs, Tensor)
    assert data.train.inputs.data_ptr() == X.data_ptr()
    assert data.test is not None
    assert len(data.test) == 3
    assert data.client_names == ("3", "7", "10")
    assert data.name == "torch"


def test_items_of_a_torch_data_set_are_read_one_by_one() -> None:
    for inputs in (list(X), [row.numpy() for row in X]):
        data = from_torch(Pairs(list(zip(inputs, Y.tolist(), strict=True))))
        assert isinstance(data.train.inputs, Tensor)
        assert torch.equal(data.train.inputs, X)
        assert data.labels.tolist() == Y.tolist()
    numbers = from_torch(Pairs([(np.float64(0.5), 1.5), (np.float64(0.25), 2.5)])).train
    assert isinstance(numbers.targets, Tensor)
    assert numbers.targets.tolist() == [1.5, 2.5]
    assert numbers.targets.dtype is torch.float32


def test_pictures_of_a_torch_data_set_become_pixels() -> None:
    colour = [Picture(np.ascontiguousarray(image.permute(1, 2, 0).numpy())) for image in IMAGES]
    data = from_torch(Pairs(list(zip(colour, Y.tolist(), strict=True))), mean=0.5)
    assert isinstance(data.train.inputs, Pixels)
    assert torch.equal(data.train.inputs.bytes, IMAGES)
    grey = from_torch(Pairs([(Picture(image[0].numpy()), 0) for image in IMAGES])).train.inputs
    assert isinstance(grey, Pixels)
    assert torch.equal(grey.bytes, IMAGES[:, :1])


class InOrder(IterableDataset[Any]):
    """A torch data set that can only be read in its own order, though it knows its length."""

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Any]:
        return iter([(X[0], 0)])


@pytest.mark.parametrize(
    ("message", "dataset"),
    [
        ("dataset: must have a length and items by index, got InOrder", InOrder()),
        ("dataset: has no rows", Pairs([])),
        (r"dataset: item 1 must be a pair \(input, target\) or a dict, got Tensor", Pairs([(X[0], 0), X[1]])),
        (r"dataset: item 0 must be a pair", Pairs([(X[0], 0, 1)])),
        (r"dataset: the input of item 1 must be like the first, .* got .*\(1,\)", Pairs([(X[0], 0), (X[0, :1], 0)])),
        (r"dataset: the target of item 1 must be like the first, torch.int64", Pairs([(X[0], 0), (X[0], 0.5)])),
        (r"dataset\[0\]: must be a tensor, an array, a number or a picture, got str", Pairs([("a", 0)])),
    ],
)  # fmt: skip
def test_bad_torch_data_sets_are_named(message: str, dataset: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{message}"):
        from_torch(dataset)
