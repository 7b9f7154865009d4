"""Texts with one topic each, from CSV files of rows class, title, text: AG News and DBpedia."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ...saved.recipe import remembered
from ..arguments import check_whole
from ..dataset import Dataset
from ..errors import DataError, reading
from ..store import Examples, Inputs
from .text import PAD, SparseRows, Tokens, most_common

_SOURCE = "the character-level classification data sets of Zhang, Zhao and LeCun (2015), as train.csv and test.csv"
_EXPECTED = "train.csv and test.csv, each row a class counted from 1, a title and a text"
_WORD = re.compile(r"\w+(?:'\w+)*")
_COLUMNS = 3

_AG_NEWS = ("World", "Sports", "Business", "Sci/Tech")
_DBPEDIA = (
    "Company", "EducationalInstitution", "Artist", "Athlete", "OfficeHolder", "MeanOfTransportation", "Building",
    "NaturalPlace", "Village", "Animal", "Plant", "Album", "Film", "WrittenWork",
)  # fmt: skip

Root = str | PathLike[str]


class _Text(NamedTuple):
    label: int
    words: list[str]


@remembered
def ag_news(root: Root, words: int = 10000, length: int = 64, bag: bool = False) -> Dataset:
    """AG News: 120,000 headlines and their first sentences for training, 7,600 for testing, of 4 topics.

    ``root/train.csv`` and ``root/test.csv`` have rows of a class from 1, a title and a text; a row of names above them
    is left out. Inputs are int64 tokens (examples, length): the `words` most frequent in training count from 1, words +
    1 is any other, longer texts are cut and shorter ones padded with 0, so that a model's vocabulary is words + 4, as
    for other texts. With `bag`, they are bags of words `Sparse` (examples, words), frequencies that sum to 1. Targets
    are int64 (examples,). It knows no clients: deal it by a partition.
    """
    return _topics("ag_news", _AG_NEWS, Path(root), words, length, bag)


@remembered
def dbpedia(root: Root, words: int = 10000, length: int = 64, bag: bool = False) -> Dataset:
    """DBpedia's titles and abstracts: 560,000 for training, 70,000 for testing, of 14 classes; as `ag_news` else."""
    return _topics("dbpedia", _DBPEDIA, Path(root), words, length, bag)


def _topics(name: str, classes: tuple[str, ...], root: Path, words: int, length: int, bag: bool) -> Dataset:
    check_whole("words", words, least=1)
    check_whole("length", length, least=1)
    train, test = (_read(root / file, len(classes)) for file in ("train.csv", "test.csv"))
    places = most_common(Counter(word for text in train for word in text.words), words)

    def examples(texts: list[_Text]) -> Examples:
        inputs = _bags(texts, places, words) if bag else _tokens(texts, places, words, length)
        return Examples(inputs, torch.tensor([text.label for text in texts]))

    return Dataset(name, examples(train), examples(test), class_names=classes)


def _tokens(texts: list[_Text], places: dict[str, int], words: int, length: int) -> Inputs:
    rows, unknown = np.full((len(texts), length), PAD, dtype=np.int64), Tokens(words).unknown
    for row, text in zip(rows, texts, strict=True):
        kept = [places.get(word, unknown - 1) + 1 for word in text.words[:length]]
        row[: len(kept)] = kept
    return torch.from_numpy(rows)


def _bags(texts: list[_Text], places: dict[str, int], words: int) -> Inputs:
    rows = SparseRows(words)
    for text in texts:
        rows.add_words(text.words, places)
    return rows.sparse()


def _read(path: Path, classes: int) -> list[_Text]:
    """The texts of a file, its title before the rest, in lower case."""
    with reading(path, _EXPECTED, _SOURCE):
        return list(_texts(path, classes))


def _texts(path: Path, classes: int) -> Iterator[_Text]:
    if not path.is_file():
        raise DataError(path, "there is no such file", _EXPECTED, _SOURCE)
    found = False
    with path.open(encoding="utf-8", newline="") as lines:
        try:
            for number, row in enumerate(csv.reader(lines), 1):
                if number == 1 and row and not row[0].strip().isdigit():  # the names of the columns
                    continue
                found = True
                yield _text(path, number, row, classes)
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(path, f"is no CSV file in UTF-8 ({error})", _EXPECTED, _SOURCE) from error
    if not found:
        raise DataError(path, "holds no text", _EXPECTED, _SOURCE)


def _text(path: Path, number: int, row: list[str], classes: int) -> _Text:
    label = row[0].strip() if row else ""
    if len(row) != _COLUMNS or not label.isdigit() or not 1 <= int(label) <= classes:
        problem = f"row {number} has not a class of 1 to {classes}, a title and a text: {','.join(row)[:60]!r}"
        raise DataError(path, problem, _EXPECTED, _SOURCE)
    return _Text(int(label) - 1, _WORD.findall(f"{row[1]} {row[2]}".replace("\\n", " ").lower()))
