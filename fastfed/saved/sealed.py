"""One file that holds tensors and texts under a seal: a safetensors file whose metadata are the texts.

The seal, first of the metadata, is the SHA-256 of all bytes of the file with zeros in its own place: whatever byte is
changed or lost, it is noticed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors.torch import load_file
from torch import Tensor

_LENGTH = 8  # bytes that say how long the header is
_ZEROS = b"0" * (2 * hashlib.sha256().digest_size)
_BEGINS = b'{"__metadata__":{"seal":"'
_SEAL = slice(len(_BEGINS), len(_BEGINS) + len(_ZEROS))  # of the header
_AT_ONCE = 1 << 20  # bytes that are read together

_KINDS: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write(path: Path, tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> None:
    """Writes the file. Tensors may be on any device; none is copied in memory that is on the CPU already."""
    in_order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # so that each is aligned
    contents = [_bytes_of(tensors[name]) for name in in_order]
    header = _header_of({name: tensors[name] for name in in_order}, texts)
    length = len(header).to_bytes(_LENGTH, "little")
    digest = hashlib.sha256(length + header)
    for content in contents:
        digest.update(content)
    header[_SEAL] = digest.hexdigest().encode()
    with path.open("wb") as file:
        file.write(length + header)
        for content in contents:
            file.write(content)


def _header_of(tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> bytearray:
    """Where each of the tensors is, in their order, and the texts; with zeros for a seal."""
    header: dict[str, Any] = {"__metadata__": {"seal": _ZEROS.decode(), **texts}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": _kind(name, tensor), "shape": list(tensor.shape), "data_offsets": [begin, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    return bytearray(encoded.ljust(-(-len(encoded) // _LENGTH) * _LENGTH))  # blanks, so that tensors are aligned


def _kind(name: str, tensor: Tensor) -> str:
    if tensor.dtype not in _KINDS:
        raise TypeError(f"{name}: a checkpoint cannot hold {tensor.dtype}")
    return _KINDS[tensor.dtype]


def _bytes_of(tensor: Tensor) -> memoryview:
    here = tensor.detach().cpu().contiguous()
    return here.as_strided((here.numel(),), (1,)).view(torch.uint8).numpy().data  # an empty tensor may have stride 0


def read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The texts and the tensors, on the CPU; ValueError if the file does not hold what was written."""
    check(path)
    return read_texts(path), load_file(path)


def read_texts(path: Path) -> dict[str, str]:
    """The texts, as the file has them: whether it is what was written, only `check` says."""
    with path.open("rb") as file:
        texts: dict[str, str] = json.loads(_header(file))["__metadata__"]
    del texts["seal"]
    return texts


def check(path: Path) -> None:
    """ValueError if a byte of the file is not what was written."""
    with path.open("rb") as file:
        header = _header(file)
        seal, header[_SEAL] = header[_SEAL], _ZEROS
        digest = hashlib.sha256(len(header).to_bytes(_LENGTH, "little") + header)
        while part := file.read(_AT_ONCE):
            digest.update(part)
    if digest.hexdigest().encode() != seal:
        raise ValueError("its contents are not what was written")


def _header(file: BinaryIO) -> bytearray:
    length = int.from_bytes(file.read(_LENGTH), "little")
    if length > os.fstat(file.fileno()).st_size - _LENGTH:
        raise ValueError("it ends too early")
    header = bytearray(file.read(length))
    if not header.startswith(_BEGINS):
        raise ValueError("it does not begin as a checkpoint does")
    return header
