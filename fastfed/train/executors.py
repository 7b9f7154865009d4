"""Which executor trains: by name, or `auto`, the fastest that can run the model; each says why."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn

from ..data import Examples
from ..kernels.table import nearest
from ..losses import Loss, find_padded_loss
from ..program import Unsupported
from .batched import Batched
from .device import Device
from .eager import Eager
from .split import Split
from .work import Outcome, RoundWork

EXECUTORS = ("eager", "batched", "native", "device", "auto")


class Executor(Protocol):
    """Trains rounds of one module on one store of examples. `why` is a sentence: why this one."""

    name: str
    why: str

    def run(self, work: RoundWork) -> Outcome: ...


def make(
    executor: str,
    module: nn.Module,
    loss: Loss,
    examples: Examples,
    *,
    threads: int | None = None,
    device: torch.device | str = "cpu",
    split: Split | None = None,
) -> Executor:
    """The executor of that name.

    `auto` is `batched` on a GPU where it has the loss; on the CPU `native` where it supports the module and the loss;
    else `eager`. `split`: works will ask for a contrast, which takes a model that splits there.
    """
    if executor not in EXECUTORS:
        raise ValueError(
            f"executor: must be one of {', '.join(EXECUTORS)}, got {executor!r}.{nearest(executor, EXECUTORS)}"
        )
    if executor == "eager":
        return Eager(module, loss, examples, threads=threads, device=device, split=split)
    if executor == "batched":
        return Batched(module, loss, examples, threads=threads, device=device, split=split)
    if executor == "native":
        return _native(module, loss, examples, threads, device, split)
    if executor == "device":
        return Device(module, loss, examples, threads=threads, device=device, split=split)
    return _fastest(module, loss, examples, threads, device, split)


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
    if torch.device(device).type != "cpu":
        why_not = _why_not_padded(loss)
        if why_not is None:
            return Batched(module, loss, examples, threads=threads, device=device, split=split)
    else:
        try:
            return _native(module, loss, examples, threads, device, split)
        except ImportError as error:
            why_not = f"the native engine is not installed ({error})"
        except Unsupported as error:
            why_not = f"native cannot run this one ({error})"
    executor = Eager(module, loss, examples, threads=threads, device=device, split=split)
    executor.why = f"{Eager.why}, and {why_not}"
    return executor


def _why_not_padded(loss: Loss) -> str | None:
    """Why batches of this loss cannot be padded, as `batched` does; None if they can."""
    try:
        find_padded_loss(loss)
    except ValueError as error:
        return f"batched cannot run this one ({error})"
    return None
