"""What of FastFed works on this machine, and what would make the rest work: `fastfed doctor`."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from .. import kernels, waiting
from .._version import __version__
from ..cards import Card, find_cards, why_none
from ..kernels import registry
from .errors import first_line

_NONE = "-"
_SLOW = "reference"  # the oracle: always there, never the fast one


@dataclass(frozen=True)
class Machine:
    """The processor and what of it this process may use."""

    cpu: str
    cores: int
    usable_cores: int
    system: str

    @property
    def words(self) -> str:
        cores = (
            f"{self.cores} cores" if self.cores == self.usable_cores else f"{self.usable_cores} of {self.cores} cores"
        )
        return f"{self.cpu}, {cores}, {self.system}"


@dataclass(frozen=True)
class Row:
    """One backend: whether it gave the reference's answer to a small step, and what it runs on."""

    backend: str
    usable: bool
    why_not: str
    device: str
    compiler: str
    simd: str
    threads: int | None


@dataclass(frozen=True)
class Patient:
    """A card, and what the self-test of executor 'device' says of it; `passed` is None where it has not been run."""

    card: Card
    passed: bool | None
    self_test: str


@dataclass(frozen=True)
class Diagnosis:
    """The whole examination. `no_card` is the sentence why there are no `cards`, "" if there are."""

    machine: Machine
    versions: dict[str, str]
    backends: list[Row]
    chosen: str  # the backend that CPU tensors get
    cards: list[Patient]
    no_card: str
    waiting: str  # what threads do that wait, and who says so

    @property
    def fast(self) -> bool:
        """Whether any backend but the reference works."""
        return any(row.usable for row in self.backends if row.backend != _SLOW)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "fast": self.fast}


def examine(self_test: bool = False) -> Diagnosis:
    """Tries every backend; takes a few seconds where kernels are compiled on first use.

    `self_test` runs the self-test on every card, which takes a minute; otherwise what was kept of the last one is told.
    """
    rows = [_row(name) for name in registry.BACKENDS]
    cards = [_patient(card, self_test) for card in find_cards()]
    return Diagnosis(machine(), versions(), rows, _chosen(), cards, why_none() or "", waiting.CHOSEN)


def _patient(card: Card, anew: bool) -> Patient:
    why_not = registry.BACKENDS["triton"].why_not()
    if why_not is not None or registry.interpreting():
        return Patient(card, None, f"cannot be run: {why_not or 'TRITON_INTERPRET is 1, so no kernel runs on a card'}")
    from ..train.device import self_test  # which imports torch.fx and all executors

    device = torch.device("cuda", card.index)
    verdict = self_test.run_and_keep(device) if anew else self_test.kept(device)
    if verdict is None:
        return Patient(card, None, "not run yet (fastfed doctor --self-test runs it)")
    return Patient(card, verdict.passed, verdict.words)


def machine() -> Machine:
    """This machine."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Machine(_cpu_model(), os.cpu_count() or 1, usable or 1, f"{platform.system()} {platform.machine()}")


def versions() -> dict[str, str]:
    """Python, FastFed and the packages under it that are installed."""
    found = {"python": platform.python_version(), "fastfed": __version__}
    for name in ("torch", "numpy", "numba", "triton", "jax", "optax"):
        version = _version(name)
        if version is not None:
            found[name] = version
    return found


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    found = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def _chosen() -> str:
    try:
        return registry.pick(None, torch.empty(0)).name
    except (registry.BackendUnavailable, ValueError) as error:
        return f"none: {error}"


# ---- one backend ----------------------------------------------------------------------------------------------------


def _row(name: str) -> Row:
    why_not = registry.BACKENDS[name].why_not() or _fails(name)
    device = "/".join(registry.BACKENDS[name].devices()) if name != _SLOW else "any"
    compiler, simd, threads = _DESCRIBE[name]()
    return Row(name, why_not is None, why_not or "", _device_name(device), compiler, simd, threads)


def _device_name(device: str) -> str:
    if device == "cuda" and torch.cuda.is_available():
        return f"cuda ({torch.cuda.get_device_name()})"
    return device


def _fails(name: str) -> str | None:
    """What goes wrong in one small step on this backend, compared with the reference; None if nothing does."""
    device = registry.BACKENDS[name].devices()[0]
    start, delta = torch.linspace(-1, 1, 100), torch.linspace(1, -2, 100)
    wanted, found = start.clone(), start.to(device)
    try:
        kernels.server_step("yogi", wanted, delta, kernels.server_state("yogi", wanted), lr=0.1, backend=_SLOW)
        kernels.server_step("yogi", found, delta.to(device), kernels.server_state("yogi", found), lr=0.1, backend=name)
    except Exception as error:  # a broken installation can raise anything, and saying what is this command's whole task
        return f"a small step failed: {type(error).__name__}: {first_line(error)}"
    off = (found.cpu() - wanted).abs().max().item()
    return None if off < 1e-6 else f"a small step came out wrong by {off:.3g}"


Description = tuple[str, str, int | None]


def _reference() -> Description:
    found = re.search(r"(GCC|Clang|MSVC)\s+([\d.]+)", torch.__config__.show())
    built = f", built with {found[1]} {found[2]}" if found else ""
    return f"torch {torch.__version__}{built}", torch.backends.cpu.get_cpu_capability().lower(), torch.get_num_threads()


def _cpp() -> Description:
    try:
        info: dict[str, Any] = importlib.import_module("fastfed._core").build_info()
    except (ImportError, AttributeError):
        return f"none built FastFed ({_compilers_here()} here)", _NONE, None
    others = [level for level in info["simd_compiled"] if level != info["simd"]]
    simd = info["simd"] + (f" (also built: {', '.join(others)})" if others else "")
    return info["compiler"], simd, torch.get_num_threads() if info["openmp"] else 1


def _compilers_here() -> str:
    return " and ".join(name for name in ("g++", "clang++") if shutil.which(name)) or "no C++ compiler"


def _numba() -> Description:
    try:
        import numba
        from llvmlite import binding
    except ImportError:
        return _NONE, _NONE, None
    llvm = ".".join(str(part) for part in binding.llvm_version_info)
    features = binding.get_host_cpu_features()
    simd = next((level for level in ("avx512f", "avx2", "neon") if features.get(level)), "scalar")
    return (
        f"numba {numba.__version__}, LLVM {llvm}",
        simd.removesuffix("f"),
        min(numba.get_num_threads(), torch.get_num_threads()),
    )


def _triton() -> Description:
    version = _version("triton")
    how = ", interpreter" if registry.interpreting() else ""
    return (f"triton {version}{how}" if version else _NONE), _NONE, None


def _cuda() -> Description:
    found = [_nvcc(), _cupy(), _nvrtc()]
    if registry.on_host():
        found.insert(0, "host launcher")
    return ", ".join(part for part in found if part) or _NONE, _NONE, None


def _nvcc() -> str | None:
    if shutil.which("nvcc") is None:
        return None
    said = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"release ([\d.]+)", said)
    return f"nvcc {found[1]}" if found else None


def _cupy() -> str | None:
    names = (d.metadata["Name"] for d in importlib.metadata.distributions())
    package = next((name for name in names if name and name.lower().split("-")[0] == "cupy"), None)
    return None if package is None else f"CuPy {_version(package)}"


def _nvrtc() -> str | None:
    try:
        nvrtc = importlib.import_module("cupy.cuda.nvrtc")
        major, minor = nvrtc.getVersion()
    except Exception:  # CuPy's own kinds of "not there", which differ between its versions
        return None
    return f"NVRTC {major}.{minor}"


_DESCRIBE: dict[str, Callable[[], Description]] = {
    "reference": _reference,
    "cpp": _cpp,
    "numba": _numba,
    "triton": _triton,
    "cuda": _cuda,
}
