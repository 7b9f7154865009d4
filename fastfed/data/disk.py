"""The flat store on disk, read by memory mapping: data that is slow to parse, or larger than memory, is converted once.

A store is a directory: ``store.json``, which says what is there, and one ``.npy`` file per array, named for what it is
(``train.inputs.bytes.npy``, ``train.targets.npy``, ``rows.npy`` ...). Arrays have the types of the store in memory:
images are bytes, bags of words are sparse rows.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..saved.recipe import remembered
from .augment import Augment
from .dataset import Federated
from .errors import DataError
from .store import Examples, Inputs, Pixels, Sparse

_FORMAT = "fastfed store 1"
_HEADER = "store.json"
_EXPECTED = "a directory that save_store wrote"
_SOURCE = "convert the data again with fastfed.data.save_store"
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
    header = _read_header(folder)
    try:
        deals: dict[str, Any] = {name: _open(folder / f"{name}.npy") for name in header["deals"]}
        fed = Federated(
            name=header["name"],
            examples=_open_examples(folder, "train", header["train"]),
            test=None if header["test"] is None else _open_examples(folder, "test", header["test"]),
            client_names=tuple(header["client_names"]),
            class_names=tuple(header["class_names"]),
            uncounted=tuple(header.get("uncounted", ())),  # which stores of before do not say
            **deals,
        )
        wanted = header["fingerprint"]
    except DataError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _refusal(folder, f"its parts do not fit together ({error})") from error
    if fed.fingerprint() != wanted:
        raise _refusal(folder, "its contents are not those that were saved")
    return fed


# ---- writing --------------------------------------------------------------------------------------------------------


def _write(fed: Federated, folder: Path) -> None:
    deals = [name for name in _DEALS if getattr(fed, name) is not None]
    for name in deals:
        _save(folder / f"{name}.npy", getattr(fed, name))
    header = {
        "format": _FORMAT,
        "name": fed.name,
        "train": _write_examples(fed.examples, folder, "train"),
        "test": None if fed.test is None else _write_examples(fed.test, folder, "test"),
        "deals": deals,
        "fingerprint": fed.fingerprint(),
        "class_names": fed.class_names,
        "uncounted": fed.uncounted,
        "client_names": fed.client_names,
    }
    (folder / _HEADER).write_text(json.dumps(header, indent=1), encoding="utf-8")


def _write_examples(examples: Examples, folder: Path, part: str) -> dict[str, Any]:
    """Writes the arrays of inputs and targets; what the header must say to open them."""
    kinds = {"inputs": _write_column(examples.inputs, folder, f"{part}.inputs")}
    if examples.targets is examples.inputs:  # an autoencoder's
        return {**kinds, "targets": {"kind": "inputs"}}
    return {**kinds, "targets": _write_column(examples.targets, folder, f"{part}.targets")}


def _write_column(column: Inputs, folder: Path, stem: str) -> dict[str, Any]:
    if isinstance(column, Pixels):
        _save(folder / f"{stem}.bytes.npy", column.bytes)
        augment = {} if column.augment is None else {"augment": asdict(column.augment)}
        return {"kind": "pixels", "mean": column.mean, "std": column.std, **augment}
    if isinstance(column, Sparse):
        for name in _SPARSE:
            _save(folder / f"{stem}.{name}.npy", getattr(column, name))
        return {"kind": "sparse", "width": column.width}
    _save(folder / f"{stem}.npy", column)
    return {"kind": "tensor"}


def _save(path: Path, tensor: Tensor) -> None:
    np.save(path, tensor.contiguous().numpy(), allow_pickle=False)


# ---- reading --------------------------------------------------------------------------------------------------------


def _read_header(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise _refusal(folder, "there is no such directory")
    try:
        header = json.loads((folder / _HEADER).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise _refusal(folder, f"has no {_HEADER}") from error
    except ValueError as error:
        raise _refusal(folder / _HEADER, f"is no JSON ({error})") from error
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise _refusal(folder / _HEADER, f"does not say {_FORMAT!r}")
    return header


def _open_examples(folder: Path, part: str, header: dict[str, Any]) -> Examples:
    inputs = _open_column(folder, f"{part}.inputs", header["inputs"])
    if header["targets"]["kind"] == "inputs":
        targets = inputs
    else:
        targets = _open_column(folder, f"{part}.targets", header["targets"])
    if isinstance(targets, Pixels):
        raise _refusal(folder / _HEADER, f"says that the targets of {part} are images as bytes")
    return Examples(inputs, targets)


def _open_column(folder: Path, stem: str, header: dict[str, Any]) -> Inputs:
    kind = header["kind"]
    if kind == "pixels":
        augment = Augment(**header["augment"]) if "augment" in header else None
        return Pixels(_open(folder / f"{stem}.bytes.npy"), tuple(header["mean"]), tuple(header["std"]), augment)
    if kind == "sparse":
        starts, columns, values = (_open(folder / f"{stem}.{name}.npy") for name in _SPARSE)
        return Sparse(starts, columns, values, header["width"])
    if kind == "tensor":
        return _open(folder / f"{stem}.npy")
    raise _refusal(folder / _HEADER, f"speaks of {kind!r} in {stem}")


def _open(path: Path) -> Tensor:
    """An array as a tensor over the mapped file, copy-on-write: torch has no tensors that cannot be written to."""
    try:
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except FileNotFoundError as error:
        raise _refusal(path, "there is no such file") from error
    except (OSError, ValueError, EOFError) as error:
        raise _refusal(path, f"cannot be mapped ({error})") from error
    return torch.from_numpy(array)


def _refusal(path: Path, problem: str) -> DataError:
    return DataError(path, problem, _EXPECTED, _SOURCE)
