"""The CUDA devices of this machine: their names, memory and driver, or what was looked for in vain."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

_DRIVER_FILE = Path("/proc/driver/nvidia/version")
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Card:
    """A CUDA device: compute `capability` as in "8.0", memory in bytes, `driver` as in "570.86.15"."""

    index: int
    name: str
    capability: str
    memory_free: int
    memory_total: int
    driver: str

    @property
    def words(self) -> str:
        free, total = (f"{size / 1e9:.1f}" for size in (self.memory_free, self.memory_total))
        return (
            f"cuda:{self.index} {self.name}, compute capability {self.capability}, {free} of {total} GB free, "
            f"driver {self.driver}"
        )


def find_cards() -> list[Card]:
    """Every CUDA device that torch can use; none where `why_none` has a sentence."""
    return [card_of(index) for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []


def card_of(index: int) -> Card:
    """The CUDA device of that number."""
    major, minor = torch.cuda.get_device_capability(index)
    free, total = torch.cuda.mem_get_info(index)
    return Card(index, torch.cuda.get_device_name(index), f"{major}.{minor}", free, total, driver_version())


def why_none() -> str | None:
    """The sentence that says why there is no CUDA device, and what was looked for; None if there is one."""
    if torch.cuda.is_available():
        return None
    driver = driver_version()
    seen = "no NVIDIA driver was found" if driver == UNKNOWN else f"NVIDIA driver {driver} is loaded"
    looked = f"{seen} (nvidia-smi on PATH, {_DRIVER_FILE})"
    if torch.version.cuda is None:
        return f"no CUDA device: torch {torch.__version__} is built without CUDA, and {looked}"
    return f"no CUDA device: torch {torch.__version__} for CUDA {torch.version.cuda} sees none, and {looked}"


@cache
def driver_version() -> str:
    """The version of NVIDIA's driver as nvidia-smi says it, or else the kernel's module; "unknown" without one."""
    if shutil.which("nvidia-smi") is not None:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        if said.returncode == 0 and said.stdout.strip():
            return said.stdout.split()[0]
    try:
        found = re.search(r"\b(\d{3,}(?:\.\d+)+)\b", _DRIVER_FILE.read_text())
    except OSError:
        return UNKNOWN
    return found[1] if found else UNKNOWN
