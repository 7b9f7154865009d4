"""Who has which rows, kept in a file: a partition that is drawn once and used again, or passed on without the data."""

from __future__ import annotations

import json
import math
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..saved.recipe import remembered
from .dataset import Dataset, Federated, has_fingerprint
from .errors import DEEPEST, DataError, reading

_FORMAT = "fastfed partition 1"
_EXPECTED = "a partition that save_partition wrote"
_SOURCE = "deal the data again, for instance with fastfed.data.dirichlet, and save_partition"
_ARRAYS = ("rows", "offsets", "test_rows", "test_offsets", "validation_rows")


def save_partition(fed: Federated, path: str | os.PathLike[str]) -> None:
    """Writes who has which rows, and the names of clients, to the file `path`: whole or not at all.

    The examples are not in it, only what tells them from others. It is a numpy archive (.npz) of int64 arrays, and of
    a header in JSON as bytes.
    """
    if not isinstance(fed, Federated):
        raise TypeError(f"fed: must be a Federated, whose clients have rows; got {type(fed).__name__}")
    header = {
        "format": _FORMAT,
        "name": fed.name,
        "examples": len(fed.examples),
        "test_examples": None if fed.test is None else len(fed.test),
        "fingerprint": fed.fingerprint(),
        "client_names": fed.client_names,
    }
    arrays = {name: getattr(fed, name).numpy() for name in _ARRAYS if getattr(fed, name) is not None}
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:  # by a file: given a name, numpy would add its own suffix
            np.savez_compressed(file, **arrays)
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)


@remembered
def load_partition(data: Dataset, path: str | os.PathLike[str]) -> Federated:
    """The clients that `save_partition` wrote to `path`, with the rows of `data`: the data that was dealt, no other."""
    with reading(path, _EXPECTED, _SOURCE):
        return _dealt(data, Path(path))


def _dealt(data: Dataset, path: Path) -> Federated:
    header, arrays = _read(path)
    tests = None if data.test is None else len(data.test)
    for name, found in (("examples", len(data.train)), ("test_examples", tests)):
        if header["test_examples"] is None and name == "test_examples":
            continue  # the partition says nothing of test rows
        if header[name] != found:
            what = name.replace("_", " ")
            raise _refusal(path, f"it deals {header[name]} {what}, {data.name} has {found or 'no'}")
    try:
        fed = Federated(
            name=data.name,
            examples=data.train,
            test=data.test,
            client_names=tuple(header["client_names"]),
            class_names=data.class_names,
            uncounted=data.uncounted,
            **arrays,
        )
    except (TypeError, ValueError) as error:
        raise _refusal(path, f"it is damaged ({error})") from error
    if not has_fingerprint(fed, header["fingerprint"]):
        raise _refusal(path, f"it deals {header['name']} with other contents than this {data.name}, or was changed")
    return fed


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The header, and the arrays as tensors."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            for info in archive.zip.infolist():
                _check_size(archive.zip, info)
            header = json.loads(archive["header"].tobytes())
            found = {name: torch.from_numpy(archive[name]) for name in _ARRAYS if name in archive}
    except FileNotFoundError as error:
        raise _refusal(path, "there is no such file") from error
    except (OSError, ValueError, KeyError, AttributeError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise _refusal(path, f"cannot be read ({error})") from error
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise _refusal(path, "is no partition")
    missing = {"examples", "test_examples", "fingerprint", "client_names", "name"} - set(header)
    if missing or not {"rows", "offsets"} <= set(found):
        raise _refusal(path, f"is incomplete: {', '.join(sorted(missing)) or 'rows or offsets'} missing")
    return header, found


def _check_size(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
    """Refuses an array that is larger than what there is of it, before it is given the memory."""
    with archive.open(info) as stream:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
    promised = math.prod(shape) * dtype.itemsize
    if promised > info.file_size or info.file_size > DEEPEST * (info.compress_size + 1):
        raise ValueError(f"{info.filename} says that it has {promised:,} bytes, in {info.compress_size:,} of the file")


def _refusal(path: str | os.PathLike[str], problem: str) -> DataError:
    return DataError(Path(path), problem, _EXPECTED, _SOURCE)
