"""Which executor trains: by name, or `auto`, the fastest that can run the model; each says why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..checks import nearest
from ..clients import Algorithm
from ..data import Examples
from ..kernels import extension
from ..losses import Loss, LossReduction, check_reduction, find_padded_loss
from ..program import Unsupported
from .batched import Batched
from .device import Device, SeveralDevices
from .eager import Eager
from .fits import check_fits
from .split import Split
from .work import Outcome, RoundWork


class Predict(Protocol):
    """Packed model (d,), examples, rows (n,), statistics (s,) of batch norms, if any -> outputs (n, ...)."""

    def __call__(self, x: Tensor, examples: Examples, rows: Tensor, statistics: Tensor | None = None, /) -> Tensor: ...


_PYTHON = ("eager", "batched")  # those that see how a module's layers fit only when they run it
EXECUTORS = ("eager", "batched", "native", "device", "auto")


class Executor(Protocol):
    """Trains rounds of one module on one store of examples, and predicts with any packed model of it. What every one
    promises is in docs/embed.md. `why` is a sentence: why this one."""

    name: str
    why: str
    predicts_itself: bool  # on its own engine and threads; else torch computes outputs, one thread each

    @property
    def examples(self) -> Examples:
        """The store that works read unless they bring one of their own."""

    @property
    def predict(self) -> Predict:
        """Computes the outputs of a packed model (d,) for rows (n,) of examples, with dropout off."""

    def run(self, work: RoundWork) -> Outcome:
        """Trains the clients of a round. Nothing of it stays."""


def make(
    executor: str,
    module: nn.Module,
    loss: Loss,
    examples: Examples,
    *,
    threads: int | None = None,
    device: torch.device | str | Sequence[torch.device] = "cpu",
    split: Split | None = None,
    reduction: LossReduction = "mean",
    algorithm: Algorithm | None = None,
) -> Executor:
    """The executor of that name, on one device or, if it is `device`, on several.

    `auto` is on a GPU `device` where it supports the module and the loss, else `batched` where it has the loss; on the
    CPU `native`, likewise; else `eager`. `split`: works will ask for a contrast, which takes a model that splits there.
    `reduction`: of a batch's losses to one (``fastfed.losses``). `algorithm`: in Python, which all clients run: then
    `auto` is `eager`, or `batched` on a GPU where the algorithm is vectorised.
    """
    if executor not in EXECUTORS:
        raise ValueError(
            f"executor: must be one of {', '.join(EXECUTORS)}, got {executor!r}.{nearest(executor, EXECUTORS)}"
        )
    check_reduction(loss, reduction, examples.targets)
    devices = (device,) if isinstance(device, str | torch.device) else tuple(device)
    given = _Given(module, loss, examples, threads, split, reduction)
    try:
        made = _made(executor, given, algorithm, devices)
    except Unsupported:
        check_fits(module, loss, examples)  # what no executor could run is told in these words
        raise
    if made.name in _PYTHON:
        check_fits(module, loss, examples)
    return made


def _made(executor: str, given: _Given, algorithm: Algorithm | None, devices: Sequence[torch.device | str]) -> Executor:
    if algorithm is not None:
        return _for_algorithm(algorithm, executor, given, devices)
    if len(devices) > 1:
        return _several(executor, given, devices)
    return _fastest(given, devices[0]) if executor == "auto" else _named(executor, given, devices[0])


@dataclass(frozen=True)
class _Given:
    """What every executor is made of, but for its device."""

    module: nn.Module
    loss: Loss
    examples: Examples
    threads: int | None
    split: Split | None
    reduction: LossReduction

    def make(self, kind: Callable[..., Executor], **where: Any) -> Executor:
        shared = {"threads": self.threads, "split": self.split, "reduction": self.reduction}
        return kind(self.module, self.loss, self.examples, **shared, **where)


def _for_algorithm(
    algorithm: Algorithm, executor: str, given: _Given, devices: Sequence[torch.device | str]
) -> Executor:
    """The executor that runs an algorithm in Python, saying why it is no faster one."""
    if executor in ("native", "device") or len(devices) > 1:
        name = executor if len(devices) == 1 else "device"
        raise Unsupported(f"executor: {name!r} runs no Python, as {algorithm.rule} is; take 'eager' or 'auto'")
    if executor == "batched" and not algorithm.vectorised:
        raise Unsupported(
            f"executor: 'batched' runs algorithms that say `vectorised = True`, and {algorithm.rule} does not; "
            "take 'eager'"
        )
    on_gpu = torch.device(devices[0]).type != "cpu"
    because = f"{algorithm.rule} is an algorithm in Python, which the engines do not run"
    name = "eager" if executor == "auto" else executor
    if executor == "auto" and on_gpu and algorithm.vectorised:
        try:
            made = _named("batched", given, devices[0])
            made.why = f"{made.why}: {because}"
            return made
        except Unsupported as error:
            because = f"{because}; batched cannot run this one ({error})"
    made = _named(name, given, devices[0])
    made.why = f"{made.why}: {because}"
    return made


def _several(executor: str, given: _Given, devices: Sequence[torch.device | str]) -> Executor:
    if executor not in ("device", "auto"):
        names = ", ".join(map(str, devices))
        raise ValueError(f"device: executor {executor!r} runs on one, only 'device' on several, got {names}")
    return given.make(SeveralDevices, devices=devices)


def _named(executor: str, given: _Given, device: torch.device | str) -> Executor:
    if executor == "native":
        missing = extension.why_not()
        if missing is not None:
            raise Unsupported(missing)
        from .native import Native  # here: without a C++ compiler the rest works

        return given.make(Native, device=device)
    if executor == "batched":
        _check_padded(given.loss)
    return given.make({"eager": Eager, "batched": Batched, "device": Device}[executor], device=device)


def _check_padded(loss: Loss) -> None:
    """`batched` pads batches, which takes a loss that knows of it."""
    try:
        find_padded_loss(loss)
    except ValueError as error:
        raise Unsupported(str(error)) from error


def _fastest(given: _Given, device: torch.device | str) -> Executor:
    """The first that can run it, saying which faster ones cannot, and why."""
    on_cpu = torch.device(device).type == "cpu"
    why_not: list[str] = []
    for name in ("native",) if on_cpu else ("device", "batched"):
        try:
            executor = _named(name, given, device)
            break
        except ImportError as error:
            why_not.append(f"the {name} engine is not installed ({error})")
        except Unsupported as error:
            why_not.append(f"{name} cannot run this one ({error})")
    else:
        executor = _named("eager", given, device)
    if why_not:
        executor.why = f"{executor.why}, and {'; '.join(why_not)}"
    return executor
