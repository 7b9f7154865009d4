"""What the tests of the train room share: small rounds of work."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastfed as ff
from fastfed.clients import SGD
from fastfed.data import Examples
from fastfed.train import Outcome, RoundWork, executors
from fastfed.train.device import self_test
from fastfed.train.executors import Executor

DEVICE = os.environ.get("FASTFED_DEVICE", "cpu")  # where 'device' is tested: "cuda" where there is a card
TIMES = 2.0 if DEVICE == "cpu" else self_test.FACTOR  # eager's error in float32 that others may have; see FACTOR


def simd_levels() -> list[Any]:
    """All SIMD levels: the one that this machine takes, and, for `make device-proof`, the others."""
    try:
        from fastfed import _core
    except ImportError:  # whoever asks is skipped, and says so
        return []
    built = _core.build_info()
    return [
        pytest.param(level, marks=() if level == built["simd"] else pytest.mark.exhaustive)
        for level in built["simd_compiled"]
    ]


def other_levels() -> list[str]:
    """The SIMD levels that are compiled in, without the one that this process has."""
    try:
        from fastfed import _core
    except ImportError:
        return []
    built = _core.build_info()
    return [level for level in built["simd_compiled"] if level != built["simd"]]


def printed_at(level: str, program: str, **asked: str) -> list[str]:
    """The lines that a Python program prints at this SIMD level, with what is `asked` for in its environment; the test
    is skipped where the processor has not that level."""
    environment = {**os.environ, **asked, "FASTFED_SIMD": level}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    if "this processor has no" in done.stderr or "must be one of" in done.stderr:
        pytest.skip(f"{level} does not run here: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@dataclass(frozen=True)
class Fetched:
    """An executor of a device, whose outcomes are fetched for comparison."""

    executor: Executor

    def run(self, work: RoundWork) -> Outcome:
        found = self.executor.run(work)
        deltas = None if found.deltas is None else found.deltas.cpu()
        return replace(found, delta=found.delta.cpu(), deltas=deltas)


def make(executor: str, module: nn.Module, loss: Any, examples: Examples, **given: Any) -> Any:
    """The executor of that name; `device` on the device that this session tests."""
    if executor == "device":
        given = {"device": DEVICE, **given}
    made = executors.make(executor, module, loss, examples, **given)
    return Fetched(made) if executor == "device" and DEVICE != "cpu" else made


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal numbers, the same float32 ones in every dtype."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def labels(seed: int, classes: int, *shape: int) -> Tensor:
    return torch.randint(classes, shape, generator=torch.Generator().manual_seed(seed))


def network() -> nn.Module:
    """Six numbers to three classes; the same parameters every time."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def vectors(rows: int = 40) -> Examples:
    return Examples(normal(1, rows, 6), labels(2, 3, rows))


def round_of(
    start: Tensor | nn.Module,
    sizes: Sequence[int] = (9, 4, 6),
    dtype: torch.dtype = torch.float32,
    **given: Any,
) -> RoundWork:
    """A round of clients with these numbers of examples, the rows of each side by side; `given` goes to the work."""
    if isinstance(start, nn.Module):
        start = ff.Packing.of(start).pack(start).to(dtype)
    clients = len(sizes)
    usual: dict[str, Any] = {
        "rows": torch.arange(sum(sizes)),
        "offsets": torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()]),
        "ids": torch.arange(clients) * 7 + 3,
        "steps": torch.full((clients,), 4),
        "batch_size": 4,
        "optimizers": (SGD(lr=0.5),),
        "keep_deltas": True,
    }
    return RoundWork(start=start, **{**usual, **given})


def train(module: nn.Module, work: RoundWork, executor: str = "eager", loss: Any = "cross_entropy") -> Outcome:
    return make(executor, module, loss, vectors()).run(work)
