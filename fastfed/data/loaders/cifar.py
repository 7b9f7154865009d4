"""CIFAR-10 and CIFAR-100, from their binary files or their pickles; a pickle runs no code here."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...saved.recipe import remembered
from ..augment import Augment, augment_of
from ..dataset import Dataset
from ..finding import Origin
from ..normalise import Normalise, pixels, statistics
from ..store import Examples

_HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"
_IMAGE = (3, 32, 32)
_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class _Kind:
    """How one of the two data sets is laid out. Label columns are in the binary files' order; the last is the class."""

    name: str
    train: tuple[str, ...]
    test: str
    folders: tuple[str, ...]
    columns: tuple[str, ...]
    classes: tuple[int, ...]
    names_text: str
    names_pickle: str
    names_key: str

    @property
    def origin(self) -> Origin:
        listed = f"{self.train[0]} to {self.train[-1]}" if len(self.train) > 1 else self.train[0]
        both = f"{listed} and {self.test}"
        return Origin(f"{both}, as binary files (.bin) or pickles, in it or in {' or '.join(self.folders[1:])}", _HOME)


_TEN = _Kind(
    name="cifar10",
    train=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test="test_batch",
    folders=("", "cifar-10-batches-bin", "cifar-10-batches-py"),
    columns=("labels",),
    classes=(10,),
    names_text="batches.meta.txt",
    names_pickle="batches.meta",
    names_key="label_names",
)
_HUNDRED = _Kind(
    name="cifar100",
    train=("train",),
    test="test",
    folders=("", "cifar-100-binary", "cifar-100-python"),
    columns=("coarse_labels", "fine_labels"),
    classes=(20, 100),
    names_text="fine_label_names.txt",
    names_pickle="meta",
    names_key="fine_label_names",
)


@remembered
def cifar10(
    root: str | PathLike[str],
    normalise: Normalise = True,
    crop: int | None = None,
    flip: bool = False,
    standardise: bool = False,
) -> Dataset:
    """CIFAR-10: 50,000 + 10,000 photographs, 3x32x32, 10 classes.

    `root` holds the binary files (data_batch_1.bin, ...) or the pickles (data_batch_1, ...), or the folder that either
    archive unpacks to. Pickles are read without running any code that they might ask for. Class names come from the
    meta file, where there is one. `normalise`: see ``fastfed.data.normalise``; `crop`, `flip` and `standardise`, which
    goes with `normalise` False only: see `Augment`. AFO has 24, True, True.
    """
    return _load(_TEN, root, normalise, augment_of(crop, flip, standardise))


@remembered
def cifar100(
    root: str | PathLike[str],
    normalise: Normalise = True,
    crop: int | None = None,
    flip: bool = False,
    standardise: bool = False,
) -> Dataset:
    """CIFAR-100: 50,000 + 10,000 photographs, 3x32x32, 100 classes in 20 coarse ones (`coarse`, of training rows).

    `root` holds the binary files (train.bin, test.bin) or the pickles (train, test), as for `cifar10`; the other
    options are the same, too.
    """
    return _load(_HUNDRED, root, normalise, augment_of(crop, flip, standardise))


def _load(kind: _Kind, root: str | PathLike[str], normalise: Normalise, augment: Augment | None) -> Dataset:
    scale = statistics(kind.name, normalise)
    if augment is not None:
        augment.shape(_IMAGE)
        if augment.standardise and normalise is not False:
            raise ValueError(f"normalise: must be False with standardise, which takes its place, got {normalise!r}")
    folder, suffix = _locate(kind, kind.origin.directory(root))
    read = _read_binary if suffix else _read_pickle
    parts = []
    for stems in (kind.train, (kind.test,)):
        paths = [kind.origin.find([folder], [stem + suffix]) for stem in stems]
        held = []
        for path in paths:
            with kind.origin.reading(path):
                held.append(read(kind, path))
        parts.append(_join(kind, paths, held))
    (images, labels), (test_images, test_labels) = parts
    return Dataset(
        kind.name,
        Examples(pixels(images, scale, augment), labels[:, -1].contiguous()),
        Examples(pixels(test_images, scale, augment), test_labels[:, -1].contiguous()),
        class_names=_class_names(kind, folder),
        coarse=labels[:, 0].contiguous() if len(kind.columns) == 2 else None,
    )


def _locate(kind: _Kind, root: Path) -> tuple[Path, str]:
    """The folder that holds any of the files, and their suffix: binary files first, they are read faster."""
    for suffix in (".bin", ""):
        for folder in kind.folders:
            if any((root / folder / (stem + suffix)).is_file() for stem in (*kind.train, kind.test)):
                return root / folder, suffix
    raise kind.origin.error(root, f"holds no file of {kind.name}")


_Rows = tuple[np.ndarray, np.ndarray]  # images (n, 3072) and labels (n, columns), both bytes


def _join(kind: _Kind, paths: list[Path], parts: list[_Rows]) -> tuple[Tensor, Tensor]:
    """The rows of all files: images (n, 3, 32, 32) uint8, labels (n, columns) int64."""
    for path, (images, _) in zip(paths, parts, strict=True):
        if len(images) != len(parts[0][0]):
            problem = f"holds {len(images)} images, {paths[0].name} holds {len(parts[0][0])}"
            raise kind.origin.error(path, problem, "batches of one length")
    images = np.concatenate([images for images, _ in parts])
    labels = np.concatenate([labels for _, labels in parts]).astype(np.int64)
    return torch.from_numpy(images).view(-1, 3, 32, 32), torch.from_numpy(labels)


def _read_binary(kind: _Kind, path: Path) -> _Rows:
    columns = len(kind.columns)
    row, size = columns + _PIXELS, path.stat().st_size
    if size == 0 or size % row:
        expected = f"a whole number of rows of {row} bytes ({columns} of labels, {_PIXELS} of pixels)"
        raise kind.origin.error(path, f"has {size} bytes, which is no whole number of rows", expected)
    try:
        rows = np.memmap(path, np.uint8, "r").reshape(-1, row)
    except OSError as error:
        raise kind.origin.error(path, f"cannot be read ({error.strerror})", "a file that can be read") from error
    _check_labels(kind, path, rows[:, :columns])
    return rows[:, columns:], rows[:, :columns]


def _read_pickle(kind: _Kind, path: Path) -> _Rows:
    found = _unpickle(kind, path)
    images = found.get("data")
    wanted = f"uint8 (n, {_PIXELS})"
    if not isinstance(images, _Array) or images.value.shape[1:] != (_PIXELS,) or len(images.value) == 0:
        shape = images.value.shape if isinstance(images, _Array) else type(images).__name__
        raise kind.origin.error(path, f"its 'data' is {shape}", f"images, {wanted}, under 'data'")
    columns = [_label_column(kind, path, found.get(key), key, len(images.value)) for key in kind.columns]
    labels = np.stack(columns, axis=1)
    _check_labels(kind, path, labels)
    return images.value, labels


def _label_column(kind: _Kind, path: Path, column: object, key: str, rows: int) -> np.ndarray:
    if not isinstance(column, list) or len(column) != rows or not all(type(one) is int for one in column):
        got = f"a list of {len(column)} entries" if isinstance(column, list) else type(column).__name__
        raise kind.origin.error(path, f"its {key!r} is {got}", f"a list of {rows} integers, one per image")
    return np.array(column, dtype=np.int64)


def _check_labels(kind: _Kind, path: Path, labels: np.ndarray) -> None:
    for column, key, classes in zip(labels.T, kind.columns, kind.classes, strict=True):
        low, high = int(column.min()), int(column.max())
        if low < 0 or high >= classes:
            raise kind.origin.error(path, f"its {key} lie in {low} to {high}", f"{key} from 0 to {classes - 1}")


def _class_names(kind: _Kind, folder: Path) -> tuple[str, ...]:
    """From the meta file beside the data, text or pickle; none where there is no such file."""
    text, pickled = folder / kind.names_text, folder / kind.names_pickle
    if text.is_file():
        path = text
        with kind.origin.reading(path):
            names = [line.strip() for line in text.read_text(encoding="utf-8", errors="replace").splitlines()]
        names = [name for name in names if name]
    elif pickled.is_file():
        path = pickled
        listed = _unpickle(kind, path).get(kind.names_key)
        names = [_text(name) for name in listed] if isinstance(listed, list) else []
    else:
        return ()
    if len(names) != kind.classes[-1]:
        raise kind.origin.error(path, f"names {len(names)} classes", f"the names of {kind.classes[-1]} classes")
    return tuple(names)


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


class _Forbidden(Exception):
    """A pickle asks for a function or class that CIFAR's files do not need."""


class _Dtype:
    """Stands in for numpy.dtype in a pickle: only its name is kept."""

    def __init__(self, name: object) -> None:
        self.name = _text(name)

    def __setstate__(self, state: object) -> None:
        """Byte order and the like, which bytes do not have."""


class _Array:
    """Stands in for a numpy array in a pickle: two-dimensional, of bytes."""

    value: np.ndarray = np.empty((0, 0), np.uint8)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, by_columns, raw = state
        if not isinstance(dtype, _Dtype) or dtype.name not in ("u1", "uint8", "|u1"):
            raise pickle.UnpicklingError(f"an array of {getattr(dtype, 'name', dtype)}, not of bytes")
        self.value = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if by_columns else "C")


class _Unpickler(pickle._Unpickler):
    """Knows the few names that CIFAR's pickles use, each played by a stand-in that can do no harm.

    Python's own, not the faster one in C: that gives memory to any number that a pickle names as a place of its memo.

    The stand-ins are bound methods and a string: nothing that a pickle could change for the next one.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__(BytesIO(content), encoding="bytes")  # Python 2 wrote the published files
        self._left = 2 * len(content) + 1  # bytes of text that may be encoded, however often the pickle asks for it
        self._known: dict[tuple[str, str], Any] = {
            ("numpy.core.multiarray", "_reconstruct"): self._reconstruct,
            ("numpy._core.multiarray", "_reconstruct"): self._reconstruct,
            ("numpy", "ndarray"): "ndarray",
            ("numpy", "dtype"): self._dtype,
            ("_codecs", "encode"): self._encode,
        }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._known:
            raise _Forbidden(f"{module}.{name}")
        return self._known[module, name]

    def _reconstruct(self, kind: object, shape: object, code: object) -> _Array:
        return _Array()

    def _dtype(self, name: object, *flags: object) -> _Dtype:
        return _Dtype(name)

    def _encode(self, text: str, encoding: object) -> bytes:
        self._left -= len(text)
        if self._left < 0:
            raise pickle.UnpicklingError("it has more text than the file")
        return text.encode("latin-1")  # how Python 3 writes bytes for Python 2


def _unpickle(kind: _Kind, path: Path) -> dict[str, Any]:
    """The dictionary in a pickle, its keys as text."""
    expected = f"a pickle of {kind.name}: a dictionary of lists, texts and arrays of bytes"
    try:
        found: object = _Unpickler(path.read_bytes()).load()
    except _Forbidden as error:
        raise kind.origin.error(
            path, f"asks for {error}, which is forbidden; nothing of it was run", expected
        ) from None
    except Exception as error:  # a damaged pickle raises almost anything
        raise kind.origin.error(path, f"is no readable pickle ({type(error).__name__}: {error})", expected) from error
    if not isinstance(found, dict):
        raise kind.origin.error(path, f"holds a {type(found).__name__}", expected)
    return {_text(key): value for key, value in found.items()}
