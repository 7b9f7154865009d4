"""How kernels are launched: compiler options, the device; and how launches are counted, or written down for compiling
ahead of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from .tiles import WARPS


@dataclass(frozen=True)
class Launch:
    """One launch: `programs` instances of `kernel` in a row."""

    kernel: Any
    programs: int
    args: tuple[Any, ...]
    constants: dict[str, Any]
    warps: int
    registers: int | None
    stages: int | None = None

    def run(self) -> None:
        self.kernel[(self.programs,)](*self.args, **self.constants, **self._options())

    def compile(self) -> Any:
        """The kernel as this launch would compile it for Triton's active device, without running it."""
        return self.kernel.warmup(*self.args, **self.constants, grid=(self.programs,), **self._options())

    def _options(self) -> dict[str, Any]:
        # No contraction into fused multiply-adds: the device rounds as the interpreter does in the tests, but for
        # division (2 ulp, Triton's `/`). The kernels wait for memory, so this costs nothing.
        options: dict[str, Any] = {"num_warps": self.warps, "enable_fp_fusion": False}
        given = {"maxnreg": self.registers, "num_stages": self.stages}
        return options | {name: value for name, value in given.items() if value is not None}


class _Witness(Protocol):
    """Told of every launch while it is among `_witnesses`."""

    runs: bool  # whether launches run all the same

    def see(self, item: Launch) -> None: ...


_witnesses: list[_Witness] = []


@contextmanager
def _witnessed(witness: _Witness) -> Iterator[None]:
    _witnesses.append(witness)
    try:
        yield
    finally:
        _witnesses.remove(witness)


@dataclass(eq=False)
class _Recorder:
    items: list[Launch] = field(default_factory=list)
    runs: bool = False

    def see(self, item: Launch) -> None:
        self.items.append(item)


@dataclass(eq=False)
class _Counter:
    runs: bool
    seen: Counter[str] = field(default_factory=Counter)

    def see(self, item: Launch) -> None:
        self.seen[item.kernel.__name__] += 1


@contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Launches made inside are written down instead of run."""
    recorder = _Recorder()
    with _witnessed(recorder):
        yield recorder.items


@contextmanager
def launches(run: bool = True) -> Iterator[Counter[str]]:
    """Counts the launches made inside by their kernels' names.

    `run=False` counts without running: what is left is the host's work, which can then be timed without a device.
    """
    counter = _Counter(run)
    with _witnessed(counter):
        yield counter.seen


@contextmanager
def taped() -> Iterator[list[Launch]]:
    """Launches made inside run, and are written down to be made `again`."""
    recorder = _Recorder(runs=True)
    with _witnessed(recorder):
        yield recorder.items


def stubbed() -> bool:
    """Whether launches are only counted or written down, so that tensors may be anywhere."""
    return any(not witness.runs for witness in _witnesses)


def launch(
    kernel: Any,
    programs: int,
    on: Tensor,
    *args: Any,
    warps: int = WARPS,
    registers: int | None = None,
    stages: int | None = None,
    **constants: Any,
) -> None:
    """Runs `programs` instances of `kernel` on the device of the tensor `on`; `constants` are compiled in."""
    item = Launch(kernel, programs, args, constants, warps, registers, stages)
    if on.is_cuda and on.get_device() != torch.cuda.current_device():
        with torch.cuda.device(on.device):  # Triton launches on the current device, whatever the tensors' own
            again(item)
    else:
        again(item)


def again(item: Launch) -> None:
    """Makes a launch, on the current device."""
    for witness in _witnesses:
        witness.see(item)
    if all(witness.runs for witness in _witnesses):
        item.run()
