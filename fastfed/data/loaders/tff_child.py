"""The process that opens a file of TensorFlow Federated: a damaged one may keep HDF5's library busy for ever, ask for
any memory, or crash it, and none of that is to happen to the process that reads the data.

Run as a script by `tff_file`, which imports none of FastFed: the path of the file, sys.path, the fields and the limits
come as JSON, one argument; requests as lines of JSON; answers are a line of JSON each, and the bytes that it counts.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, BinaryIO


class Unusable(Exception):
    """What is wrong with the file."""


class Reader:
    """The file, open."""

    def __init__(self, path: str, fields: dict[str, tuple[str, Sequence[int]]], deepest: int) -> None:
        import h5py

        self.h5py, self.fields, self.deepest = h5py, fields, deepest
        try:
            self.file = h5py.File(path, "r")
        except OSError as error:
            raise Unusable(f"is truncated or no HDF5 file ({error})") from error
        self.group = self.file.get("examples")
        if not hasattr(self.group, "keys"):
            raise Unusable("has no group /examples")

    def names(self) -> list[str]:
        return list(self.group)

    def size(self, client: str) -> int:
        """How many examples a client has, all fields looked at."""
        counts = set()
        for field, (kinds, shape) in self.fields.items():
            dataset = self.dataset(client, field)
            if dataset.shape is None or not dataset.shape or dataset.dtype.kind not in kinds:
                raise Unusable(f"has {dataset.dtype} {dataset.shape} as {dataset.name}, not {self.told(field)}")
            if list(dataset.shape[1:]) != list(shape):
                raise Unusable(f"has {dataset.dtype} {dataset.shape} as {dataset.name}, not {self.told(field)}")
            self.check_storage(dataset)
            counts.add(len(dataset))
        if len(counts) > 1:
            raise Unusable(f"has fields of unequal lengths for the client {client!r}")
        return int(counts.pop())

    def told(self, field: str) -> str:
        kinds, shape = self.fields[field]
        what = f"{'x'.join(map(str, shape))} numbers" if shape else "a number"
        return f"{'text' if 'O' in kinds else what} per example"

    def dataset(self, client: str, field: str) -> Any:
        place = f"/examples/{client}/{field}"
        try:
            for holder, name in ((self.group, client), (self.group[client], field)):
                if isinstance(holder.get(name, getlink=True), (self.h5py.SoftLink, self.h5py.ExternalLink)):
                    raise Unusable(f"has a link to somewhere else at {place}")
            found = self.group[client][field]
        except (KeyError, OSError, ValueError, RuntimeError, AttributeError, TypeError) as error:
            raise Unusable(f"has no readable {place} ({error})") from error
        if not hasattr(found, "dtype"):
            raise Unusable(f"has a group where {place} should be data")
        return found

    def check_storage(self, dataset: Any) -> None:
        """Refuses what lies in other files, and what is larger than the file could hold."""
        made = dataset.id.get_create_plist()
        if made.get_layout() == self.h5py.h5d.VIRTUAL or made.get_external_count():
            raise Unusable(f"keeps {dataset.name} in another file, which is not followed")
        stored = int(dataset.id.get_storage_size())
        if dataset.size and dataset.nbytes > self.deepest * stored:
            raise Unusable(f"says that {dataset.name} has {dataset.nbytes:,} bytes, in {stored:,} of the file")

    def read(self, client: str, field: str, rows: Any) -> tuple[dict[str, Any], bytes]:
        """A field of some of a client's examples, as bytes, and how they are to be read."""
        import numpy as np

        dataset = self.dataset(client, field)
        try:
            found = np.asarray(dataset[slice(*rows[1]) if rows[0] == "slice" else rows[1]])
        except (OSError, RuntimeError) as error:
            raise Unusable(f"cannot be read at {dataset.name} ({error})") from error
        if found.dtype.kind in "iuf":
            content = np.ascontiguousarray(found, dtype=found.dtype.newbyteorder("<"))
            return {"dtype": content.dtype.str, "shape": content.shape}, content.tobytes()
        texts = [one.encode() if isinstance(one, str) else bytes(one) for one in found]
        return {"texts": [len(text) for text in texts]}, b"".join(texts)


def serve(told: dict[str, Any], requests: BinaryIO, answers: BinaryIO) -> None:
    """Answers until there are no more requests."""

    def answer(head: dict[str, Any], content: bytes = b"") -> None:
        answers.write(json.dumps({**head, "bytes": len(content)}).encode() + b"\n" + content)

    def limited() -> None:
        """What comes next may take so much of a processor; more ends the process."""
        signal.setitimer(signal.ITIMER_PROF, told["seconds"])

    try:
        limited()
        reader = Reader(told["path"], told["fields"], told["deepest"])
        answer({"names": reader.names()})
        answers.flush()
        for line in requests:
            request = json.loads(line)
            if "sizes" in request:
                sizes = []
                for client in request["sizes"]:
                    limited()
                    sizes.append(reader.size(client))
                answer({"sizes": sizes})
            for client, field, rows in request.get("read", ()):
                limited()
                answer(*reader.read(client, field, rows))
            answers.flush()
    except Unusable as error:
        answer({"problem": str(error)})
    except MemoryError:
        answer({"problem": "asks for more memory than its size could need"})
    except Exception as error:
        answer({"problem": f"cannot be read ({type(error).__name__}: {error})"})
    answers.flush()


def _limit_memory(spare: int) -> None:
    """So many bytes more than there are now, where the system can say no to more."""
    try:
        import resource

        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + spare, resource.getrlimit(resource.RLIMIT_AS)[1]))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, OSError, ValueError):
        pass


def main() -> None:
    told = json.loads(sys.stdin.buffer.readline())
    sys.path[:] = told["sys_path"]
    answers = os.fdopen(os.dup(1), "wb", buffering=1 << 20)
    os.dup2(2, 1)  # whatever prints, prints elsewhere
    import h5py  # noqa: F401  # before memory is limited: what it takes itself is not the file's
    import numpy as np  # noqa: F401

    _limit_memory(told["memory"])
    serve(told, sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
