"""The federated data sets of TensorFlow Federated (TFF), from its HDF5 files: /examples/<client>/<field>.

h5py is needed (``pip install fastfed[hdf5]``) and imported when a file is opened. Papers, as in the documentation:
AFO = "Adaptive Federated Optimization".
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from types import ModuleType, TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...saved.recipe import remembered
from ..arguments import check_whole
from ..dataset import Dataset
from ..errors import DataError
from ..store import Examples, Pixels
from .text import PAD, Integers, SparseRows, Tokens, character_sequences, fill_words, most_common, next_token_examples

_SOURCE = "https://storage.googleapis.com/tff-datasets-public/{}.tar.bz2 (unpack it first)"
_EXAMPLES = "examples"
_TEXT = "OS"  # strings of any length, or of one fixed length

Array = NDArray[Any]
Root = str | PathLike[str]
Rows = slice | Integers
Choice = list[tuple[int, Rows, int]]  # clients, which of their examples, and how many those are


@dataclass(frozen=True)
class Field:
    """What a field holds for each example: the kinds of numpy numbers allowed (or text) and their shape."""

    kinds: str
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        return (
            "text" if self.kinds == _TEXT else f"{'x'.join(map(str, self.shape))} numbers" if self.shape else "a number"
        )


_LABEL = Field("iu")


class _Clients:
    """One HDF5 file, open: the clients' names and how many examples each has, (clients,) int64.

    `limit` keeps the first clients, in the order of their names.
    """

    def __init__(self, path: Path, fields: Mapping[str, Field], archive: str, limit: int | None = None) -> None:
        self.path, self.fields, self.source = path, fields, _SOURCE.format(archive)
        self.expected = "HDF5 with /examples/<client>/ and " + ", ".join(f"{k} ({v})" for k, v in fields.items())
        if not path.is_file():
            raise self.error("does not exist")
        h5py = _h5py()
        try:
            self._file = h5py.File(path, "r")
        except OSError as error:
            raise self.error(f"is truncated or no HDF5 file ({error})") from error
        try:
            self.names, self.sizes = self._clients(limit)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> _Clients:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def error(self, problem: str) -> DataError:
        return DataError(self.path, problem, self.expected, self.source)

    def _clients(self, limit: int | None) -> tuple[tuple[str, ...], Integers]:
        group = self._file.get(_EXAMPLES)
        if not hasattr(group, "keys"):
            raise self.error(f"has no group /{_EXAMPLES}")
        names = tuple(group)[:limit]
        sizes = np.array([self._size(name) for name in names], dtype=np.int64)
        if sizes.sum() == 0:
            raise self.error("holds no example")
        return names, sizes

    def _size(self, client: str) -> int:
        """How many examples a client has, all fields looked at."""
        counts = set()
        for field, wanted in self.fields.items():
            dataset = self._dataset(client, field)
            if dataset.dtype.kind not in wanted.kinds or dataset.shape[1:] != wanted.shape or not dataset.shape:
                raise self.error(f"has {dataset.dtype} {dataset.shape} as {dataset.name}, not {wanted} per example")
            counts.add(len(dataset))
        if len(counts) > 1:
            raise self.error(f"has fields of unequal lengths for the client {client!r}")
        return int(counts.pop())

    def _dataset(self, client: str, field: str) -> Any:
        try:
            found = self._file[_EXAMPLES][client][field]
        except (KeyError, OSError, ValueError, RuntimeError) as error:
            raise self.error(f"has no readable /{_EXAMPLES}/{client}/{field} ({error})") from error
        if not hasattr(found, "dtype"):
            raise self.error(f"has a group where /{_EXAMPLES}/{client}/{field} should be data")
        return found

    def read(self, client: int, field: str, rows: Rows = slice(None)) -> Array:
        """A field of some of a client's examples; text as bytes."""
        dataset = self._dataset(self.names[client], field)
        try:
            return np.asarray(dataset[rows])
        except (OSError, RuntimeError) as error:
            raise self.error(f"cannot be read at {dataset.name} ({error})") from error

    def texts(self, client: int, field: str, rows: Rows = slice(None)) -> list[bytes]:
        return [one.encode() if isinstance(one, str) else bytes(one) for one in self.read(client, field, rows)]

    def fill(self, field: str, dtype: type, arrange: Callable[[Array], Array] = lambda block: block) -> Array:
        """A field of all clients in one array, each client's block arranged by `arrange` on its way in."""
        ends = np.cumsum(self.sizes)
        sample = arrange(np.empty((1, *self.fields[field].shape), dtype=dtype))
        out = np.empty((int(ends[-1]), *sample.shape[1:]), dtype=dtype)
        for client, (end, size) in enumerate(zip(ends, self.sizes, strict=True)):
            out[end - size : end] = arrange(self.read(client, field))
        return out

    def labels(self, classes: int, field: str = "label") -> torch.Tensor:
        """All labels (examples,) int64, each below `classes`."""
        found = self.fill(field, np.int64)
        if found.min() < 0 or found.max() >= classes:
            raise self.error(f"has {field}s from {found.min()} to {found.max()}, of {classes} classes")
        return torch.from_numpy(found)

    def keys(self) -> torch.Tensor:
        """The client of every example, (examples,) int64."""
        return torch.from_numpy(np.repeat(np.arange(len(self.names)), self.sizes))

    def keys_among(self, names: tuple[str, ...], sizes: Integers | None = None) -> torch.Tensor | None:
        """The client of every example as a place in `names`, None where some client with examples is not there."""
        sizes = self.sizes if sizes is None else sizes
        places = {name: place for place, name in enumerate(names)}
        own = np.array([places.get(name, -1) for name in self.names], dtype=np.int64)
        keys = np.repeat(own, sizes)
        return None if (keys < 0).any() else torch.from_numpy(keys)


def _h5py() -> ModuleType:
    try:
        import h5py
    except ImportError as error:
        message = "TensorFlow Federated's files are HDF5, and h5py is not installed: pip install fastfed[hdf5]"
        raise ImportError(message) from error
    return h5py


@remembered
def federated_emnist(root: Root, only_digits: bool = False, autoencoder: bool = False) -> Dataset:
    """Handwritten characters by writer: ``fed_emnist_train.h5`` and ``_test.h5``, or ``fed_emnist_digitsonly_*.h5``.

    Inputs float32 (examples, 1, 28, 28), as TFF has them: 1 is the background, 0 is ink. Targets int64 (examples,):
    digits, capital and small letters, 62 classes, or 10 with `only_digits`. 3,400 (3,383) clients.

    `autoencoder`: AFO's other task; inputs and targets are the same float32 (examples, 784), with 1 as ink.
    """
    classes = digits if only_digits else digits + ascii_uppercase + ascii_lowercase
    stem = "fed_emnist_digitsonly" if only_digits else "fed_emnist"
    fields = {"pixels": Field("f", (28, 28)), "label": _LABEL}

    def examples(clients: _Clients) -> Examples:
        labels = clients.labels(len(classes))
        pixels = clients.fill("pixels", np.float32)
        if not (pixels.min() >= 0 and pixels.max() <= 1):  # so that NaN is refused too
            raise clients.error(f"has pixels from {pixels.min()} to {pixels.max()}, not from 0 to 1")
        if autoencoder:
            ink = torch.from_numpy(np.subtract(1, pixels, out=pixels)).reshape(-1, 784)
            return Examples(ink, ink)
        return Examples(torch.from_numpy(pixels).unsqueeze(1), labels)

    with (
        _Clients(Path(root) / f"{stem}_train.h5", fields, stem) as train,
        _Clients(Path(root) / f"{stem}_test.h5", fields, stem) as test,
    ):
        return Dataset(
            name="federated_emnist",
            train=examples(train),
            test=examples(test),
            client=train.keys(),
            client_names=train.names,
            test_client=test.keys_among(train.names),
            class_names=tuple(classes),
        )


@remembered
def federated_cifar100(root: Root) -> Dataset:
    """CIFAR-100 as AFO dealt it to 500 clients: ``fed_cifar100_train.h5`` and ``fed_cifar100_test.h5``.

    Inputs `Pixels` (examples, 3, 32, 32), targets int64 (examples,), 100 classes; `coarse` holds the 20 coarse labels.
    The 100 clients of the test file are others than those of training, in spite of equal names: `test_client` is None.
    """
    archive = "fed_cifar100"
    fields = {"image": Field("u", (32, 32, 3)), "label": _LABEL, "coarse_label": _LABEL}

    def examples(clients: _Clients) -> Examples:
        labels = clients.labels(100)
        images = clients.fill("image", np.uint8, lambda block: block.transpose(0, 3, 1, 2))
        return Examples(Pixels(torch.from_numpy(images)), labels)

    with (
        _Clients(Path(root) / "fed_cifar100_train.h5", fields, archive) as train,
        _Clients(Path(root) / "fed_cifar100_test.h5", fields, archive) as test,
    ):
        return Dataset(
            name="federated_cifar100",
            train=examples(train),
            test=examples(test),
            client=train.keys(),
            client_names=train.names,
            coarse=train.labels(20, "coarse_label"),
        )


@remembered
def federated_shakespeare(root: Root, length: int = 80) -> Dataset:
    """Next-character prediction, a client per speaking role: ``shakespeare_train.h5`` and ``shakespeare_test.h5``.

    Every snippet is cut into sequences as AFO does: inputs and targets int64 (examples, length), tokens below 90,
    targets `IGNORED` (-100) where padded. 715 clients.
    """
    check_whole("length", length, least=1)
    fields = {"snippets": Field(_TEXT)}

    def examples(clients: _Clients) -> tuple[Examples, Integers]:
        texts = [text for client in range(len(clients.names)) for text in clients.texts(client, "snippets")]
        found, counts = character_sequences(texts, length)
        of_text = np.repeat(np.arange(len(clients.names)), clients.sizes)
        return found, np.bincount(of_text, weights=counts, minlength=len(clients.names)).astype(np.int64)

    with (
        _Clients(Path(root) / "shakespeare_train.h5", fields, "shakespeare") as train,
        _Clients(Path(root) / "shakespeare_test.h5", fields, "shakespeare") as test,
    ):
        sequences, sizes = examples(train)
        test_sequences, test_sizes = examples(test)
        return Dataset(
            name="federated_shakespeare",
            train=sequences,
            test=test_sequences,
            client=train.keys_among(train.names, sizes),
            client_names=train.names,
            test_client=test.keys_among(train.names, test_sizes),
        )


@remembered
def stack_overflow_nwp(
    root: Root,
    words: int = 10000,
    length: int = 20,
    clients: int | None = None,
    examples: int | None = 1000,
    test_examples: int | None = 10000,
) -> Dataset:
    """Next-word prediction on Stack Overflow: ``stackoverflow_train.h5`` and ``stackoverflow_test.h5``.

    Inputs and targets int64 (examples, length): sentences cut to `length` words; tokens are 0 for padding, 1 ... words
    for the words, then unknown, begin and end, words + 4 in all; targets are `IGNORED` (-100) where padded.

    A client keeps its first `examples` sentences (AFO: 1000; None: all). `clients` keeps the first clients, of
    342,477: all of them need tens of gigabytes. `test_examples` are spread evenly over the test file (None: all). The
    words are the first of ``stackoverflow.word_count``, or, where that is absent, the most frequent ones kept.
    """
    check_whole("words", words, least=1)
    check_whole("length", length, least=1)

    with _StackOverflow(root, ("tokens",), clients, examples, test_examples) as data:
        vocabulary = data.vocabulary("stackoverflow.word_count", words, _words, "tokens")

        def encode(source: _Clients, chosen: Choice) -> Examples:
            rows = np.full((sum(count for *_, count in chosen), length + 1), PAD, dtype=np.int64)
            empty = iter(rows)
            for client, which, _ in chosen:
                for text in source.texts(client, "tokens", which):
                    fill_words(next(empty), _words(text), vocabulary, Tokens(words))
            return next_token_examples(rows)

        return data.dataset("stack_overflow_nwp", encode)


@remembered
def stack_overflow_tags(
    root: Root,
    words: int = 10000,
    tags: int = 500,
    clients: int | None = None,
    examples: int | None = 500,
    test_examples: int | None = 10000,
    count_unknown: bool = False,
) -> Dataset:
    """Tag prediction on Stack Overflow: ``stackoverflow_train.h5`` and ``stackoverflow_test.h5``.

    Inputs are bags of the words of text and title, `Sparse` (examples, words), as frequencies that sum to 1 over the
    known words; with `count_unknown` over all words, as in the code of AFO's authors. Targets `Sparse` (examples, tags)
    of ones.

    A client keeps its first `examples` (500 in that code; None: all); `clients` and `test_examples` are those of
    `stack_overflow_nwp`. Words and tags are the first of ``stackoverflow.word_count`` and ``stackoverflow.tag_count``,
    or, where a file is absent, the most frequent ones kept. `class_names` are the known tags.
    """
    check_whole("words", words, least=1)
    check_whole("tags", tags, least=1)

    with _StackOverflow(root, ("tokens", "title", "tags"), clients, examples, test_examples) as data:
        word_places = data.vocabulary("stackoverflow.word_count", words, _words, "tokens", "title")
        tag_places = data.vocabulary("stackoverflow.tag_count", tags, _tags, "tags")

        def encode(source: _Clients, chosen: Choice) -> Examples:
            bags, labels = SparseRows(words), SparseRows(tags)
            for client, which, _ in chosen:
                columns = [source.texts(client, field, which) for field in ("tokens", "title", "tags")]
                for text, title, tagged in zip(*columns, strict=True):
                    bags.add_words(_words(text) + _words(title), word_places, count_unknown)
                    labels.add_tags(_tags(tagged), tag_places)
            return Examples(bags.sparse(), labels.sparse())

        return data.dataset("stack_overflow_tags", encode, tuple(tag_places))


class _StackOverflow:
    """The two files of Stack Overflow, open, and which of their examples are kept.

    `train` and `test` say which.
    """

    def __init__(
        self,
        root: Root,
        fields: tuple[str, ...],
        clients: int | None,
        examples: int | None,
        test_examples: int | None,
    ) -> None:
        for name, value in (("clients", clients), ("examples", examples), ("test_examples", test_examples)):
            if value is not None:
                check_whole(name, value, least=1)
        self.root = Path(root)
        wanted = {field: Field(_TEXT) for field in fields}
        self.train_file = _Clients(self.root / "stackoverflow_train.h5", wanted, "stackoverflow", clients)
        try:
            self.test_file = _Clients(self.root / "stackoverflow_test.h5", wanted, "stackoverflow")
        except BaseException:
            self.train_file.__exit__(None, None, None)
            raise
        self.train = list(_first(self.train_file.sizes, examples))
        self.test = list(_spread(self.test_file.sizes, test_examples))

    def __enter__(self) -> _StackOverflow:
        return self

    def __exit__(self, *error: Any) -> None:
        self.train_file.__exit__(*error)
        self.test_file.__exit__(*error)

    def vocabulary(self, file: str, size: int, split: Callable[[bytes], list[str]], *fields: str) -> dict[str, int]:
        """The first `size` entries of a file of counts, or the most frequent in the training examples kept."""
        path = self.root / file
        if path.is_file():
            counted = _counts(path)
            return {key: place for place, key in enumerate(list(counted)[:size])}
        counts: Counter[str] = Counter()
        for client, which, _ in self.train:
            for field in fields:
                for text in self.train_file.texts(client, field, which):
                    counts.update(split(text))
        return most_common(counts, size)

    def dataset(
        self,
        name: str,
        encode: Callable[[_Clients, Choice], Examples],
        class_names: tuple[str, ...] = (),
    ) -> Dataset:
        names = self.train_file.names
        return Dataset(
            name=name,
            train=encode(self.train_file, self.train),
            test=encode(self.test_file, self.test),
            client=self.train_file.keys_among(names, _kept(self.train, len(names))),
            client_names=names,
            test_client=self.test_file.keys_among(names, _kept(self.test, len(self.test_file.names))),
            class_names=class_names,
        )


def _first(sizes: Integers, limit: int | None) -> Iterator[tuple[int, Rows, int]]:
    """Every client's first `limit` examples."""
    for client, size in enumerate(sizes):
        count = int(size) if limit is None else min(int(size), limit)
        yield client, slice(0, count), count


def _spread(sizes: Integers, limit: int | None) -> Iterator[tuple[int, Rows, int]]:
    """`limit` examples at equal distances over all clients' examples."""
    total = int(sizes.sum())
    if limit is None or limit >= total:
        yield from _first(sizes, None)
        return
    chosen = np.arange(limit, dtype=np.int64) * total // limit
    ends = np.cumsum(sizes)
    owners = np.searchsorted(ends, chosen, side="right")
    clients, begins = np.unique(owners, return_index=True)
    for client, own in zip(clients, np.split(chosen, begins[1:]), strict=True):
        yield int(client), own - (ends[client] - sizes[client]), len(own)


def _kept(chosen: Choice, clients: int) -> Integers:
    """How many examples of each client are kept, (clients,) int64."""
    counts = np.zeros(clients, dtype=np.int64)
    for client, _, count in chosen:
        counts[client] = count
    return counts


def _counts(path: Path) -> dict[str, int]:
    """A file of counts, most frequent first: a json dictionary, or lines of a key and its count."""
    expected = "a json dictionary of counts, or lines of a word and its count"
    try:
        text = path.read_text(encoding="utf-8")
        if text.lstrip().startswith("{"):
            return {str(key): int(count) for key, count in json.loads(text).items()}
        return {key: int(count) for key, count in (line.rsplit(maxsplit=1) for line in text.splitlines() if line)}
    except (ValueError, TypeError) as error:
        raise DataError(
            path, f"is truncated or not as expected ({error})", expected, _SOURCE.format(path.name)
        ) from error


def _words(text: bytes) -> list[str]:
    return text.decode("utf-8", errors="replace").split()


def _tags(text: bytes) -> list[str]:
    return [tag for tag in text.decode("utf-8", errors="replace").split("|") if tag]
