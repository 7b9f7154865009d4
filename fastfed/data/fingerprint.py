"""What tells data from any other: a digest of all of it, taken at the speed of memory.

A tensor's digest is a tree: BLAKE2b of pieces of a few megabytes, on all cores side by side, and of their digests one
after the other. Checkpoints and files of before hold the digest of a sample (`sampled`), and are compared by that.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from .store import Examples, Inputs, Pixels, Sparse

if TYPE_CHECKING:
    from .dataset import Federated

_WHOLE = "whole:"  # what begins the fingerprints that look at everything
_PIECE = 1 << 22  # bytes of a tensor whose digest one thread takes at a time
_BYTES = 16  # of a digest
_SAMPLED = 1000  # rows whose contents a fingerprint of before reads

_known = WeakIdKeyDictionary()  # of tensors of files that are known: their version then, and their digest


def is_sampled(fingerprint: str) -> bool:
    """Whether it is one of before."""
    return not fingerprint.startswith(_WHOLE)


def whole(fed: Federated) -> str:
    """Who has which rows, and all that every row holds."""
    digest = hashlib.blake2b(digest_size=_BYTES)
    for name, tensor in _deals(fed):
        digest.update(f"{name} {'none' if tensor is None else digest_of(tensor)}\n".encode())
    for part, examples in (("train", fed.examples), ("test", fed.test)):
        digest.update(f"{part} {'none' if examples is None else _of_examples(examples)}\n".encode())
    digest.update(f"uncounted {list(fed.uncounted)}".encode())
    return _WHOLE + digest.hexdigest()


def digest_of(tensor: Tensor) -> str:
    """The digest of a tensor on the CPU: its type, its shape and every byte of it."""
    known = _known.get(tensor)
    if known is not None and known[0] == tensor._version:
        return str(known[1])
    digest = hashlib.blake2b(f"{tensor.dtype} {tuple(tensor.shape)}".encode(), digest_size=_BYTES)
    for piece in _digests(tensor):
        digest.update(piece)
    return digest.hexdigest()


def remember(tensor: Tensor, digest: str) -> None:
    """The tensor's digest is not taken again until torch writes to it."""
    _known[tensor] = tensor._version, digest


def _digests(tensor: Tensor) -> Iterable[bytes]:
    """Of pieces of whole rows, in their order."""
    rows = max(1, _PIECE * len(tensor) // max(1, tensor.nbytes))

    def of_piece(begin: int) -> bytes:
        content = tensor[begin : begin + rows].contiguous().view(-1).view(torch.uint8).numpy().data
        return hashlib.blake2b(content, digest_size=_BYTES).digest()

    begins = range(0, len(tensor), rows) if tensor.numel() else range(0)
    if len(begins) < 2:
        return map(of_piece, begins)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None) as pool:
        return list(pool.map(of_piece, begins))


def _of_examples(examples: Examples) -> str:
    inputs = _of_column(examples.inputs)
    return f"{inputs} {inputs if examples.targets is examples.inputs else _of_column(examples.targets)}"


def _of_column(column: Inputs) -> str:
    if isinstance(column, Sparse):
        return " ".join([str(column.width), *map(digest_of, (column.starts, column.columns, column.values))])
    if isinstance(column, Pixels):
        return f"{digest_of(column.bytes)} {list(column.mean)} {list(column.std)} {column.augment!r}"
    return digest_of(column)


def _deals(fed: Federated) -> list[tuple[str, Tensor | None]]:
    names = ("rows", "offsets", "test_rows", "test_offsets", "validation_rows")
    return [(name, getattr(fed, name)) for name in names]


# ---- of before ------------------------------------------------------------------------------------------------------


def sampled(fed: Federated) -> str:
    """Who has which rows, and what a spread of the rows holds: what checkpoints and files were written with before."""
    digest = hashlib.sha256()
    for name, tensor in _deals(fed):
        if tensor is not None or name != "validation_rows":
            digest.update(b"none" if tensor is None else tensor.numpy().tobytes())
    for examples in (fed.examples, fed.test):
        for store in () if examples is None else (examples.inputs, examples.targets):
            digest.update(_sample(store))
    return digest.hexdigest()[:16]


def _sample(store: Inputs) -> bytes:
    """The contents of up to `_SAMPLED` rows spread over a store, and its shape."""
    rows = torch.linspace(0, len(store) - 1, min(len(store), _SAMPLED), dtype=torch.float64).long()
    if isinstance(store, Sparse):
        held = [store.starts[rows], store.columns[::97], store.values[::97]]
        shape: tuple[int, ...] = (len(store), store.width)
    else:
        tensor = store.bytes if isinstance(store, Pixels) else store
        held, shape = [tensor[rows]], tuple(tensor.shape)
    augment = "" if not isinstance(store, Pixels) or store.augment is None else repr(store.augment)
    return f"{shape!r}{augment}".encode() + b"".join(part.contiguous().numpy().tobytes() for part in held)
