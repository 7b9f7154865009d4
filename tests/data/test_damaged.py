"""Whatever is wrong with a file, its reader says so in one sentence that names it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastfed as ff
from fastfed.data import DataError
from fastfed.data.errors import reading
from fastfed.data.loaders.stackexchange import _plain

from .test_stackexchange import row, written

DEEP = "[" * 100_000


def partition(path: Path, header: str) -> None:
    bytes_of = np.frombuffer(header.encode(), dtype=np.uint8)
    with path.open("wb") as file:
        np.savez(file, rows=np.arange(3), offsets=np.array([0, 3]), header=bytes_of)


def deep_partition(folder: Path) -> Any:
    partition(folder / "p.npz", DEEP)
    return ff.data.load_partition(ff.data.digits(), folder / "p.npz")


def odd_partition(folder: Path) -> Any:
    header = {"format": "fastfed partition 1", "name": "a", "examples": 1442, "test_examples": None}
    partition(folder / "p.npz", json.dumps({**header, "client_names": [], "fingerprint": 7}))
    return ff.data.load_partition(ff.data.digits(), folder / "p.npz")


def deep_store(folder: Path) -> Any:
    (folder / "store.json").write_text(DEEP)
    return ff.data.open_store(folder)


def deep_leaf(folder: Path) -> Any:
    (folder / "train").mkdir()
    (folder / "train" / "p.json").write_text(DEEP)
    return ff.data.leaf(folder)


def unhashable_leaf(folder: Path) -> Any:
    (folder / "train").mkdir()
    (folder / "train" / "p.json").write_text('{"users": [[]], "num_samples": [1], "user_data": {}}')
    return ff.data.leaf(folder)


def question(folder: Path, **changed: str) -> Any:
    written(folder, row(1, **changed), name="p-Posts.xml")
    return ff.data.stack_exchange(folder)


@pytest.mark.parametrize(
    ("read", "file", "problem"),
    [
        (deep_partition, "p.npz", "cannot be read (it is nested too deeply)"),
        (odd_partition, "p.npz", "cannot be read (AttributeError: 'int' object has no attribute 'startswith')"),
        (deep_store, "store.json", "is no JSON (maximum recursion depth exceeded"),
        (deep_leaf, "train/p.json", "cannot be read (it is nested too deeply)"),
        (unhashable_leaf, "train/p.json", "cannot be read (TypeError: unhashable type: 'list')"),
        (
            lambda folder: question(folder, Id="9" * 5000),
            "p-Posts.xml",
            "cannot be read (ValueError: ",
        ),
        (
            lambda folder: question(folder, Body=f"&#{'9' * 5000};"),
            "p-Posts.xml",
            "cannot be read (ValueError: ",
        ),
    ],
)
def test_damage_is_one_sentence(read: Callable[[Path], Any], file: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"^{re.escape(str(tmp_path / file))}: {re.escape(problem)}.*[.] Expected "):
        read(tmp_path)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (IndexError("list index out of range"), "IndexError: list index out of range"),
        (MemoryError(), "it asks for more memory than there is"),
        (AssertionError(), "AssertionError"),
    ],
)
def test_any_exception_names_the_file(error: Exception, told: str) -> None:
    with pytest.raises(DataError) as found, reading("a/b.bin", "a file", "its home"):
        raise error
    assert str(found.value) == f"a/b.bin: cannot be read ({told}). Expected a file. Where to get it: its home"
    assert found.value.__cause__ is error


def test_what_is_no_fault_of_the_file_is_not_put_down_to_it() -> None:
    for error in (ImportError("h5py is missing"), KeyboardInterrupt()):
        with pytest.raises(type(error)), reading("a", "b", "c"):
            raise error


@pytest.mark.parametrize(
    ("html", "words"),
    [
        ("<p>Don't <em>stop</em></p><li>one</li><li>two &amp; 3", ["Don't", "stop", "one", "two", "&", "3"]),
        ("a < b <a title=\"x > y\" href='>'>c</a>&lt;d&gt;", ["a", "<", "b", "c", "<d>"]),
        ("a<!-- b > <i> -->c<!-- never", ["a", "c<!--", "never"]),
        ("one<br/>two<!DOCTYPE x>three<?pi?>four<", ["one", "two", "three", "four<"]),
    ],
)
def test_html_without_its_tags(html: str, words: list[str]) -> None:
    assert _plain(html).split() == words


@pytest.mark.parametrize("piece", ["<a ", "<!--", '<a "', "<a '\"", "</", "&", "<a b="])
def test_html_that_never_ends_takes_no_longer_than_its_length(piece: str) -> None:
    """Some 200,000 pieces: what looks at the rest for each of them would take minutes."""
    assert len(_plain(piece * 200_000)) >= 200_000
