"""What a compiled kernel moves: its launches compiled for a card that need not be here, and their accesses counted.

The launches are the backend's own, written down instead of run, so sizes, alignments and options are production's. The
accesses are read off the PTX (every one of them: an opcode that is not understood is an error), registers and spills
off the machine code.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget

from .launch import Launch

WARP = 32
WIDE = 16  # bytes of the widest access that every card has
_MEMORY = re.compile(r"^(?:@!?%p\d+ )?((?:ld|st|ldu|atom|red|cp|prefetch)\.[\w.:]+)")
_HARMLESS = re.compile(r"^(?:ld\.param|ld\.shared|st\.shared|cp\.async\.(?:wait|commit))")
_GLOBAL = re.compile(r"^(ld|st|atom|red)\.(?:[\w:]+\.)*?global\.(?:[\w:]+\.)*?(?:v(\d)\.)?[bufs](\d+)$")
_LABEL = re.compile(r"^(\$\w+):")
_BRANCH = re.compile(r"\bbra(?:\.uni)?\s+(\$\w+);")


@dataclass(frozen=True)
class Access:
    """One instruction on global memory: "ld", "st", "atom" or "red", its bytes, whether it stands in a loop."""

    kind: str
    bytes: int
    in_loop: bool


@dataclass(frozen=True)
class Traffic:
    """The accesses of one compiled kernel, and what it needs of the card."""

    accesses: tuple[Access, ...]
    elements_per_thread: int
    registers: int
    local_bytes: int  # spilled or indexed registers
    shared_bytes: int

    def bytes_per_element(self, in_loop: bool = False) -> float:
        """Bytes moved by 128-bit accesses, per element of the block."""
        wide = [a.bytes for a in self.accesses if a.bytes == WIDE and a.in_loop == in_loop]
        return sum(wide) / self.elements_per_thread

    def narrow(self, kind: str, size: int, in_loop: bool = False) -> int:
        """How many accesses of another width there are."""
        return sum(a.kind == kind and a.bytes == size and a.in_loop == in_loop for a in self.accesses)

    @property
    def narrow_accesses(self) -> int:
        return sum(a.bytes != WIDE for a in self.accesses)

    @property
    def atomics(self) -> int:
        return sum(a.kind in ("atom", "red") for a in self.accesses)


class _Card:
    """A card for Triton to compile for; it cannot run anything. Its number is its capability, so caches stay apart."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_device(self) -> int:
        return self.capability

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, WARP)


@contextmanager
def compiling_for(capability: int) -> Iterator[None]:
    """Kernels compiled inside are for this compute capability (80, 90, 100, ...), whatever is in the machine."""
    driver = triton.runtime.driver
    before = driver._active  # `reset_active` would look for a real card
    driver.set_active(_Card(capability))
    try:
        yield
    finally:
        driver.set_active(before)


def traffic_of(launch: Launch, elements: int, capability: int) -> Traffic:
    """The traffic of a launch whose programs work on blocks of `elements`."""
    with compiling_for(capability):
        compiled = launch.compile()
    registers, local_bytes = _resources(compiled.asm["cubin"])
    return Traffic(
        accesses=tuple(_accesses(compiled.asm["ptx"])),
        elements_per_thread=elements // (launch.warps * WARP),
        registers=registers,
        local_bytes=local_bytes,
        shared_bytes=compiled.metadata.shared,
    )


def _accesses(ptx: str) -> Iterator[Access]:
    lines = [line.strip() for line in ptx.splitlines()]
    loops = list(_loops(lines))
    for number, line in enumerate(lines):
        match = _MEMORY.match(line)
        if match and not _HARMLESS.match(match[1]):
            yield _access(match[1], any(begin < number < end for begin, end in loops))


def _access(opcode: str, in_loop: bool) -> Access:
    match = _GLOBAL.match(opcode)
    if match is None:
        raise ValueError(f"opcode: {opcode!r} touches memory in a way that is not counted")
    kind, vector, bits = match.groups()
    return Access(kind, int(vector or 1) * int(bits) // 8, in_loop)


def _loops(lines: list[str]) -> Iterator[tuple[int, int]]:
    """First and last line of every loop: a label and a later branch back to it."""
    labels: dict[str, int] = {}
    for number, line in enumerate(lines):
        if match := _LABEL.match(line):
            labels[match[1]] = number
        elif (match := _BRANCH.search(line)) and match[1] in labels:
            yield labels[match[1]], number


@lru_cache(maxsize=1)
def _cuobjdump() -> str:
    path: Any = triton.knobs.nvidia.cuobjdump.path
    return str(path)


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers, and bytes of local memory (stack and spills), per thread."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        command = [_cuobjdump(), "--dump-resource-usage", str(file)]
        report = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    numbers = dict(re.findall(r"\b(REG|STACK|LOCAL):(\d+)", report))
    return int(numbers["REG"]), int(numbers["STACK"]) + int(numbers["LOCAL"])
