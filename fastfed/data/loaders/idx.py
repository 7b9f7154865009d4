"""Images in idx files: MNIST, Fashion-MNIST, EMNIST, and QMNIST, whose rows know their writers.

A file may be plain or gzip-compressed (``.gz``). Plain image files are memory-mapped: their bytes stay on disk until a
batch reads them.
"""

from __future__ import annotations

import gzip
import math
import string
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from ...saved.recipe import remembered
from ..dataset import Dataset
from ..errors import DEEPEST
from ..finding import Origin
from ..normalise import Normalise, pixels, statistics
from ..store import Examples

_DIGITS = tuple(string.digits)
_GARMENTS = (
    "T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
_MERGED = (*_DIGITS, *string.ascii_uppercase, *"abdefghnqrt")  # small letters that do not look like their capitals
_EMNIST_CLASSES = {
    "byclass": (*_DIGITS, *string.ascii_uppercase, *string.ascii_lowercase),
    "bymerge": _MERGED,
    "balanced": _MERGED,
    "letters": tuple(string.ascii_uppercase),  # small or capital
    "digits": _DIGITS,
    "mnist": _DIGITS,
}

_FOUR_FILES = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte"
_MNIST = Origin(
    f"MNIST's {_FOUR_FILES}, plain or .gz",
    "https://yann.lecun.com/exdb/mnist/ or its mirror https://ossci-datasets.s3.amazonaws.com/mnist/",
)
_FASHION = Origin(f"Fashion-MNIST's {_FOUR_FILES}, plain or .gz", "https://github.com/zalandoresearch/fashion-mnist")
_QMNIST = Origin(
    "qmnist-{train,test}-labels-idx2-int and qmnist-{train,test}-images-idx3-ubyte, plain or .gz (without the images:"
    " MNIST's, in the directory `images`)",
    "https://github.com/facebookresearch/qmnist",
)


@dataclass(frozen=True)
class _Layout:
    """What an idx file must hold: rows of `row` numbers each, their type as idx and as numpy write it."""

    code: int
    dtype: str
    row: tuple[int, ...]
    meaning: str

    @property
    def magic(self) -> bytes:
        return bytes([0, 0, self.code, 1 + len(self.row)])

    @property
    def row_bytes(self) -> int:
        return np.dtype(self.dtype).itemsize * math.prod(self.row)

    @property
    def header_bytes(self) -> int:
        return 4 * (2 + len(self.row))


_IMAGES = _Layout(0x08, "u1", (28, 28), "28x28 images, one byte a pixel")
_LABELS = _Layout(0x08, "u1", (), "labels, one byte each")
_ORIGINS = _Layout(0x0C, ">i4", (8,), "rows of eight 4-byte numbers (class, series, writer, ...)")
_CLASS, _WRITER = 0, 2  # columns of _ORIGINS


@remembered
def mnist(root: str | PathLike[str], normalise: Normalise = True) -> Dataset:
    """MNIST: 60,000 + 10,000 handwritten digits, 1x28x28, 10 classes, from the four idx files in `root`.

    `normalise`: see ``fastfed.data.normalise``. `qmnist` gives the same images with their writers as clients.
    """
    return _four_files("mnist", root, _MNIST, _DIGITS, normalise)


@remembered
def fashion_mnist(root: str | PathLike[str], normalise: Normalise = True) -> Dataset:
    """Fashion-MNIST: 60,000 + 10,000 pieces of clothing, 1x28x28, 10 classes, from the four idx files in `root`.

    `normalise`: see ``fastfed.data.normalise``.
    """
    return _four_files("fashion_mnist", root, _FASHION, _GARMENTS, normalise)


@remembered
def emnist(root: str | PathLike[str], split: str = "byclass", normalise: Normalise = True) -> Dataset:
    """EMNIST: handwritten digits and letters, 1x28x28, from the idx files in `root` (or `root`/gzip).

    `split` (examples, classes): byclass (814,255, 62), bymerge (814,255, 47), balanced (131,600, 47), letters
    (145,600, 26; its files count classes from 1, here they count from 0), digits (280,000, 10), mnist (70,000, 10).
    The files hold every image transposed; here they are upright, which takes a copy in memory. The files name no
    writers: Federated EMNIST has them. `normalise`: see ``fastfed.data.normalise``.
    """
    if split not in _EMNIST_CLASSES:
        raise ValueError(f"split: must be one of {', '.join(_EMNIST_CLASSES)}, got {split!r}")
    name = f"emnist {split}"
    scale = statistics(name, normalise)
    origin = Origin(
        f"emnist-{split}-{{train,test}}-images-idx3-ubyte and -labels-idx1-ubyte, plain or .gz",
        "https://www.nist.gov/itl/products-and-services/emnist-dataset",
    )
    directory = origin.directory(root)
    parts = []
    for part in ("train", "test"):
        stem, folders = f"emnist-{split}-{part}", (directory, directory / "gzip")
        images, labels = _pair(folders, f"{stem}-images", f"{stem}-labels", origin, _EMNIST_CLASSES[split],
                               first=1 if split == "letters" else 0)  # fmt: skip
        parts.append(Examples(pixels(images.transpose(2, 3).contiguous(), scale), labels))
    return Dataset(name, parts[0], parts[1], class_names=_EMNIST_CLASSES[split])


@remembered
def qmnist(
    root: str | PathLike[str], images: str | PathLike[str] | None = None, normalise: Normalise = True
) -> Dataset:
    """QMNIST: MNIST's digits with the writer of every row; the writers are the natural clients.

    `root` holds qmnist-{train,test}-labels-idx2-int. The images are QMNIST's own in `root` (60,000 + 60,000; 535 test
    writers), or MNIST's: its four files in the directory `images` (60,000 + 10,000: only the first 10,000 test rows
    count; 297 test writers). There are 539 training writers, none of them a test writer with MNIST's images.
    `client_names` are the writers' numbers of both parts, in ascending order; `client` and `test_client` index them.
    `normalise`: see ``fastfed.data.normalise``.
    """
    scale = statistics("qmnist", normalise)
    directory = _QMNIST.directory(root)
    parts = [_written(directory, None if images is None else _MNIST.directory(images), p) for p in ("train", "test")]
    writers = torch.cat([part.writers for part in parts]).unique()  # ascending
    train, test = (Examples(pixels(part.images, scale), part.labels) for part in parts)
    client, test_client = (torch.searchsorted(writers, part.writers) for part in parts)
    names = tuple(str(writer) for writer in writers.tolist())
    return Dataset("qmnist", train, test, client, names, test_client, _DIGITS)


@dataclass(frozen=True)
class _Written:
    """One part of QMNIST, row for row: images (n, 1, 28, 28) uint8, labels and writers' numbers (n,) int64."""

    images: Tensor
    labels: Tensor
    writers: Tensor


def _written(root: Path, mnist_directory: Path | None, part: str) -> _Written:
    """One part of QMNIST: its own images, or MNIST's where their directory is given."""
    path = _QMNIST.find([root], _spellings(f"qmnist-{part}-labels-idx2-int"))
    origins = torch.from_numpy(read_idx(path, _ORIGINS, _QMNIST).astype(np.int64))
    if mnist_directory is None:
        images_path = _QMNIST.find([root], _spellings(f"qmnist-{part}-images-idx3-ubyte"))
        images = _images(images_path, _QMNIST)
        _check_count(images_path, len(images), path, len(origins), _QMNIST)
    else:
        stem = "train" if part == "train" else "t10k"
        images, labels = _pair([mnist_directory], f"{stem}-images", f"{stem}-labels", _MNIST, _DIGITS)
        if part == "test":
            origins = origins[: len(images)]
        _check_same_digits(path, origins[:, _CLASS], labels, mnist_directory)
    _check_classes(path, origins[:, _CLASS], 0, len(_DIGITS), _QMNIST)
    return _Written(images, origins[:, _CLASS].contiguous(), origins[:, _WRITER].contiguous())


def _check_same_digits(path: Path, classes: Tensor, labels: Tensor, mnist_directory: Path) -> None:
    """Row i of QMNIST's labels must speak of row i of MNIST's images: the digits tell."""
    if classes.shape != labels.shape:
        problem = f"has {len(classes)} rows, but {mnist_directory} has {len(labels)} images"
    elif not torch.equal(classes, labels):
        row = int((classes != labels).nonzero()[0])
        problem = f"row {row} is the digit {int(classes[row])}, but {mnist_directory} has {int(labels[row])} there"
    else:
        return
    raise _MNIST.error(path, problem, "MNIST's own four files in `images`, in their published order")


def _four_files(
    name: str, root: str | PathLike[str], origin: Origin, classes: tuple[str, ...], normalise: Normalise
) -> Dataset:
    scale = statistics(name, normalise)
    directory = origin.directory(root)
    parts = []
    for stem in ("train", "t10k"):
        images, labels = _pair([directory], f"{stem}-images", f"{stem}-labels", origin, classes)
        parts.append(Examples(pixels(images, scale), labels))
    return Dataset(name, parts[0], parts[1], class_names=classes)


def _pair(
    folders: Sequence[Path], images: str, labels: str, origin: Origin, classes: Sequence[str], first: int = 0
) -> tuple[Tensor, Tensor]:
    """An image file and its label file: (n, 1, 28, 28) uint8 and (n,) int64; the files' labels begin at `first`."""
    images_path = origin.find(folders, _spellings(f"{images}-idx3-ubyte"))
    labels_path = origin.find(folders, _spellings(f"{labels}-idx1-ubyte"))
    read = torch.from_numpy(read_idx(labels_path, _LABELS, origin).astype(np.int64))
    _check_classes(labels_path, read, first, len(classes), origin)
    pictures = _images(images_path, origin)
    _check_count(images_path, len(pictures), labels_path, len(read), origin)
    return pictures, read - first


def _spellings(name: str) -> tuple[str, ...]:
    """The names that a file goes by: plain first, because it can be mapped; some programs unpack to a dot."""
    dotted = name.replace("-idx", ".idx")
    return name, dotted, f"{name}.gz", f"{dotted}.gz"


def _images(path: Path, origin: Origin) -> Tensor:
    return torch.from_numpy(read_idx(path, _IMAGES, origin)).unsqueeze(1)


def _check_classes(path: Path, labels: Tensor, first: int, count: int, origin: Origin) -> None:
    low, high = int(labels.min()), int(labels.max())
    if low < first or high >= first + count:
        raise origin.error(path, f"its labels lie in {low} to {high}", f"labels from {first} to {first + count - 1}")


def _check_count(images: Path, image_count: int, labels: Path, label_count: int, origin: Origin) -> None:
    if image_count != label_count:
        problem = f"holds {image_count} images, but {labels.name} holds {label_count} labels"
        raise origin.error(images, problem, "as many images as labels")


def read_idx(path: Path, layout: _Layout, origin: Origin) -> np.ndarray:
    """The rows of an idx file, (rows, *layout.row) in the file's byte order: mapped, or in memory where it is gzip."""
    with origin.reading(path):
        try:
            return _unpacked(path, layout, origin) if path.suffix == ".gz" else _mapped(path, layout, origin)
        except gzip.BadGzipFile as error:
            raise origin.error(path, f"is not a gzip file ({error})", "a file packed with gzip, as .gz says") from error
        except (EOFError, zlib.error) as error:
            raise origin.error(path, f"is truncated or damaged ({error})", "a whole gzip file") from error
        except OSError as error:
            problem = f"cannot be read ({error.strerror or error})"
            raise origin.error(path, problem, "a file that can be read") from error


def _mapped(path: Path, layout: _Layout, origin: Origin) -> np.ndarray:
    with path.open("rb") as stream:
        rows = _rows_of_header(path, stream, layout, origin)
    _check_size(path, path.stat().st_size, rows, layout, origin)
    # "c": torch wants memory it may write to; whatever is written would never reach the file
    return np.memmap(path, layout.dtype, "c", layout.header_bytes, (rows, *layout.row))


def _unpacked(path: Path, layout: _Layout, origin: Origin) -> np.ndarray:
    with gzip.open(path, "rb") as stream:
        rows = _rows_of_header(path, stream, layout, origin)
        if rows * layout.row_bytes > DEEPEST * path.stat().st_size:
            _check_size(path, 0, rows, layout, origin)
        out = np.empty((rows, *layout.row), layout.dtype)
        target = out.reshape(-1).view(np.uint8).data
        got = _fill(stream, target)
        excess = len(stream.read(1))
    _check_size(path, layout.header_bytes + got + excess, rows, layout, origin)
    return out


def _fill(stream: gzip.GzipFile, target: memoryview) -> int:
    """Reads until `target` is full or the stream ends: how many bytes came."""
    got = 0
    while got < len(target):
        count = stream.readinto(target[got:])
        if not count:
            break
        got += count
    return got


def _rows_of_header(path: Path, stream: IO[bytes] | gzip.GzipFile, layout: _Layout, origin: Origin) -> int:
    header = stream.read(layout.header_bytes)
    wanted = f"an idx file of {layout.meaning}, beginning with the bytes {layout.magic.hex(' ')}"
    if header[:4] != layout.magic:
        hint = ": it is a gzip file, whose name must end in .gz" if header[:2] == b"\x1f\x8b" else ""
        raise origin.error(path, f"begins with the bytes {header[:4].hex(' ') or '(none)'}{hint}", wanted)
    if len(header) < layout.header_bytes:
        raise origin.error(path, f"ends after {len(header)} bytes, inside its header", wanted)
    rows, *row = (int.from_bytes(header[at : at + 4], "big") for at in range(4, layout.header_bytes, 4))
    if tuple(row) != layout.row or rows == 0:
        shape = "x".join(str(size) for size in (rows, *row))
        raise origin.error(path, f"its header says {shape}", f"an idx file of {layout.meaning}, at least one row")
    return rows


def _check_size(path: Path, size: int, rows: int, layout: _Layout, origin: Origin) -> None:
    wanted = layout.header_bytes + rows * layout.row_bytes
    if size < wanted:
        raise origin.error(path, "is truncated", f"{wanted} bytes (unpacked) for the {rows} rows its header counts")
    if size > wanted:
        problem = f"has bytes left over after the {rows} rows its header counts"
        raise origin.error(path, problem, f"{wanted} bytes (unpacked)")
