"""Launches counted, written down, and made on the device of their tensors. No card is needed."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from fastfed.kernels import backend_ops
from fastfed.kernels.triton import launch as launching
from fastfed.kernels.triton.launch import Launch, launch, launches, recorded


def _norms() -> None:
    backend_ops.load("triton").norms(torch.ones(2, 5), torch.zeros(2, dtype=torch.float64))


def test_launches_are_counted_by_name_without_running() -> None:
    with launches(run=False) as seen:
        _norms()
        _norms()
    assert seen == Counter({"_row_squares": 2, "_fold": 2})


def test_counted_launches_run_if_nothing_else_forbids(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr(Launch, "run", lambda self: ran.append(self.kernel.__name__))
    with launches() as seen:
        _norms()
        with recorded() as items:
            _norms()
    assert seen == Counter({"_row_squares": 2, "_fold": 2})
    assert [item.kernel.__name__ for item in items] == ran == ["_row_squares", "_fold"]
    with launches() as later:
        pass
    assert not later


def test_counting_ends_when_the_block_fails() -> None:
    with pytest.raises(ZeroDivisionError), launches(run=False):
        raise ZeroDivisionError
    assert launching._witnesses == []


@pytest.mark.parametrize(("device", "switched"), [(0, []), (1, [torch.device("cuda", 1)])])
def test_the_device_is_switched_only_where_it_differs(
    monkeypatch: pytest.MonkeyPatch, device: int, switched: list[torch.device]
) -> None:
    made: list[torch.device] = []

    @contextmanager
    def switch(to: torch.device) -> Any:
        made.append(to)
        yield

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", switch)
    monkeypatch.setattr(Launch, "run", lambda self: None)
    there = torch.device("cuda", device)
    on: Any = SimpleNamespace(is_cuda=True, device=there, get_device=lambda: device)
    launch(None, 1, on)
    assert made == switched
