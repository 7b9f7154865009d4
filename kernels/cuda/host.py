"""Compiles the CUDA kernels with g++ and runs them on CPU tensors (``csrc/cuda/host.cpp``): for tests, exact, slow."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from ..registry import BackendUnavailable
from . import sources
from .launch import Argument, Grid

# As on the device, nothing is contracted into fused multiply-adds.
FLAGS = ("-std=c++17", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-fPIC")


def compiler() -> str:
    """The path of g++ (or of the compiler that CXX names)."""
    name = os.environ.get("CXX", "g++")
    path = shutil.which(name)
    if path is None:
        raise BackendUnavailable(
            f"backend: 'cuda' with FASTFED_CUDA_HOST=1 compiles its kernels with {name!r}, which is not on PATH; "
            "install g++ or name a C++17 compiler in CXX"
        )
    return path


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"compiling the CUDA kernels for the host failed: {' '.join(command)}\n{done.stderr}")


def build(files: Sequence[Path], library: Path) -> None:
    """Makes `library` of these kernel files and the launcher."""
    csrc = sources.csrc()

    def compile_one(file: Path) -> str:
        object_file = str(library.with_name(f"{file.name}.o"))
        options = ["-I", str(csrc), "-x", "c++", "-include", "cuda/host.h", "-c", str(file), "-o", object_file]
        _run([compiler(), *FLAGS, *options])
        return object_file

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, [*files, csrc / "cuda" / "host.cpp"]))
    _run([compiler(), "-shared", *objects, "-o", str(library)])


class HostLauncher:
    """`launch.Launcher` over a library that `build` made."""

    def __init__(self, library: Path) -> None:
        self._launch = ctypes.CDLL(str(library)).launch
        self._launch.restype = ctypes.c_char_p

    @staticmethod
    def of_kernels() -> HostLauncher:
        """The launcher of all kernels, compiled once per version of the sources."""
        key = ("host", compiler(), *FLAGS)
        return HostLauncher(sources.compiled("host", ".so", key, lambda path: build(sources.kernel_files(), path)))

    def launch(
        self, stem: str, kernel: str, grid: Grid, device: torch.device, arguments: Sequence[Argument], threads: int
    ) -> None:
        count = len(arguments)
        pointers = (ctypes.c_void_p * count)(*(ctypes.addressof(argument) for argument in arguments))
        sizes = (ctypes.c_size_t * count)(*(ctypes.sizeof(argument) for argument in arguments))
        blocks = (ctypes.c_uint * 3)(*grid)
        name = kernel.encode()
        error = self._launch(name, blocks, ctypes.c_uint(threads), pointers, sizes, ctypes.c_size_t(count))
        if error is not None:
            raise RuntimeError(error.decode())
