"""The five backends: which can run here, why the others cannot, and which one a call gets."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch

from . import backend_ops, extension
from .backend_ops import BackendOps
from .table import nearest

VARIABLE = "FASTFED_BACKEND"
default = os.environ.get(VARIABLE)  # read once: a look at the environment costs as much as a whole check of arguments


class BackendUnavailable(RuntimeError):
    """A backend was asked for that cannot run here, or cannot run on these tensors."""


@dataclass(frozen=True)
class Backend:
    """A name, the reason it cannot run here (None if it can), and what it accepts."""

    name: str
    why_not: Callable[[], str | None]
    devices: Callable[[], tuple[str, ...]]
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)

    def load(self) -> BackendOps:
        return backend_ops.load(self.name)


def _missing(package: str, extra: str) -> str | None:
    if importlib.util.find_spec(package) is None:
        return f"the package {package!r} is not installed (pip install {extra})"
    return None


def interpreting() -> bool:
    """Whether Triton kernels run in Triton's interpreter (on CPU tensors)."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def on_host() -> bool:
    """Whether the CUDA kernels run on the CPU, through the host launcher (for tests: exact and slow)."""
    return os.environ.get("FASTFED_CUDA_HOST") == "1"


@lru_cache(maxsize=1)
def _triton_why_not() -> str | None:
    missing = _missing("triton", "'fastfed[gpu]'")
    if missing or interpreting() or torch.cuda.is_available():
        return missing
    return "no CUDA device (TRITON_INTERPRET=1, set before the start, runs the kernels in the interpreter)"


@lru_cache(maxsize=1)
def _cuda_why_not() -> str | None:
    if on_host():
        return None
    missing = _missing("cupy", "'fastfed[gpu]'")
    if missing or torch.cuda.is_available():
        return missing
    return "no CUDA device (FASTFED_CUDA_HOST=1, set before the start, runs the kernels on the CPU for tests)"


_CPU = ("cpu",)
BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for backend in (
        Backend("reference", lambda: None, lambda: ("cpu", "cuda", "xpu"), (torch.float32, torch.float64)),
        Backend("cpp", extension.why_not, lambda: _CPU, (torch.float32, torch.float64)),
        Backend("numba", lambda: _missing("numba", "numba"), lambda: _CPU),
        Backend("triton", _triton_why_not, lambda: _CPU if interpreting() else ("cuda",)),
        Backend("cuda", _cuda_why_not, lambda: _CPU if on_host() else ("cuda",)),
    )
}
_PREFERENCE: dict[str, tuple[str, ...]] = {
    "cpu": ("cpp", "numba", "reference"),
    "cuda": ("triton", "cuda", "reference"),
}


def backends() -> dict[str, bool | str]:
    """Every backend's name with True, or the reason why it cannot run here."""
    return {name: backend.why_not() or True for name, backend in BACKENDS.items()}


def pick(backend: str | None, x: torch.Tensor) -> BackendOps:
    """The ops that serve tensors like x: the one asked for by argument or ``FASTFED_BACKEND``, else the fastest."""
    name = backend or default
    device = "cpu" if x.is_cpu else x.device.type
    return _asked(name, device, x.dtype) if name else _fastest(device, x.dtype)


@lru_cache(maxsize=64)
def _asked(name: str, device: str, dtype: torch.dtype) -> BackendOps:
    backend = BACKENDS.get(name)
    if backend is None:
        source = f" ({VARIABLE} says so)" if name == default else ""
        known = ", ".join(BACKENDS)
        raise ValueError(f"backend: {name!r}{source} is not one of {known}.{nearest(name, tuple(BACKENDS))}")
    reason = backend.why_not()
    if reason is not None:
        raise BackendUnavailable(f"backend: {name!r} cannot run here: {reason}")
    if device not in backend.devices():
        raise BackendUnavailable(f"backend: {name!r} works on {'/'.join(backend.devices())} tensors, x is on {device}")
    if dtype not in backend.dtypes:
        words = " or ".join(str(d).removeprefix("torch.") for d in backend.dtypes)
        raise BackendUnavailable(
            f"backend: {name!r} computes in {words}, x is {str(dtype).removeprefix('torch.')}; "
            "float64 runs on 'reference' and 'cpp'"
        )
    return backend.load()


@lru_cache(maxsize=64)
def _fastest(device: str, dtype: torch.dtype) -> BackendOps:
    for name in _PREFERENCE.get(device, ("reference",)):
        backend = BACKENDS[name]
        if backend.why_not() is None and device in backend.devices() and dtype in backend.dtypes:
            return backend.load()
    return BACKENDS["reference"].load()
