"""What a compiled kernel moves and multiplies: launches compiled for a card that need not be here, and counted.

The launches are the backend's own, written down instead of run, so sizes, alignments and options are production's. The
accesses and products are read off the PTX (every one of them: an opcode that is not understood is an error), registers
and spills off the machine code; what fits on a multiprocessor follows (``cards.py``).
"""

from __future__ import annotations

import math
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget

from .cards import MULTIPROCESSORS
from .launch import Launch
from .tiles import WARP

WIDE = 16  # bytes of the widest access that every card has
_PREDICATE = r"^(?:@!?%p\d+ )?"
_MEMORY = re.compile(_PREDICATE + r"((?:ld|st|ldu|atom|red|cp|prefetch)\.[\w.:]+)")
_HARMLESS = re.compile(r"^(?:ld\.param|ld\.shared|st\.shared|cp\.async\.(?:wait|commit|mbarrier))")
_GLOBAL = re.compile(r"^(ld|st|atom|red)\.(?:[\w:]+\.)*?global\.(?:[\w:]+\.)*?(?:v(\d)\.)?[bufs](\d+)$")
_COPY = re.compile(_PREDICATE + r"cp\.async\.c[ag]\.shared(?:::cta)?\.global(?:\.[\w:]+)* \[.*?\], \[.*?\], (\w+)")
_MMA = re.compile(
    _PREDICATE + r"(mma\.sync|wgmma\.mma_async)(?:\.[\w:]+)*?\.m(\d+)n(\d+)k(\d+)\.(?:row\.col\.)?\w+\.(\w+)\."
)
_TENSOR_MEMORY_MMA = re.compile(_PREDICATE + r"(tcgen05\.mma)\.[\w:.]*?kind::(\w+)")
_LOCAL = re.compile(r"\b(?:LDL|STL)\b")  # in machine code
_LABEL = re.compile(r"^(\$\w+):")
_BRANCH = re.compile(r"\bbra(?:\.uni)?\s+(\$\w+);")
_LEAVES = re.compile(r"^(?:ret|exit|trap)\b")
_TILE = re.compile(
    r"(tt\.load|tt\.store|async_copy_global_to_local) .*?: tensor<([\dx]+)x!tt\.ptr<(\w+)>, (#\w+(?:<.*?>>?)?)"
)
_WARPS_OF_MMA = {"mma.sync": 1, "wgmma.mma_async": 4}  # that carry one out together


@dataclass(frozen=True)
class Access:
    """One instruction on global memory: "ld", "st", "atom", "red" or "cp.async" (a read on its way to shared memory),
    its bytes per thread, and the loops around it (``Traffic.loops`` of them are numbered), outermost first."""

    kind: str
    bytes: int
    loops: tuple[int, ...] = ()

    @property
    def reads(self) -> bool:
        return self.kind in ("ld", "cp.async")


@dataclass(frozen=True)
class Mma:
    """One instruction of the tensor cores: its family, the numbers it multiplies, its (m, n, k) where the instruction
    says so, and the loops around it."""

    family: str
    numbers: str
    shape: tuple[int, int, int] | None
    loops: tuple[int, ...] = ()


@dataclass(frozen=True)
class Traffic:
    """The accesses and products of one compiled kernel, and what it needs of the card.

    `loops` is how many loops hold an access or a product, in the order of the code. How often they turn the code does
    not say: `turns` in the methods below is the caller's, one number for each. Masked elements count, and so do the
    first turns' copies that a pipelined loop makes before it starts: the interpreter (``counted.py``) has exact bytes.
    """

    accesses: tuple[Access, ...]
    products: tuple[Mma, ...]
    loops: int
    elements_per_thread: int
    registers: int
    local_bytes: int  # spilled or indexed registers; 0 for a frame that no instruction touches
    shared_bytes: int
    warps: int
    capability: int
    layouts: frozenset[tuple[str, str, str]]  # (operation, tile as "64x32xf32", layout)

    def bytes_per_element(self, *loops: int) -> float:
        """Bytes moved by 128-bit accesses, per element of the block: outside all loops, or in one turn of `loops`."""
        wide = [a.bytes for a in self.accesses if a.bytes == WIDE and a.loops == loops]
        return sum(wide) / self.elements_per_thread

    def bytes_read(self, turns: Sequence[int] = ()) -> int:
        """By one program."""
        return self._bytes(turns, lambda access: access.reads)

    def bytes_written(self, turns: Sequence[int] = ()) -> int:
        """By one program, atomics apart."""
        return self._bytes(turns, lambda access: access.kind == "st")

    def _bytes(self, turns: Sequence[int], wanted: Callable[[Access], bool]) -> int:
        times = self._times(turns)
        return WARP * self.warps * sum(a.bytes * times(a.loops) for a in self.accesses if wanted(a))

    def mma_flops(self, turns: Sequence[int] = ()) -> int:
        """Of one program's products, every pass counted."""
        times = self._times(turns)
        return sum(
            2 * math.prod(_shape(p)) * self.warps // _WARPS_OF_MMA[p.family] * times(p.loops) for p in self.products
        )

    def _times(self, turns: Sequence[int]) -> Callable[[tuple[int, ...]], int]:
        if len(turns) != self.loops:
            raise ValueError(
                f"turns: the kernel has {self.loops} loops that move or multiply, got {len(turns)} numbers"
            )
        return lambda loops: math.prod(turns[loop] for loop in loops)

    @property
    def mma_families(self) -> frozenset[str]:
        return frozenset(product.family for product in self.products)

    @property
    def narrow_accesses(self) -> int:
        return sum(a.bytes != WIDE for a in self.accesses)

    @property
    def atomics(self) -> int:
        return sum(a.kind in ("atom", "red") for a in self.accesses)

    @property
    def resident(self) -> int:
        """Programs that a multiprocessor holds at once."""
        return MULTIPROCESSORS[self.capability].resident(self.registers, self.shared_bytes, self.warps)

    @property
    def occupancy(self) -> float:
        """Resident warps over those that a multiprocessor could hold."""
        return self.resident * self.warps / MULTIPROCESSORS[self.capability].warps

    def in_place_layouts(self) -> dict[str, set[str]]:
        """The layouts of every tile that is read and written: one each, if a thread writes back what it has read."""
        tiles = {
            loads: {tile for op, tile, _ in self.layouts if (op != "tt.store") == loads} for loads in (True, False)
        }
        both = tiles[True] & tiles[False]
        return {tile: {layout for _, other, layout in self.layouts if other == tile} for tile in both}


def _shape(product: Mma) -> tuple[int, int, int]:
    if product.shape is None:
        raise ValueError(f"products: {product.family} keeps its shape in a descriptor, so its work cannot be counted")
    return product.shape


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
    accesses, products, loops = read_code(compiled.asm["ptx"])
    return Traffic(
        accesses=accesses,
        products=products,
        loops=loops,
        elements_per_thread=elements // (launch.warps * WARP),
        registers=registers,
        local_bytes=local_bytes,
        shared_bytes=compiled.metadata.shared,
        warps=launch.warps,
        capability=capability,
        layouts=frozenset(_tiles(compiled.asm["ttgir"])),
    )


def read_code(ptx: str) -> tuple[tuple[Access, ...], tuple[Mma, ...], int]:
    """Accesses, products, and the number of loops that hold any of them."""
    lines = [line.strip() for line in ptx.splitlines()]
    found = [(number, item) for number, line in enumerate(lines) if (item := _access(line) or _product(line))]
    loops = [loop for loop in _loops(lines) if any(number in loop for number, _ in found)]
    placed = [replace(item, loops=tuple(i for i, loop in enumerate(loops) if number in loop)) for number, item in found]
    accesses = tuple(item for item in placed if isinstance(item, Access))
    return accesses, tuple(item for item in placed if isinstance(item, Mma)), len(loops)


def _access(line: str) -> Access | None:
    """None for a line that leaves global memory alone."""
    match = _MEMORY.match(line)
    if match is None or _HARMLESS.match(match[1]):
        return None
    if copied := _COPY.match(line):
        return Access("cp.async", int(copied[1], 0))
    known = _GLOBAL.match(match[1])
    if known is None:
        raise ValueError(f"opcode: {match[1]!r} touches memory in a way that is not counted")
    kind, vector, bits = known.groups()
    return Access(kind, int(vector or 1) * int(bits) // 8)


def _product(line: str) -> Mma | None:
    if match := _MMA.match(line):
        family, m, n, k, numbers = match.groups()
        return Mma(family, numbers, (int(m), int(n), int(k)))
    if match := _TENSOR_MEMORY_MMA.match(line):
        return Mma(match[1], match[2], None)
    return None


def _tiles(ttgir: str) -> Iterator[tuple[str, str, str]]:
    for operation, shape, numbers, layout in _TILE.findall(ttgir):
        yield operation, f"{shape}x{numbers}", layout


def _loops(lines: list[str]) -> list[set[int]]:
    """The lines of every loop, outer loops before inner ones: what lies between a label and a way back to it.

    A branch backwards alone is no loop: the compiler also moves code that is seldom used.
    """
    labels = {match[1]: number for number, line in enumerate(lines) if (match := _LABEL.match(line))}
    after = [list(_next_lines(number, line, labels)) for number, line in enumerate(lines)]
    before: list[list[int]] = [[] for _ in lines]
    for number, following in enumerate(after):
        for other in following:
            if other < len(lines):
                before[other].append(number)
    loops: dict[int, set[int]] = {}
    for number, following in enumerate(after):
        for head in following:
            if head <= number and number in (reached := _reachable(head, after)):
                loops.setdefault(head, set()).update(reached & _reachable(number, before, stop=head))
    return [loops[head] for head in sorted(loops)]


def _next_lines(number: int, line: str, labels: dict[str, int]) -> Iterator[int]:
    """Where a thread may go on."""
    branch = _BRANCH.search(line)
    if branch and branch[1] in labels:
        yield labels[branch[1]]
    always = not line.startswith("@")
    if not (always and (branch or _LEAVES.match(line))):
        yield number + 1


def _reachable(start: int, edges: list[list[int]], stop: int | None = None) -> set[int]:
    """Where `edges` lead from `start`, itself included, without going beyond `stop`."""
    seen, waiting = {start}, [start]
    while waiting:
        number = waiting.pop()
        if number == stop or number >= len(edges):
            continue
        fresh = [other for other in edges[number] if other not in seen]
        seen.update(fresh)
        waiting += fresh
    return seen


@lru_cache(maxsize=1)
def _cuobjdump() -> str:
    path: Any = triton.knobs.nvidia.cuobjdump.path
    return str(path)


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers, and bytes of local memory (stack and spills) that are used, per thread."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        command = [_cuobjdump(), "--dump-resource-usage", str(file)]
        numbers = dict(re.findall(r"\b(REG|STACK|LOCAL):(\d+)", _said(command)))
        local_bytes = int(numbers["STACK"]) + int(numbers["LOCAL"])
        if local_bytes and not _LOCAL.search(_said([_cuobjdump(), "-sass", str(file)])):
            local_bytes = 0
    return int(numbers["REG"]), local_bytes


def _said(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
