"""Which executor trains: by name, or `auto`, the fastest that can run the model; each says why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from ..checks import nearest
from ..data import Examples
from ..losses import Loss, find_padded_loss
from ..program import Unsupported
from .batched import Batched
from .device import Device, SeveralDevices
from .eager import Eager
from .split import Split
from .work import Outcome, RoundWork

Predict = Callable[[Tensor, Examples, Tensor], Tensor]  # packed model (d,), examples, rows (n,) -> outputs (n, ...)

EXECUTORS = ("eager", "batched", "native", "device", "auto")


class Executor(Protocol):
    """Trains rounds of one module on one store of examples. `why` is a sentence: why this one."""

    name: str
    why: str

    @property
    def predict(self) -> Predict | None:
        """Computes the outputs of a packed model (d,) for rows (n,) of examples; None: torch has to."""

    def run(self, work: RoundWork) -> Outcome: ...


def make(
    executor: str,
    module: nn.Module,
    loss: Loss,
    examples: Examples,
    *,
    threads: int | None = None,
    device: torch.device | str | Sequence[torch.device] = "cpu",
    split: Split | None = None,
) -> Executor:
    """The executor of that name, on one device or, if it is `device`, on several.

    `auto` is on a GPU `device` where it supports the module and the loss, else `batched` where it has the loss; on the
    CPU `native`, likewise; else `eager`. `split`: works will ask for a contrast, which takes a model that splits there.
    """
    if executor not in EXECUTORS:
        raise ValueError(
            f"executor: must be one of {', '.join(EXECUTORS)}, got {executor!r}.{nearest(executor, EXECUTORS)}"
        )
    if not isinstance(device, str | torch.device):
        if len(device) > 1:
            return _several(executor, module, loss, examples, threads, device, split)
        device = device[0]
    if executor == "eager":
        return Eager(module, loss, examples, threads=threads, device=device, split=split)
    if executor == "batched":
        _check_padded(loss)
        return Batched(module, loss, examples, threads=threads, device=device, split=split)
    if executor == "native":
        return _native(module, loss, examples, threads, device, split)
    if executor == "device":
        return Device(module, loss, examples, threads=threads, device=device, split=split)
    return _fastest(module, loss, examples, threads, device, split)


def _several(
    executor: str,
    module: nn.Module,
    loss: Loss,
    examples: Examples,
    threads: int | None,
    devices: Sequence[torch.device],
    split: Split | None,
) -> Executor:
    if executor not in ("device", "auto"):
        names = ", ".join(map(str, devices))
        raise ValueError(f"device: executor {executor!r} runs on one, only 'device' on several, got {names}")
    return SeveralDevices(module, loss, examples, devices=devices, threads=threads, split=split)


def _check_padded(loss: Loss) -> None:
    """`batched` pads batches, which takes a loss that knows of it."""
    try:
        find_padded_loss(loss)
    except ValueError as error:
        raise Unsupported(str(error)) from error


def _native(
    module: nn.Module,
    loss: Loss,
    examples: Examples,
    threads: int | None,
    device: torch.device | str,
    split: Split | None,
) -> Executor:
    from .native import Native  # here: without a C++ compiler the rest works

    native: Executor = Native(module, loss, examples, threads=threads, device=device, split=split)
    return native


def _fastest(
    module: nn.Module,
    loss: Loss,
    examples: Examples,
    threads: int | None,
    device: torch.device | str,
    split: Split | None,
) -> Executor:
    """The first that can run it, saying which faster ones cannot, and why."""
    on_cpu = torch.device(device).type == "cpu"
    why_not: list[str] = []
    for name in ("native",) if on_cpu else ("device", "batched"):
        try:
            executor = make(name, module, loss, examples, threads=threads, device=device, split=split)
            break
        except ImportError as error:
            why_not.append(f"the {name} engine is not installed ({error})")
        except Unsupported as error:
            why_not.append(f"{name} cannot run this one ({error})")
    else:
        executor = Eager(module, loss, examples, threads=threads, device=device, split=split)
    if why_not:
        executor.why = f"{executor.why}, and {'; '.join(why_not)}"
    return executor
