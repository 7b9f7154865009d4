"""Data that is already in memory: arrays and torch data sets as FastFed's own stores.

What becomes of an array (numpy or torch), as inputs or targets:

* uint8 inputs (n, height, width) or (n, channels, height, width): `Pixels`, normalised with `mean` and `std`
* CSR matrices (anything with indptr, indices, data and shape, as scipy.sparse has them): `Sparse`
* floating point of any precision: float32; integers of any width, uint8 targets among them: int64

Nothing is copied where the numbers already have the right form: FastFed then reads your array's own memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, TensorDataset

from ..saved.recipe import remembered
from .augment import Augment
from .dataset import Dataset, Federated, deal
from .normalise import Statistic, numbers
from .splitting import with_test
from .store import Examples, Inputs, Pixels, Sparse

_CSR = ("indptr", "indices", "data", "shape")
_CHANNELS = (1, 3, 4)


@remembered
def from_arrays(
    x: Any,
    y: Any,
    client: Any,
    test: tuple[Any, Any] | None = None,
    name: str = "arrays",
    mean: Statistic | None = None,
    std: Statistic | None = None,
    augment: Augment | None = None,
) -> Federated:
    """Rows with a client each: inputs `x`, targets `y`, and `client`, one id per row, integers or strings.

    Clients are numbered by their ids in ascending order (ids 0 to n-1 keep their numbers); an id's text is the
    client's name. `test` = (inputs, targets) is the server's test set. `mean` and `std` (one number, or one per
    channel, on the scale [0, 1]) normalise uint8 images; by default bytes are only scaled to [0, 1]. `augment` crops,
    mirrors and standardises them: see `Augment`.
    """
    if client is None:
        raise TypeError("client: must hold one id per row; for rows without clients use as_dataset and a partition")
    data = as_dataset(x, y, client=client, test=test, name=name, mean=mean, std=std, augment=augment)
    assert data.client is not None  # it was given
    rows, offsets = deal(data.client, len(data.client_names))
    return Federated(name, data.train, rows, offsets, test=data.test, client_names=data.client_names)


@remembered
def as_dataset(
    x: Any,
    y: Any,
    client: Any = None,
    test: tuple[Any, Any] | None = None,
    name: str = "arrays",
    mean: Statistic | None = None,
    std: Statistic | None = None,
    augment: Augment | None = None,
) -> Dataset:
    """Rows to be dealt to clients by a partition (``ff.data.dirichlet`` and others), as `from_arrays` takes them.

    `client`, where given, makes natural clients (``ff.data.natural``).
    """
    seen = _Seen(mean, std, augment)
    train = _examples(("x", x), ("y", y), seen)
    tested = None
    if test is not None:
        if not isinstance(test, Sequence) or len(test) != 2:
            raise TypeError(f"test: must be a pair (inputs, targets), got {type(test).__name__}")
        tested = _examples(("test[0]", test[0]), ("test[1]", test[1]), seen)
        _check_alike(train, tested)
    if client is None:
        return Dataset(name, train, tested)
    keys, names = _clients(client, len(train))
    return Dataset(name, train, tested, keys, names)


@remembered
def from_torch(
    dataset: Any,
    test: Any = None,
    client: Any = None,
    name: str = "torch",
    mean: Statistic | None = None,
    std: Statistic | None = None,
    augment: Augment | None = None,
    test_fraction: float | None = None,
    seed: int = 0,
) -> Dataset:
    """A data set of items by index, read once from beginning to end; `test` likewise: torch's, torchvision's, one of
    Hugging Face, or a list.

    An item is a pair (input, target), or a dict with one of the keys image, img, pixel_values, input_ids, input,
    inputs, x, and one of label, labels, target, targets, y. Inputs must all have one shape: tensors, arrays, lists of
    numbers, numbers, or pictures (PIL's, which become (channels, height, width) uint8). Random transforms are drawn
    once, while reading. `test_fraction` of the items, drawn with `seed`, are the test set where there is no other. The
    other arguments are those of `as_dataset`.
    """
    x, y = read_pairs("dataset", dataset)
    tested = None if test is None else read_pairs("test", test)
    data = as_dataset(x, y, client=client, test=tested, name=name, mean=mean, std=std, augment=augment)
    return with_test(data, test_fraction, seed)


class _Seen(NamedTuple):
    """How uint8 images are read; None is as they are."""

    mean: Statistic | None
    std: Statistic | None
    augment: Augment | None


def _examples(x: tuple[str, Any], y: tuple[str, Any], seen: _Seen) -> Examples:
    inputs, targets = _inputs(*x, seen), _targets(*y)
    if len(inputs) != len(targets):
        raise ValueError(f"{y[0]}: has {len(targets)} rows, {x[0]} has {len(inputs)}")
    if len(inputs) == 0:
        raise ValueError(f"{x[0]}: has no rows")
    return Examples(inputs, targets)


def _inputs(name: str, value: Any, seen: _Seen) -> Inputs:
    if _is_csr(value):
        found: Inputs = _sparse(name, value)
    else:
        tensor = _tensor(name, value)
        if tensor.dtype is torch.uint8:
            return _pixels(name, tensor, seen)
        found = _widened(name, tensor)
    for option, given in seen._asdict().items():
        if given is not None:
            kind = "Sparse" if isinstance(found, Sparse) else str(found.dtype)  # type: ignore[union-attr]
            does = "changes" if option == "augment" else "normalises"
            raise ValueError(f"{option}: {does} uint8 images only, and {name} is {kind}")
    return found


def _targets(name: str, value: Any) -> Tensor | Sparse:
    return _sparse(name, value) if _is_csr(value) else _widened(name, _tensor(name, value))


def _pixels(name: str, images: Tensor, seen: _Seen) -> Pixels:
    shape = tuple(images.shape)
    if len(shape) not in (3, 4):
        wanted = "(n, height, width) or (n, channels, height, width); other bytes as float32 or int64"
        raise ValueError(f"{name}: uint8 inputs are images and must be {wanted}, got {shape}")
    if len(shape) == 4 and shape[3] in _CHANNELS and shape[1] not in _CHANNELS:
        hint = "looks like (n, height, width, channels): move its last axis to place 1"
        raise ValueError(f"{name}: uint8 images must be (n, channels, height, width), got {shape}, which {hint}")
    return Pixels(
        images if len(shape) == 4 else images.unsqueeze(1),
        (0.0,) if seen.mean is None else numbers("mean", seen.mean),
        (1.0,) if seen.std is None else numbers("std", seen.std),
        seen.augment,
    )


def _widened(name: str, tensor: Tensor) -> Tensor:
    found = tensor.to(torch.float32 if tensor.is_floating_point() else torch.int64)
    if tensor.dtype is torch.float64 and bool((found.isinf() & ~tensor.isinf()).any()):
        raise ValueError(f"{name}: must fit into float32, its largest entry is {_largest(tensor):g}")
    return found


def _largest(tensor: Tensor) -> float:
    """The largest finite entry, by its absolute value."""
    return float(tensor[tensor.isfinite()].abs().max())


def _tensor(name: str, value: Any) -> Tensor:
    """Numbers of any real type as a contiguous tensor of at least one dimension, on the CPU."""
    if isinstance(value, np.ndarray):
        tensor = _from_numpy(name, value)
    elif isinstance(value, Tensor):
        if value.layout is not torch.strided:
            raise TypeError(
                f"{name}: must be a dense tensor or a CSR matrix as scipy.sparse has it, got {value.layout}"
            )
        tensor = value.detach().cpu().contiguous()
    else:
        raise TypeError(f"{name}: must be a numpy array, a torch tensor or a CSR matrix, got {type(value).__name__}")
    if tensor.dtype is torch.bool or tensor.is_complex():
        raise TypeError(f"{name}: must hold integers or floating-point numbers, got {tensor.dtype}")
    if tensor.dim() == 0:
        raise ValueError(f"{name}: must have one row per example, got a single number")
    return tensor


_TORCH_KNOWS = ("u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8")


def _from_numpy(name: str, value: np.ndarray) -> Tensor:
    if value.dtype.kind not in "iuf":
        raise TypeError(f"{name}: must hold integers or floating-point numbers, got {value.dtype}")
    native = value.dtype.newbyteorder("=")
    if native.str[1:] not in _TORCH_KNOWS:  # wide unsigned integers, long doubles
        native = np.dtype(np.float64 if value.dtype.kind == "f" else np.int64)
        if value.dtype.kind == "u" and value.size and int(value.max()) > np.iinfo(np.int64).max:
            raise ValueError(f"{name}: must fit into int64, its largest entry is {int(value.max())}")
    with warnings.catch_warnings():  # of read-only arrays, such as mapped files: FastFed never writes to them
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
        return torch.from_numpy(np.ascontiguousarray(value, dtype=native))


def _is_csr(value: Any) -> bool:
    return all(hasattr(value, attribute) for attribute in _CSR)


def _sparse(name: str, matrix: Any) -> Sparse:
    kind = getattr(matrix, "format", "csr")
    if kind != "csr":
        raise ValueError(f"{name}: must be a CSR matrix, got {kind}; its method tocsr() makes one")
    rows, width = (int(size) for size in matrix.shape)
    starts, columns, values = (np.asarray(getattr(matrix, attribute)) for attribute in _CSR[:3])
    if starts.shape != (rows + 1,) or columns.shape != values.shape or values.ndim != 1:
        shapes = f"{starts.shape}, {columns.shape} and {values.shape}"
        raise ValueError(f"{name}: indptr, indices and data must be ({rows + 1},), (k,) and (k,), got {shapes}")
    if width > np.iinfo(np.int32).max:
        raise ValueError(f"{name}: must have fewer than 2**31 columns, got {width}")
    if values.dtype.kind not in "iufb":
        raise TypeError(f"{name}: must hold numbers, got {values.dtype}")
    if len(columns) and not 0 <= int(columns.min()) <= int(columns.max()) < width:
        raise ValueError(f"{name}: is no valid CSR matrix: columns: must lie in [0, {width})")
    entries = _widened(name, torch.from_numpy(values.astype(np.float64)))
    try:
        return Sparse(
            torch.from_numpy(starts.astype(np.int64)), torch.from_numpy(columns.astype(np.int32)), entries, width
        )
    except ValueError as error:
        raise ValueError(f"{name}: is no valid CSR matrix: {error}") from error


def _check_alike(train: Examples, test: Examples) -> None:
    """Training and test rows must be of one kind and shape."""
    for index, part in enumerate(("inputs", "targets")):
        one, other = (_form(getattr(examples, part)) for examples in (train, test))
        if one != other:
            raise ValueError(f"test[{index}]: must be like {'xy'[index]}, {one}, got {other}")


def _form(store: Inputs) -> str:
    if isinstance(store, Sparse):
        return f"Sparse rows of {store.width}"
    if isinstance(store, Pixels):
        return f"images {tuple(store.bytes.shape[1:])}"
    return f"{store.dtype} rows of {tuple(store.shape[1:])}"


def _clients(client: Any, rows: int) -> tuple[Tensor, tuple[str, ...]]:
    """The number of every row's client (rows,) int64, and the clients' names."""
    ids = client.detach().cpu().numpy() if isinstance(client, Tensor) else np.asarray(client)
    if ids.dtype.kind == "O" and all(isinstance(one, str) for one in ids.flat):
        ids = ids.astype(np.str_)  # as pandas holds texts
    if ids.dtype.kind not in "iuU":
        raise TypeError(f"client: must hold integers or strings, got {ids.dtype}")
    if ids.shape != (rows,):
        raise ValueError(f"client: must hold one id per row, ({rows},), got {ids.shape}")
    found, keys = np.unique(ids, return_inverse=True)
    return torch.from_numpy(keys.astype(np.int64)), tuple(str(one) for one in found.tolist())


_INPUTS = ("image", "img", "pixel_values", "input_ids", "input", "inputs", "x")
_TARGETS = ("label", "labels", "target", "targets", "y")


def read_pairs(name: str, dataset: Any) -> tuple[Any, Any]:
    """The inputs and the targets of all items, each in one array."""
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        return dataset.tensors[0], dataset.tensors[1]
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise TypeError(f"{name}: must have a length and items by index, got {type(dataset).__name__}")
    count = len(dataset)
    if count == 0:
        raise ValueError(f"{name}: has no rows")
    columns: tuple[Tensor, Tensor] | None = None
    for row in range(count):
        try:
            item = dataset[row]
        except KeyError:
            kind = type(dataset).__name__
            raise TypeError(f"{name}: must have items by index, from 0 on, got {kind}") from None
        values = [_item(f"{name}[{row}]", one) for one in _pair(name, row, item)]
        if columns is None:
            first, second = (torch.empty((count, *value.shape), dtype=value.dtype) for value in values)
            columns = first, second
        for part, value, column in zip(("input", "target"), values, columns, strict=True):
            _put(f"{name}: the {part} of item {row}", value, column, row)
    assert columns is not None
    return columns


def _pair(name: str, row: int, item: Any) -> tuple[Any, Any]:
    """Input and target of an item."""
    if isinstance(item, Mapping):
        places = [next((key for key in keys if key in item), None) for keys in (_INPUTS, _TARGETS)]
        for part, place, keys in zip(("input", "target"), places, (_INPUTS, _TARGETS), strict=True):
            if place is None:
                known = f"one of {', '.join(keys)}; it has {', '.join(map(str, item))}"
                raise ValueError(f"{name}: item {row} has no {part}, {known} (ff.data.from_table takes any columns)")
        return item[places[0]], item[places[1]]
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise TypeError(f"{name}: item {row} must be a pair (input, target) or a dict, got {type(item).__name__}")
    return item[0], item[1]


def stacked(name: str, values: Sequence[Any]) -> Tensor:
    """Values of one shape as rows: tensors, arrays, lists of numbers, pictures."""
    column: Tensor | None = None
    for row, one in enumerate(values):
        value = _item(f"{name}[{row}]", one)
        column = torch.empty((len(values), *value.shape), dtype=value.dtype) if column is None else column
        _put(f"{name}: row {row}", value, column, row)
    assert column is not None
    return column


def _put(what: str, value: Tensor, column: Tensor, row: int) -> None:
    if value.shape != column.shape[1:] or value.dtype != column.dtype:
        like = f"{column.dtype} {tuple(column.shape[1:])}"
        got = f"{value.dtype} {tuple(value.shape)}"
        raise ValueError(f"{what} must be like the first, {like}, got {got}")
    column[row] = value


def pictured(name: str, picture: Any) -> Tensor:
    """A picture of PIL's as (height, width) or (channels, height, width) uint8."""
    return _item(name, picture)


def _item(name: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
        return torch.tensor(value)
    if isinstance(value, list):  # as Hugging Face gives arrays and tokens
        try:
            return _from_numpy(name, np.asarray(value))
        except ValueError:
            raise ValueError(f"{name}: must be lists of one length, within each other too") from None
    if not isinstance(value, np.ndarray) and hasattr(value, "__array_interface__"):  # a picture
        array = np.asarray(value)
        return _from_numpy(name, array if array.ndim == 2 else np.moveaxis(array, -1, 0))
    if isinstance(value, np.ndarray):
        return _from_numpy(name, value)
    raise TypeError(f"{name}: must be a tensor, an array, a number or a picture, got {type(value).__name__}")
