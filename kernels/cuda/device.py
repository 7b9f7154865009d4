"""Compiles the CUDA kernels with NVRTC and launches them on torch's current stream, both through CuPy.

CuPy's own ``RawModule(code=...)`` is not used to compile: it always adds ``-ftz=true``, which would flush subnormal
numbers that every other backend keeps, and its cache does not notice a changed header.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from . import sources
from .launch import Argument, Grid


def options(arch: str) -> tuple[str, ...]:
    """NVRTC's options: no contraction into fused multiply-adds, so that results match the other backends."""
    return ("-std=c++17", f"--gpu-architecture={arch}", "--fmad=false", f"--include-path={sources.csrc()}")


def compile_to_cubin(stem: str, arch: str) -> bytes:
    """The file ``cuda/<stem>.cu`` compiled for `arch` ("sm_90"); needs NVRTC, no device."""
    from cupy.cuda import nvrtc

    text = (sources.csrc() / "cuda" / f"{stem}.cu").read_text()
    program = nvrtc.createProgram(text, f"cuda/{stem}.cu", (), ())
    try:
        nvrtc.compileProgram(program, options(arch))
        cubin: bytes = nvrtc.getCUBIN(program)
    except nvrtc.NVRTCError as error:
        raise RuntimeError(f"NVRTC refused cuda/{stem}.cu for {arch}:\n{nvrtc.getProgramLog(program)}") from error
    finally:
        nvrtc.destroyProgram(program)
    return cubin


@lru_cache(maxsize=64)
def _module(stem: str, arch: str) -> Any:
    """CuPy's module of a kernel file (it loads it into each device's context by itself)."""
    import cupy
    from cupy.cuda import nvrtc

    def make(path: Path) -> None:
        path.write_bytes(compile_to_cubin(stem, arch))

    version = ".".join(str(part) for part in nvrtc.getVersion())
    key = ("nvrtc", version, *options(arch))
    return cupy.RawModule(path=str(sources.compiled(f"{stem}-{arch}", ".cubin", key, make)))


@lru_cache(maxsize=1024)
def _kernel(stem: str, kernel: str, arch: str) -> Any:
    return _module(stem, arch).get_function(kernel)


@lru_cache(maxsize=64)
def _arch(device: int) -> str:
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def by_value(argument: Argument) -> np.ndarray:
    """The form in which CuPy passes any bytes by value: an array of one void of their size."""
    return np.frombuffer(argument, dtype=f"V{ctypes.sizeof(argument)}")


class DeviceLauncher:
    """`launch.Launcher` through CuPy."""

    def launch(
        self, stem: str, kernel: str, grid: Grid, device: torch.device, arguments: Sequence[Argument], threads: int
    ) -> None:
        import cupy

        index = torch.cuda.current_device() if device.index is None else device.index
        stream = cupy.cuda.ExternalStream(torch.cuda.current_stream(index).cuda_stream, index)
        with cupy.cuda.Device(index), stream:
            values = tuple(by_value(argument) for argument in arguments)
            _kernel(stem, kernel, _arch(index))(grid, (threads,), values)
