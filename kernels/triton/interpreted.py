"""What interpreted kernels do, told to observers: every access to memory, every product, every barrier.

Triton's interpreter runs a launch program by program and a program instruction by instruction, so an observer sees one
order of many that a card could take. What it is told suffices to judge the others (``races.py``) and to add up what was
moved and multiplied (``counted.py``).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import triton
from torch import Tensor
from triton.runtime import interpreter

from ..registry import interpreting
from .tiles import WARP, WARPS

READ, WRITE = "read", "write"  # other kinds of access are the names of atomic operations: "max", "fadd", "cas"
_Place = tuple[CodeType, int]
_TRITON = str(Path(triton.__file__).parent)


@dataclass(frozen=True)
class Started:
    """A launch about to run: its kernel's name, threads per program, and the tensors among its arguments."""

    kernel: str
    threads: int
    tensors: dict[str, Tensor]  # by argument; a tuple's members are "argument.member"


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """One instruction of one program on memory, without its masked elements.

    `starts` (n,) are addresses of elements of `item_bytes`; `elements` (n,) which of the tile of `shape` those are;
    `bits` (n,) what a write stores, as unsigned integers, else None.
    """

    kind: str
    starts: np.ndarray
    item_bytes: int
    elements: np.ndarray
    shape: tuple[int, ...]
    bits: np.ndarray | None
    places: tuple[_Place, ...]

    @property
    def line(self) -> str:
        """Where the instruction stands, callers first: "norms.py:30 > vectors.py:55"."""
        return " > ".join(f"{Path(code.co_filename).name}:{number}" for code, number in reversed(self.places))


@dataclass(frozen=True)
class Product:
    """One `tl.dot` of (rows, inner) with (inner, cols), `batch` times.

    `precision` is what the kernel asked for ("ieee", "tf32", "tf32x3") or, of narrower operands, their type ("bf16").
    """

    batch: int
    rows: int
    inner: int
    cols: int
    precision: str

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.rows * self.inner * self.cols


class Observer:
    """Told of everything in its order, accesses before they happen. Subclasses override what they care about."""

    def launch_starts(self, launch: Started) -> None: ...
    def program_starts(self, index: tuple[int, int, int]) -> None: ...
    def access(self, access: Access) -> None: ...
    def product(self, product: Product) -> None: ...
    def barrier(self) -> None: ...
    def launch_ends(self) -> None: ...


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Kernels launched inside report to `observer`; needs TRITON_INTERPRET=1."""
    if not interpreting():
        raise RuntimeError("TRITON_INTERPRET: is not 1, and only interpreted kernels can be observed")
    undo = _patch(observer)
    try:
        yield
    finally:
        for restore in reversed(undo):
            restore()


# ---- the interpreter's own functions, wrapped -----------------------------------------------------------------------


def _patch(observer: Observer) -> list[Callable[[], None]]:
    """Wraps what reaches memory in the interpreter; all other forms of loads and stores call the ones wrapped here."""
    builder, undo = interpreter.interpreter_builder, []

    def replace(owner: Any, name: str, made: Callable[[Any], Any]) -> None:
        own, before = name in vars(owner), getattr(owner, name)
        setattr(owner, name, made(before))
        undo.append(lambda: setattr(owner, name, before) if own else delattr(owner, name))

    replace(interpreter.GridExecutor, "__call__", lambda before: _launching(before, observer))
    replace(builder, "set_grid_idx", lambda before: _starting_program(before, observer))
    replace(builder, "create_barrier", lambda before: _stopping(before, observer))
    replace(builder, "create_masked_load", lambda before: _loading(before, observer))
    replace(builder, "create_masked_store", lambda before: _storing(before, observer))
    replace(builder, "create_atomic_rmw", lambda before: _raising(before, observer))
    replace(builder, "create_atomic_cas", lambda before: _swapping(before, observer))
    replace(builder, "create_dot", lambda before: _multiplying(before, observer))
    return undo


def _launching(before: Any, observer: Observer) -> Any:
    def run(executor: Any, *args: Any, **kwargs: Any) -> Any:
        observer.launch_starts(_started(executor.fn, args, kwargs))
        result = before(executor, *args, **kwargs)
        observer.launch_ends()
        return result

    return run


def _started(function: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Started:
    known = inspect.getfullargspec(function)
    given = {name: value for name, value in options.items() if name in known.args or name in known.kwonlyargs}
    tensors = dict(_tensors(inspect.getcallargs(function, *args, **given)))
    return Started(function.__name__, WARP * options.get("num_warps", WARPS), tensors)


def _tensors(arguments: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    for name, value in arguments.items():
        if isinstance(value, Tensor):
            yield name, value
        elif isinstance(value, tuple):
            names = getattr(value, "_fields", range(len(value)))
            yield from _tensors({f"{name}.{part}": member for part, member in zip(names, value, strict=True)})


def _starting_program(before: Any, observer: Observer) -> Any:
    def set_grid_idx(x: int, y: int, z: int) -> None:
        observer.program_starts((x, y, z))
        before(x, y, z)

    return set_grid_idx


def _stopping(before: Any, observer: Observer) -> Any:
    def create_barrier() -> Any:
        observer.barrier()
        return before()

    return create_barrier


def _loading(before: Any, observer: Observer) -> Any:
    def create_masked_load(ptrs: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        observer.access(_access(READ, ptrs, mask))
        return before(ptrs, mask, *rest, **named)

    return create_masked_load


def _storing(before: Any, observer: Observer) -> Any:
    def create_masked_store(ptrs: Any, value: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        observer.access(_access(WRITE, ptrs, mask, value))
        return before(ptrs, value, mask, *rest, **named)

    return create_masked_store


def _raising(before: Any, observer: Observer) -> Any:
    def create_atomic_rmw(operation: Any, ptr: Any, value: Any, mask: Any, *rest: Any) -> Any:
        observer.access(_access(operation.name.lower(), ptr, mask))
        return before(operation, ptr, value, mask, *rest)

    return create_atomic_rmw


def _swapping(before: Any, observer: Observer) -> Any:
    def create_atomic_cas(ptr: Any, *rest: Any) -> Any:
        observer.access(_access("cas", ptr, None))
        return before(ptr, *rest)

    return create_atomic_cas


def _multiplying(before: Any, observer: Observer) -> Any:
    def create_dot(a: Any, b: Any, d: Any, precision: Any, *rest: Any) -> Any:
        *batch, rows, inner = a.data.shape
        how = precision.name.lower() if a.dtype.scalar.is_fp32() else str(a.dtype.scalar)
        observer.product(Product(int(np.prod(batch)), rows, inner, b.data.shape[-1], how))
        return before(a, b, d, precision, *rest)

    return create_dot


def _access(kind: str, ptrs: Any, mask: Any, value: Any = None) -> Access:
    addresses = ptrs.data
    shape, item_bytes = addresses.shape, max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
    exists = None if mask is None else np.broadcast_to(mask.data, shape).reshape(-1)
    starts, elements = addresses.astype(np.int64).reshape(-1), _elements(addresses.size)
    bits = None if value is None else _bits(np.broadcast_to(value.data, shape).reshape(-1))
    if exists is not None and not exists.all():
        starts, elements = starts[exists], elements[exists]
        bits = None if bits is None else bits[exists]
    return Access(kind, starts, item_bytes, elements, shape, bits, _places())


@lru_cache(maxsize=64)
def _elements(size: int) -> np.ndarray:
    return np.arange(size)


def _bits(values: np.ndarray) -> np.ndarray:
    """A NaN must equal itself here."""
    return np.ascontiguousarray(values).view(f"u{values.itemsize}")


def _places() -> tuple[_Place, ...]:
    """The lines of kernels that are being run, innermost first: those between Triton's own and the launch."""
    places: list[_Place] = []
    frame = sys._getframe(3)
    while frame is not None and frame.f_code is not _RUN_GRID:
        if not frame.f_code.co_filename.startswith(_TRITON):
            places.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(places)


_RUN_GRID = interpreter.GridExecutor.__call__.__code__
