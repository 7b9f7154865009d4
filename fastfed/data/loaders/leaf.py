"""LEAF's json files: vectors, images or 80-character windows of text, already dealt to users.

A file is ``{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ...losses import IGNORED
from ...saved.recipe import remembered
from ..dataset import Dataset
from ..errors import DataError, reading
from ..store import Examples
from .text import character_tokens

_SOURCE = "https://github.com/TalwalkarLab/leaf, data/<name>/preprocess.sh"
_EXPECTED = (
    "LEAF json with users, num_samples and user_data, x as equally long lists of numbers with whole labels y (femnist, "
    "synthetic) or as equally long strings with the next character y (shakespeare)"
)

_MOST = np.iinfo(np.int32).max  # of a label: no data set has so many classes

_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")

Kind = Literal["numbers", "text"]
Array = NDArray[Any]


@dataclass(frozen=True)
class _User:
    """The examples of one user: x (n, features) float32 and y (n,) int64, or x and y tokens (n, length) int64."""

    name: str
    kind: Kind
    x: Array
    y: Array


@remembered
def leaf(root: str | PathLike[str], shape: Sequence[int] | None = None) -> Dataset:
    """A LEAF data set from ``root/train/*.json`` and ``root/test/*.json``; a client is a LEAF user.

    Numbers (femnist, synthetic): inputs float32 (examples, features), or (examples, *shape) where `shape` is given, for
    example (1, 28, 28); targets int64 (examples,).

    Text (shakespeare): inputs int64 tokens (examples, 80), the tokens of ``shakespeare_plays``; targets int64
    (examples, 80), `IGNORED` (-100) but for the last, which is the next character: LEAF predicts that one only.

    Where some test user has no training examples (LEAF's split by user), `test_client` is None. Files of sent140,
    reddit and celeba, whose examples are neither, are refused.
    """
    train = _read(Path(root) / "train")
    test = _read(Path(root) / "test")
    kind, width = train[0].kind, train[0].x.shape[1]
    for user in (*train, *test):
        if (user.kind, user.x.shape[1]) != (kind, width):
            problem = f"mixes examples: {user.name} has {user.kind} of {user.x.shape[1]}, {train[0].name} {kind} of"
            raise DataError(Path(root), f"{problem} {width}", _EXPECTED, _SOURCE)
    wanted = _shape(shape, kind, width)
    places = {user.name: place for place, user in enumerate(train)}
    known = all(user.name in places for user in test)
    return Dataset(
        name=f"leaf({Path(root).name})",
        train=_examples(train, wanted),
        test=_examples(test, wanted),
        client=_clients(train, places),
        client_names=tuple(places),
        test_client=_clients(test, places) if known else None,
    )


def _examples(users: list[_User], shape: tuple[int, ...]) -> Examples:
    inputs = np.concatenate([user.x for user in users])
    targets = np.concatenate([user.y for user in users])
    return Examples(torch.from_numpy(inputs).reshape(-1, *shape), torch.from_numpy(targets))


def _clients(users: list[_User], places: dict[str, int]) -> torch.Tensor:
    return torch.from_numpy(np.repeat([places[user.name] for user in users], [len(user.y) for user in users]))


def _shape(shape: Sequence[int] | None, kind: Kind, width: int) -> tuple[int, ...]:
    """The shape of one input."""
    if shape is None:
        return (width,)
    if kind == "text":
        raise ValueError(f"shape: must be None for text, got {tuple(shape)}")
    if math.prod(shape) != width or min(shape, default=0) < 1:
        raise ValueError(f"shape: must hold {width} numbers, as the examples do, got {tuple(shape)}")
    return tuple(shape)


def _read(directory: Path) -> list[_User]:
    """The users of all json files of a directory that have examples, file by file in alphabetical order."""
    if not directory.is_dir():
        raise DataError(directory, "does not exist", f"a directory of {_EXPECTED}", _SOURCE)
    files = sorted(directory.glob("*.json"))
    users: dict[str, _User] = {}
    for file in files:
        with reading(file, _EXPECTED, _SOURCE):
            found = _read_file(file)
        for user in found:
            if user.name in users:
                raise DataError(file, f"has the user {user.name!r}, whom another file has too", _EXPECTED, _SOURCE)
            users[user.name] = user
    if not users:
        raise DataError(directory, f"holds {len(files)} .json files and no example", _EXPECTED, _SOURCE)
    return list(users.values())


def _read_file(path: Path) -> list[_User]:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:  # JSON that ends early, and bytes that are no text
        raise DataError(path, f"is truncated or no json ({error})", _EXPECTED, _SOURCE) from error
    names, counts, data = (_member(path, content, key) for key in ("users", "num_samples", "user_data"))
    if not isinstance(names, list) or not isinstance(counts, list) or len(names) != len(counts):
        raise DataError(path, "has not one entry of num_samples per user", _EXPECTED, _SOURCE)
    return [user for name, count in zip(names, counts, strict=True) if (user := _user(path, data, name, count))]


def _member(path: Path, value: Any, key: str) -> Any:
    if not isinstance(value, dict) or key not in value:
        raise DataError(path, f"has no {key!r}", _EXPECTED, _SOURCE)
    return value[key]


def _user(path: Path, data: Any, name: str, count: int) -> _User | None:
    """The examples of a user, None if there is none."""
    own = _member(path, data, name)
    x, y = _member(path, own, "x"), _member(path, own, "y")
    if not isinstance(x, list) or not isinstance(y, list) or not len(x) == len(y) == count:
        held = [len(part) if isinstance(part, list) else type(part).__name__ for part in (x, y)]
        problem = f"gives the user {name!r} {held[0]} x and {held[1]} y where num_samples says {count}"
        raise DataError(path, problem, _EXPECTED, _SOURCE)
    if not x:
        return None
    kind: Kind = "text" if isinstance(x[0], str) else "numbers"
    parse = _windows if kind == "text" else _numbers
    return _User(name, kind, *parse(path, name, x, y))


def _numbers(path: Path, name: str, x: list[Any], y: list[Any]) -> tuple[Array, Array]:
    """Vectors and labels: (n, features) float32, (n,) int64."""
    try:
        inputs, labels = np.array(x), np.array(y)
    except ValueError as error:  # lists of unequal length
        raise _unusable(path, name, "x of unequal lengths") from error
    if inputs.ndim != 2 or inputs.dtype.kind not in "fiu":
        raise _unusable(path, name, "x that are no lists of numbers (sent140 and reddit are not supported)")
    if not (np.abs(inputs) <= np.finfo(np.float32).max).all():  # NaN is not, either
        raise _unusable(path, name, "x that are not finite in float32")
    whole = labels.ndim == 1 and labels.dtype.kind in "fiu" and (labels == np.floor(labels)).all()
    if not whole or not ((labels >= 0) & (labels <= _MOST)).all():
        raise _unusable(path, name, f"y that are no whole numbers from 0 to {_MOST}")
    return inputs.astype(np.float32), labels.astype(np.int64)


def _windows(path: Path, name: str, x: list[Any], y: list[Any]) -> tuple[Array, Array]:
    """Text before a character and that character: tokens (n, length) int64, targets (n, length) int64."""
    if not all(isinstance(one, str) for one in (*x, *y)):
        raise _unusable(path, name, "names or text as x but no characters as y (celeba is not supported)")
    windows, following = [_one_byte_each(window) for window in x], [_one_byte_each(one) for one in y]
    if any(len(one) != 1 for one in following):
        raise _unusable(path, name, "y that are no single characters")
    length = len(windows[0])
    if length == 0 or any(len(window) != length for window in windows):
        raise _unusable(path, name, "x that are strings of unequal lengths, or empty")
    targets = np.full((len(x), length), IGNORED, dtype=np.int64)
    targets[:, -1] = character_tokens(b"".join(following))
    return character_tokens(b"".join(windows)).reshape(len(x), length), targets


def _one_byte_each(text: str) -> bytes:
    """ASCII; what ASCII lacks becomes DEL, which is unknown to the vocabulary."""
    return (text if text.isascii() else _BEYOND_ASCII.sub("\x7f", text)).encode("ascii")


def _unusable(path: Path, name: str, what: str) -> DataError:
    return DataError(path, f"gives the user {name!r} {what}", _EXPECTED, _SOURCE)
