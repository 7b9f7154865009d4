"""The library for programs in C and C++: the page's example is built and run, and every function agrees with Python."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fastfed as ff
from fastfed.kernels.table import server_numbers

pytest.importorskip("fastfed._core", reason="the compiled extension is missing, and with it the library")

PAGE = Path(__file__).parents[1] / "docs" / "cpp.md"
D, CLIENTS = 1003, 7
Pointer = ctypes.c_void_p


class Numbers(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_double) for name in ("lr", "beta1", "gain1", "beta2", "gain2", "tau", "root_scale")),
        ("of_delta", ctypes.c_int),
    )


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    found = ctypes.CDLL(ff.get_library())
    found.fastfed_last_error.restype = ctypes.c_char_p
    return found


def numbers(rule: str, **options: float) -> Numbers:
    return Numbers(*server_numbers(rule, tuple(options), *options.values())[:8])


def pointer(tensor: torch.Tensor | None) -> Pointer:
    return Pointer(None if tensor is None else tensor.data_ptr())


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.skipif(not (shutil.which("c++") and shutil.which("bash")), reason="c++ or bash is not on PATH")
def test_the_example_of_the_page(tmp_path: Path) -> None:
    """And its commands, as they stand there."""
    source, commands = (
        re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)[0]
        for language in ("cpp", "text")
    )
    (tmp_path / "adam.cpp").write_text(source)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    shell = ["bash", "-e", "-c", commands]
    said = subprocess.run(shell, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    x = torch.ones(5)
    rows = torch.stack([torch.arange(1.0, 6.0), torch.zeros(5)])
    state = ff.kernels.server_state("adam", x, v0=1e-6)
    ff.kernels.aggregate_step("adam", x, rows, torch.tensor([0.75, 0.25]), state, subtract=True, lr=0.1)
    assert [np.float32(line) for line in said.split()] == x.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", ff.kernels.SERVER_RULES)
def test_server_steps(rule: str, dtype: torch.dtype, library: ctypes.CDLL) -> None:
    ours, theirs = drawn(D, dtype=dtype), drawn(D, dtype=dtype)
    held, state = ff.kernels.server_state(rule, ours), ff.kernels.server_state(rule, theirs)
    formula = ff.kernels.SERVER_RULES[rule].formula.encode()
    suffix = "f32" if dtype is torch.float32 else "f64"
    rows, weights = drawn(CLIENTS, D, seed=2, dtype=dtype), drawn(CLIENTS, seed=3, dtype=dtype).abs()
    pointers = (Pointer * CLIENTS)(*(row.data_ptr() for row in rows))
    moments = [pointer(held.get(name)) for name in ("m", "v", "vmax")]
    given = ctypes.byref(numbers(rule, lr=0.2))
    size, clients = ctypes.c_int64(D), ctypes.c_int64(CLIENTS)
    for step in range(3):
        delta = drawn(D, seed=10 + step, dtype=dtype)
        call = getattr(library, f"fastfed_server_step_{suffix}")
        assert call(formula, size, pointer(ours), pointer(delta), *moments, given, 2) == 0
        ff.kernels.server_step(rule, theirs, delta, state, lr=0.2, backend="cpp")
        for subtract in (0, 1):
            call = getattr(library, f"fastfed_aggregate_step_{suffix}")
            arguments = (formula, size, pointer(ours), clients, pointers, pointer(weights), subtract)
            assert call(*arguments, *moments, given, 0) == 0
            options = {"subtract": bool(subtract), "lr": 0.2, "backend": "cpp"}
            ff.kernels.aggregate_step(rule, theirs, rows, weights, state, **options)
    assert torch.equal(ours, theirs)
    for name in state:
        assert torch.equal(held[name], state[name]), name


def test_sums_and_norms(library: ctypes.CDLL) -> None:
    deltas, weights = drawn(CLIENTS, D, seed=2), drawn(CLIENTS, seed=3)
    shape = ctypes.c_int64(CLIENTS), ctypes.c_int64(D)
    out, lengths = torch.empty(D), torch.empty(CLIENTS, dtype=torch.float64)
    assert library.fastfed_weighted_sum_f32(*shape, pointer(deltas), pointer(weights), pointer(out), 2) == 0
    assert torch.equal(out, ff.kernels.weighted_sum(deltas, weights))
    assert library.fastfed_trimmed_mean_f32(*shape, pointer(deltas), ctypes.c_int64(2), pointer(out), 2) == 0
    assert torch.equal(out, ff.kernels.trimmed_mean(deltas, 2))
    assert library.fastfed_norms_f32(*shape, pointer(deltas), pointer(lengths), 2) == 0
    assert torch.equal(lengths, ff.kernels.norms(deltas))
    clipped = deltas.clone()
    assert library.fastfed_clip_f32(*shape, pointer(clipped), ctypes.c_double(20.0), pointer(lengths), 2) == 0
    ff.kernels.clip(deltas, 20.0)
    assert torch.equal(clipped, deltas)


def test_what_is_wrong_is_said(library: ctypes.CDLL) -> None:
    x, delta = drawn(D), drawn(D, seed=1)
    before = x.clone()
    given = ctypes.byref(numbers("sgd", lr=0.2))
    size, nothing = ctypes.c_int64(D), Pointer(None)

    def step(formula: bytes, m: Pointer = nothing, threads: int = 1) -> str:
        call = library.fastfed_server_step_f32
        assert call(formula, size, pointer(x), pointer(delta), m, nothing, nothing, given, threads) == -1
        return library.fastfed_last_error().decode()

    assert step(b"lion") == "formula: there is no 'lion'"
    assert step(b"momentum") == "m: must be given exactly where the formula has it"
    assert step(b"sgd", pointer(delta)) == "m: must be given exactly where the formula has it"
    assert step(b"sgd", threads=-1) == "threads: must be 0 or more"
    assert torch.equal(x, before)
    assert library.fastfed_abi_version() == 1


def test_the_library_needs_neither_python_nor_torch() -> None:
    if shutil.which("readelf") is None:
        pytest.skip("readelf is not on PATH")
    said = subprocess.run(["readelf", "-d", ff.get_library()], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*?)\]", said)
    assert any("libgomp" in name for name in needed)
    assert not [name for name in needed if "python" in name or "torch" in name]
