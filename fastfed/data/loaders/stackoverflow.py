"""Stack Overflow as TensorFlow Federated has it, in the files of `tff_file`: next words, and tags.

AFO is the paper "Adaptive Federated Optimization".
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ...saved.recipe import remembered
from ..arguments import check_whole
from ..dataset import Dataset
from ..errors import DataError, reading
from ..store import Examples
from .text import (
    PAD,
    Integers,
    Labels,
    SparseRows,
    Tokens,
    check_labels,
    fill_words,
    most_common,
    next_token_examples,
    tags_as,
)
from .tff_file import SOURCE, TEXT, ClientFile, Field, Root, Rows

Chosen = list[tuple[int, Rows, int]]  # clients, which of their examples, and how many those are


@remembered
def stack_overflow_nwp(
    root: Root,
    words: int = 10000,
    length: int = 20,
    clients: int | None = None,
    examples: int | None = 1000,
    test_examples: int | None = 10000,
    seed: int | None = 0,
) -> Dataset:
    """Next-word prediction on Stack Overflow: ``stackoverflow_train.h5`` and ``stackoverflow_test.h5``.

    Inputs and targets int64 (examples, length): sentences cut to `length` words; tokens are 0 for padding, 1 ... words
    for the words, then unknown, begin and end, words + 4 in all; targets are `IGNORED` (-100) where padded. Accuracy
    counts the words only (AFO, FATHOM).

    A client keeps its first `examples` sentences (AFO: 1000; None: all). `clients` keeps so many, of 342,477: all of
    them need tens of gigabytes. They are drawn at random by `seed` (None: the first by their names). `test_examples`
    are spread evenly over the test file (None: all). The words are the first of ``stackoverflow.word_count``, or, where
    that is absent, the most frequent ones kept.
    """
    check_whole("words", words, least=1)
    check_whole("length", length, least=1)

    with _StackOverflow(root, ("tokens",), clients, examples, test_examples, seed) as data:
        vocabulary = data.vocabulary("stackoverflow.word_count", words, _words, "tokens")

        def encode(source: ClientFile, chosen: Chosen) -> Examples:
            rows = np.full((sum(count for *_, count in chosen), length + 1), PAD, dtype=np.int64)
            empty = iter(rows)
            for (texts,) in source.texts(_rows(chosen), "tokens"):
                for text in texts:
                    fill_words(next(empty), _words(text), vocabulary, Tokens(words))
            return next_token_examples(rows)

        return data.dataset("stack_overflow_nwp", encode, uncounted=Tokens(words).special)


@remembered
def stack_overflow_tags(
    root: Root,
    words: int = 10000,
    tags: int = 500,
    clients: int | None = None,
    examples: int | None = 500,
    test_examples: int | None = 10000,
    count_unknown: bool = False,
    labels: Labels = "all",
    seed: int | None = 0,
) -> Dataset:
    """Tag prediction on Stack Overflow: ``stackoverflow_train.h5`` and ``stackoverflow_test.h5``.

    Inputs are bags of the words of text and title, `Sparse` (examples, words), as frequencies that sum to 1 over the
    known words; with `count_unknown` over all words, as in the code of AFO's authors. Targets `Sparse` (examples, tags)
    of ones; with `labels` "one" int64 (examples,), the most frequent tag of each, for cross entropy and accuracy as in
    FedAda2: `IGNORED` (-100) where a question has no known tag.

    A client keeps its first `examples` (500 in that code; None: all); `clients`, `seed` and `test_examples` are those
    of `stack_overflow_nwp`. Words and tags are the first of ``stackoverflow.word_count`` and
    ``stackoverflow.tag_count``, or, where a file is absent, the most frequent ones kept. `class_names` are the known
    tags.
    """
    check_whole("words", words, least=1)
    check_whole("tags", tags, least=1)
    check_labels(labels)

    with _StackOverflow(root, ("tokens", "title", "tags"), clients, examples, test_examples, seed) as data:
        word_places = data.vocabulary("stackoverflow.word_count", words, _words, "tokens", "title")
        tag_places = data.vocabulary("stackoverflow.tag_count", tags, _tags, "tags")

        def encode(source: ClientFile, chosen: Chosen) -> Examples:
            bags, tag_rows = SparseRows(words), SparseRows(tags)
            for columns in source.texts(_rows(chosen), "tokens", "title", "tags"):
                for text, title, tagged in zip(*columns, strict=True):
                    bags.add_words(_words(text) + _words(title), word_places, count_unknown)
                    tag_rows.add_tags(_tags(tagged), tag_places)
            return Examples(bags.sparse(), tags_as(labels, tag_rows))

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
        seed: int | None,
    ) -> None:
        for name, value in (("clients", clients), ("examples", examples), ("test_examples", test_examples)):
            if value is not None:
                check_whole(name, value, least=1)
        self.root = Path(root)
        wanted = {field: Field(TEXT) for field in fields}
        self.train_file = ClientFile(self.root / "stackoverflow_train.h5", wanted, "stackoverflow", clients, seed)
        try:
            self.test_file = ClientFile(self.root / "stackoverflow_test.h5", wanted, "stackoverflow")
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
        for columns in self.train_file.texts(_rows(self.train), *fields):
            for text in chain(*columns):
                counts.update(split(text))
        return most_common(counts, size)

    def dataset(
        self,
        name: str,
        encode: Callable[[ClientFile, Chosen], Examples],
        class_names: tuple[str, ...] = (),
        uncounted: tuple[int, ...] = (),
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
            uncounted=uncounted,
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


def _rows(chosen: Chosen) -> Iterator[tuple[int, Rows]]:
    return ((client, which) for client, which, _ in chosen)


def _kept(chosen: Chosen, clients: int) -> Integers:
    """How many examples of each client are kept, (clients,) int64."""
    counts = np.zeros(clients, dtype=np.int64)
    for client, _, count in chosen:
        counts[client] = count
    return counts


def _counts(path: Path) -> dict[str, int]:
    """A file of counts, most frequent first: a json dictionary, or lines of a key and its count."""
    expected = "a json dictionary of counts, or lines of a word and its count"
    source = SOURCE.format(path.name)
    with reading(path, expected, source):
        try:
            text = path.read_text(encoding="utf-8")
            if text.lstrip().startswith("{"):
                return {str(key): int(count) for key, count in json.loads(text).items()}
            return {key: int(count) for key, count in (line.rsplit(maxsplit=1) for line in text.splitlines() if line)}
        except (ValueError, TypeError) as error:
            raise DataError(path, f"is truncated or not as expected ({error})", expected, source) from error


def _words(text: bytes) -> list[str]:
    return text.decode("utf-8", errors="replace").split()


def _tags(text: bytes) -> list[str]:
    return [tag for tag in text.decode("utf-8", errors="replace").split("|") if tag]
