"""Files of TensorFlow Federated (TFF), open: HDF5 with /examples/<client>/<field>.

h5py is needed (``pip install fastfed[hdf5]``) and imported when a file is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...extras import needed
from ...kernels import Stream, permutation
from ...purposes import Purpose
from ..errors import DataError
from .text import Integers

SOURCE = "https://storage.googleapis.com/tff-datasets-public/{}.tar.bz2 (unpack it first)"
TEXT = "OS"  # a field's kinds: strings of any length, or of one fixed length
_EXAMPLES = "examples"

Array = NDArray[Any]
Root = str | PathLike[str]
Rows = slice | Integers


@dataclass(frozen=True)
class Field:
    """What a field holds for each example: the kinds of numpy numbers allowed (or text) and their shape."""

    kinds: str
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        return (
            "text" if self.kinds == TEXT else f"{'x'.join(map(str, self.shape))} numbers" if self.shape else "a number"
        )


LABEL = Field("iu")


class ClientFile:
    """One HDF5 file, open: the clients' names and how many examples each has, (clients,) int64.

    `limit` keeps so many clients, in the order of their names: drawn at random by `seed`, or the first (None).
    """

    def __init__(
        self,
        path: Path,
        fields: Mapping[str, Field],
        archive: str,
        limit: int | None = None,
        seed: int | None = None,
    ) -> None:
        self.path, self.fields, self.source = path, fields, SOURCE.format(archive)
        self.expected = "HDF5 with /examples/<client>/ and " + ", ".join(f"{k} ({v})" for k, v in fields.items())
        if not path.is_file():
            raise self.error("does not exist")
        h5py = needed("h5py", extra="hdf5", by="reading TensorFlow Federated's files")
        try:
            self._file = h5py.File(path, "r")
        except OSError as error:
            raise self.error(f"is truncated or no HDF5 file ({error})") from error
        try:
            self.names, self.sizes = self._clients(limit, seed)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> ClientFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def error(self, problem: str) -> DataError:
        return DataError(self.path, problem, self.expected, self.source)

    def _clients(self, limit: int | None, seed: int | None) -> tuple[tuple[str, ...], Integers]:
        group = self._file.get(_EXAMPLES)
        if not hasattr(group, "keys"):
            raise self.error(f"has no group /{_EXAMPLES}")
        names = _chosen(tuple(group), limit, seed)
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

    def fill(self, field: str, dtype: type, arrange: Callable[[Array], Array] = lambda values: values) -> Array:
        """A field of all clients in one array, each client's part arranged by `arrange` on its way in."""
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


def _chosen(names: tuple[str, ...], limit: int | None, seed: int | None) -> tuple[str, ...]:
    if limit is None or seed is None or limit >= len(names):
        return names[:limit]
    order = permutation(len(names), Stream(seed, Purpose.PARTITION))
    return tuple(names[place] for place in sorted(order[:limit].tolist()))
