"""A file of tensors and texts under a seal: what goes in comes out, in every dtype, and safetensors reads it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from fastfed.saved import sealed

TEXTS = {"first": '{"a": "b"}', "second": "line\nline, é"}


def some(dtype: torch.dtype, *shape: int) -> Tensor:
    """Bytes that differ, as this dtype."""
    count = torch.empty(shape, dtype=dtype).nbytes
    values = torch.arange(count, dtype=torch.uint8)
    return (values % 2).bool().reshape(shape) if dtype == torch.bool else values.view(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", sealed._KINDS, ids=str)
def test_every_dtype_comes_back(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = {"odd": some(torch.uint8, 3), "of it": some(dtype, 2, 3), "none": some(dtype, 0, 4), "one": some(dtype)}
    sealed.write(tmp_path / "a", tensors, TEXTS)
    texts, found = sealed.read(tmp_path / "a")
    assert texts == TEXTS
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name].flatten().view(torch.uint8), tensor.flatten().view(torch.uint8))


def test_tensors_that_are_no_whole_block_of_memory_come_back(tmp_path: Path) -> None:
    matrix = torch.arange(12.0).reshape(3, 4)
    tensors = {"turned": matrix.T, "part": matrix[:, 1:3], "learnt": torch.ones(2, requires_grad=True)}
    tensors |= {"nobody": torch.zeros(1).expand(0), "again": torch.ones(1).expand(5), "row": matrix[1]}
    sealed.write(tmp_path / "a", tensors, {})
    _, found = sealed.read(tmp_path / "a")
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_it_is_a_safetensors_file_whose_tensors_are_aligned(tmp_path: Path) -> None:
    tensors = {"a": some(torch.uint8, 3), "b": some(torch.float64, 5), "c": some(torch.float16, 1)}
    for length in range(8):  # whatever the length of the header
        sealed.write(tmp_path / "a", tensors, {"text": "x" * length})
        with safe_open(tmp_path / "a", framework="pt") as file:
            assert file.metadata()["text"] == "x" * length
            assert set(file.keys()) == set(tensors)
        assert (tmp_path / "a").stat().st_size % 8 == (3 + 40 + 2) % 8


def test_a_dtype_without_a_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"wave: a checkpoint cannot hold torch.complex128"):
        sealed.write(tmp_path / "a", {"wave": torch.zeros(2, dtype=torch.complex128)}, {})
