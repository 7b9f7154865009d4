"""Files of TensorFlow Federated (TFF), open: HDF5 with /examples/<client>/<field>.

h5py is needed (``pip install fastfed[hdf5]``); a process of its own imports it when a file is opened, with limits of
time and memory.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, islice
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
from ..errors import DEEPEST, DataError, in_brief
from .text import Integers

SOURCE = "https://storage.googleapis.com/tff-datasets-public/{}.tar.bz2 (unpack it first)"
TEXT = "OS"  # a field's kinds: strings of any length, or of one fixed length
_AHEAD = 64  # fields of clients that are asked for at a time
_SECONDS, _SLOWEST = 30.0, 1e8  # of a processor, and for so many bytes one more: reading a client's examples takes less
_MEMORY = 1 << 31  # bytes that reading may take besides four times those of the file
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")  # each would take memory, and none is used

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
    """One HDF5 file, open in a process of its own (`tff_child`): the clients' names and how many examples each has,
    (clients,) int64.

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
        needed("h5py", extra="hdf5", by="reading TensorFlow Federated's files")
        size = path.stat().st_size
        self._seconds = _SECONDS + size / _SLOWEST
        self._child = subprocess.Popen(
            [sys.executable, "-S", str(Path(__file__).with_name("tff_child.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **dict.fromkeys(_THREADS, "1")},
        )
        try:
            told = {field: (wanted.kinds, wanted.shape) for field, wanted in fields.items()}
            limits = {"seconds": self._seconds, "memory": _MEMORY + 4 * size, "deepest": DEEPEST}
            self._ask({"path": str(path.resolve()), "sys_path": sys.path, "fields": told, **limits})
            self.names = _chosen(tuple(self._answer()[0]["names"]), limit, seed)
            self._ask({"sizes": self.names})
            self.sizes = np.array(self._answer()[0]["sizes"], dtype=np.int64)
            if self.sizes.sum() == 0:
                raise self.error("holds no example")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ClientFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process."""
        self._child.kill()
        self._child.communicate()

    def error(self, problem: str) -> DataError:
        return DataError(self.path, problem, self.expected, self.source)

    def _ask(self, request: dict[str, Any]) -> None:
        assert self._child.stdin is not None
        with suppress(BrokenPipeError):  # what ended the process is told where its answer is missed
            self._child.stdin.write(json.dumps(request).encode() + b"\n")
            self._child.stdin.flush()

    def _answer(self) -> tuple[dict[str, Any], bytearray]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line.endswith(b"\n"):
            raise self.error(self._ended())
        head: dict[str, Any] = json.loads(line)
        if "problem" in head:
            raise self.error(in_brief(head["problem"]))
        content = bytearray(head["bytes"])
        if self._child.stdout.readinto(content) < len(content):  # type: ignore[attr-defined]
            raise self.error(self._ended())
        return head, content

    def _ended(self) -> str:
        """Why there is no answer."""
        status = self._child.wait()
        if status == -signal.SIGPROF:
            return f"does not come to an end: HDF5 was at it for {self._seconds:.3g} seconds"
        return f"makes HDF5 crash ({signal.Signals(-status).name if status < 0 else f'status {status}'})"

    def read(self, wanted: Iterable[tuple[int, str, Rows]]) -> Iterator[Any]:
        """Fields of some of a client's examples: an array, or a list of bytes where they are texts. The next ones are
        read while these are worked on."""
        asked = ([self.names[client], field, _told(rows)] for client, field, rows in wanted)
        now = list(islice(asked, _AHEAD))
        self._ask({"read": now})
        while now:
            answers = [self._answer() for _ in now]
            now = list(islice(asked, _AHEAD))
            if now:
                self._ask({"read": now})
            for head, content in answers:
                yield _value(head, content)

    def texts(self, chosen: Iterable[tuple[int, Rows]], *fields: str) -> Iterator[list[list[bytes]]]:
        """The texts of some examples of each of these clients, field by field."""
        found = self.read((client, field, rows) for client, rows in chosen for field in fields)
        while texts := list(islice(found, len(fields))):
            yield texts

    def fill(self, field: str, dtype: type, arrange: Callable[[Array], Array] = lambda values: values) -> Array:
        """A field of all clients in one array, each client's part arranged by `arrange` on its way in."""
        ends = np.cumsum(self.sizes)
        sample = arrange(np.empty((1, *self.fields[field].shape), dtype=dtype))
        if int(ends[-1]) * sample.nbytes > DEEPEST * self.path.stat().st_size * np.dtype(dtype).itemsize:
            raise self.error(f"says that it has {int(ends[-1]):,} examples, more than the file could hold")
        out = np.empty((int(ends[-1]), *sample.shape[1:]), dtype=dtype)
        parts = self.read((client, field, slice(None)) for client in range(len(self.names)))
        for end, size, part in zip(ends, self.sizes, parts, strict=True):
            out[end - size : end] = arrange(part)
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


def _told(rows: Rows) -> tuple[str, list[int | None]]:
    return ("slice", [rows.start, rows.stop]) if isinstance(rows, slice) else ("rows", rows.tolist())


def _value(head: dict[str, Any], content: bytearray) -> Any:
    if "dtype" in head:
        return np.frombuffer(content, dtype=head["dtype"]).reshape(head["shape"])
    ends = accumulate(head["texts"])
    return [bytes(content[end - length : end]) for end, length in zip(ends, head["texts"], strict=True)]


def _chosen(names: tuple[str, ...], limit: int | None, seed: int | None) -> tuple[str, ...]:
    if limit is None or seed is None or limit >= len(names):
        return names[:limit]
    order = permutation(len(names), Stream(seed, Purpose.PARTITION))
    return tuple(names[place] for place in sorted(order[:limit].tolist()))
