"""Threads that train on a device each: at once, on the caller's streams, and with its errors. No device is needed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fastfed.train.device.several import _in_turn, _side_by_side, _training

PATIENCE = 60.0  # seconds until a test that would wait for ever fails


def test_tasks_run_at_the_same_time() -> None:
    together = threading.Barrier(3)
    _side_by_side([lambda: (together.wait(PATIENCE), None)[1]] * 3)
    assert not together.broken


@pytest.mark.parametrize("run", [_side_by_side, _in_turn])
def test_an_error_of_one_is_the_callers(run: Any) -> None:
    def fail() -> None:
        raise MemoryError("card 1 is full")

    with pytest.raises(MemoryError, match="card 1 is full"):
        run([lambda: None, fail])


def test_an_error_waits_for_the_others() -> None:
    failed, ended = threading.Event(), []

    def fail() -> None:
        failed.set()
        raise MemoryError

    def go_on() -> None:
        failed.wait(PATIENCE)
        ended.append(True)

    with pytest.raises(MemoryError):
        _side_by_side([fail, go_on])
    assert ended == [True]


def test_a_thread_uses_the_stream_that_was_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[str] = []
    trained: list[tuple[str, list[str]]] = []

    @contextmanager
    def stream(chosen: str) -> Iterator[None]:
        entered.append(chosen)
        yield
        entered.remove(chosen)

    engine: Any = SimpleNamespace(
        device=torch.device("cuda", 1), train=lambda part: trained.append((part, list(entered)))
    )
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"a stream of {device}")
    monkeypatch.setattr(torch.cuda, "stream", stream)
    part: Any = "lanes"
    task = _training(engine, part)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"another stream of {device}")
    _side_by_side([task])
    assert trained == [("lanes", ["a stream of cuda:1"])]
