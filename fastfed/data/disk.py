"""The flat store on disk, read by memory mapping: data that is slow to parse, or larger than memory, is converted once.

A store is a directory: ``store.json``, which says what is there, and one ``.npy`` file per array, named for what it is
(``train.inputs.bytes.npy``, ``train.targets.npy``, ``rows.npy`` ...). Arrays have the types of the store in memory:
images are bytes, bags of words are sparse rows.

Whatever is changed is refused: ``store.json`` has the digest of every array, and one of itself. An array is read for
that when the store is first opened; ``checked.json`` beside it then says which file was found to be as it should.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..files import write_whole
from ..saved.recipe import remembered
from .augment import Augment
from .dataset import Federated, has_fingerprint
from .errors import DataError, reading
from .fingerprint import digest_of, remember
from .store import Examples, Inputs, Pixels, Sparse

_FORMAT, _FIRST_FORMAT = "fastfed store 2", "fastfed store 1"
_HEADER, _CHECKED = "store.json", "checked.json"
_SETTLED = 2.0  # seconds after which another change of a file would give it another time, whatever the file system
_EXPECTED = "a directory that save_store wrote"
_SOURCE = "convert the data again with fastfed.data.save_store"
_CHANGED = "its contents are not those that were saved"
_DEALS = ("rows", "offsets", "test_rows", "test_offsets", "validation_rows")
_SPARSE = ("starts", "columns", "values")


def save_store(fed: Federated, directory: str | os.PathLike[str]) -> None:
    """Writes examples, test examples, and who has which of them to a new `directory`: whole or not at all."""
    if not isinstance(fed, Federated):
        raise TypeError(f"fed: must be a Federated, whose examples are held; got {type(fed).__name__}")
    target = Path(directory)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"directory: {target} exists already; a store is written to a new one")
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    unfinished.mkdir()
    try:
        _write(fed, unfinished)
        os.replace(unfinished, target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@remembered
def open_store(directory: str | os.PathLike[str]) -> Federated:
    """The clients and examples that `save_store` wrote. Arrays are memory-mapped: read from disk when they are used.

    What is written to these tensors stays in this process; the files are never changed.
    """
    folder = Path(directory)
    with reading(folder, _EXPECTED, _SOURCE):
        return _opened(folder)


def _opened(folder: Path) -> Federated:
    header = _read_header(folder)
    try:
        arrays = _Arrays(folder, header.get("digests"))
        deals: dict[str, Any] = {name: arrays.open(name) for name in header["deals"]}
        fed = Federated(
            name=header["name"],
            examples=_open_examples(arrays, "train", header["train"]),
            test=None if header["test"] is None else _open_examples(arrays, "test", header["test"]),
            client_names=tuple(header["client_names"]),
            class_names=tuple(header["class_names"]),
            uncounted=tuple(header.get("uncounted", ())),  # which stores of before do not say
            **deals,
        )
        is_as_saved = header["format"] == _FORMAT or has_fingerprint(fed, header["fingerprint"])
    except DataError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _refusal(folder, f"its parts do not fit together ({error})") from error
    if not is_as_saved:
        raise _refusal(folder, _CHANGED)
    arrays.note()
    return fed


# ---- writing --------------------------------------------------------------------------------------------------------


def _write(fed: Federated, folder: Path) -> None:
    deals = [name for name in _DEALS if getattr(fed, name) is not None]
    digests = {name: _save(folder, name, getattr(fed, name)) for name in deals}
    header = {
        "format": _FORMAT,
        "name": fed.name,
        "train": _write_examples(fed.examples, folder, "train", digests),
        "test": None if fed.test is None else _write_examples(fed.test, folder, "test", digests),
        "deals": deals,
        "digests": digests,
        "class_names": fed.class_names,
        "uncounted": fed.uncounted,
        "client_names": fed.client_names,
    }
    text = json.dumps({"seal": _seal(header), **header}, indent=1)
    (folder / _HEADER).write_text(text, encoding="utf-8")


def _seal(header: Mapping[str, Any]) -> str:
    """The digest of all that the header says."""
    return hashlib.blake2b(json.dumps(header, sort_keys=True).encode(), digest_size=16).hexdigest()


def _write_examples(examples: Examples, folder: Path, part: str, digests: dict[str, str]) -> dict[str, Any]:
    """Writes the arrays of inputs and targets, and adds their digests; what the header must say to open them."""
    kinds = {"inputs": _write_column(examples.inputs, folder, f"{part}.inputs", digests)}
    if examples.targets is examples.inputs:  # an autoencoder's
        return {**kinds, "targets": {"kind": "inputs"}}
    return {**kinds, "targets": _write_column(examples.targets, folder, f"{part}.targets", digests)}


def _write_column(column: Inputs, folder: Path, stem: str, digests: dict[str, str]) -> dict[str, Any]:
    if isinstance(column, Pixels):
        digests[f"{stem}.bytes"] = _save(folder, f"{stem}.bytes", column.bytes)
        augment = {} if column.augment is None else {"augment": asdict(column.augment)}
        return {"kind": "pixels", "mean": column.mean, "std": column.std, **augment}
    if isinstance(column, Sparse):
        for name in _SPARSE:
            digests[f"{stem}.{name}"] = _save(folder, f"{stem}.{name}", getattr(column, name))
        return {"kind": "sparse", "width": column.width}
    digests[stem] = _save(folder, stem, column)
    return {"kind": "tensor"}


def _save(folder: Path, name: str, tensor: Tensor) -> str:
    """Writes an array; its digest."""
    np.save(folder / f"{name}.npy", tensor.contiguous().numpy(), allow_pickle=False)
    return digest_of(tensor)


# ---- reading --------------------------------------------------------------------------------------------------------


def _read_header(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise _refusal(folder, "there is no such directory")
    try:
        header = json.loads((folder / _HEADER).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise _refusal(folder, f"has no {_HEADER}") from error
    except (ValueError, RecursionError) as error:
        raise _refusal(folder / _HEADER, f"is no JSON ({error})") from error
    if not isinstance(header, dict) or header.get("format") not in (_FORMAT, _FIRST_FORMAT):
        raise _refusal(folder / _HEADER, f"does not say {_FORMAT!r}")
    if header["format"] == _FORMAT and header.pop("seal", None) != _seal(header):
        raise _refusal(folder / _HEADER, _CHANGED)
    return header


class _Arrays:
    """The arrays of a store, each checked against its digest (of the first format: not yet) when it is opened."""

    def __init__(self, folder: Path, digests: Mapping[str, str] | None) -> None:
        self._folder, self._digests = folder, digests
        self._checked = {} if digests is None else _read_checked(folder)
        self._found: dict[str, list[Any]] = {}

    def open(self, name: str) -> Tensor:
        """An array as a tensor over the mapped file, copy-on-write: torch has no tensors that cannot be written to."""
        path = self._folder / f"{name}.npy"
        try:
            state = _state(path)
            tensor = torch.from_numpy(np.load(path, mmap_mode="c", allow_pickle=False))
        except FileNotFoundError as error:
            raise _refusal(path, "there is no such file") from error
        except (OSError, ValueError, EOFError, TypeError) as error:
            raise _refusal(path, f"cannot be mapped ({error})") from error
        if self._digests is not None:
            wanted = self._digests[name]
            if self._checked.get(name) != [*state, wanted] and digest_of(tensor) != wanted:
                raise _refusal(path, _CHANGED)
            remember(tensor, wanted)
            if time.time() - max(state[1:3]) / 1e9 > _SETTLED and _state(path) == state:
                self._found[name] = [*state, wanted]
        return tensor

    def note(self) -> None:
        """Keeps which files were found to be as they should, where the directory can be written to."""
        if self._found != self._checked:
            with suppress(OSError):
                write_whole(self._folder / _CHECKED, json.dumps(self._found, indent=1))


def _state(path: Path) -> list[int]:
    """What changes with a file: its size, and when it was written, or its name given to another file."""
    found = path.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _read_checked(folder: Path) -> dict[str, Any]:
    """What an earlier opening found; nothing, where that cannot be read."""
    try:
        found = json.loads((folder / _CHECKED).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _open_examples(arrays: _Arrays, part: str, header: dict[str, Any]) -> Examples:
    inputs = _open_column(arrays, f"{part}.inputs", header["inputs"])
    if header["targets"]["kind"] == "inputs":
        targets = inputs
    else:
        targets = _open_column(arrays, f"{part}.targets", header["targets"])
    if isinstance(targets, Pixels):
        raise ValueError(f"the targets of {part} are images as bytes")
    return Examples(inputs, targets)


def _open_column(arrays: _Arrays, stem: str, header: dict[str, Any]) -> Inputs:
    kind = header["kind"]
    if kind == "pixels":
        augment = Augment(**header["augment"]) if "augment" in header else None
        return Pixels(arrays.open(f"{stem}.bytes"), tuple(header["mean"]), tuple(header["std"]), augment)
    if kind == "sparse":
        starts, columns, values = (arrays.open(f"{stem}.{name}") for name in _SPARSE)
        return Sparse(starts, columns, values, header["width"])
    if kind == "tensor":
        return arrays.open(stem)
    raise ValueError(f"{stem} is of a kind {kind!r}")


def _refusal(path: Path, problem: str) -> DataError:
    return DataError(path, problem, _EXPECTED, _SOURCE)
