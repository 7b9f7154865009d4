"""Devices by name: one, several, all cards; and refusals in one sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fastfed import devices
from fastfed.devices import find_devices, kind_of, written

CPU = torch.device("cpu")


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were three, the second one current."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(devices, "find_device", torch.device)


@pytest.mark.parametrize("given", ["cpu", CPU, ["cpu"], (CPU,)])
def test_one(given: Any) -> None:
    assert find_devices(given) == (CPU,)
    assert written(given) == "cpu"


@pytest.mark.usefixtures("cards")
@pytest.mark.parametrize(
    ("given", "numbers"),
    [
        ("cuda:0,cuda:2", [0, 2]),
        ("cuda:2, cuda:0", [2, 0]),
        (["cuda:1", torch.device("cuda:0")], [1, 0]),
        ("cuda:0,cuda", [0, 1]),
        ("cuda:*", [0, 1, 2]),
        (["cuda:*"], [0, 1, 2]),
    ],
)
def test_several(given: Any, numbers: list[int]) -> None:
    assert find_devices(given) == tuple(torch.device("cuda", number) for number in numbers)
    assert find_devices(written(given)) == find_devices(given)
    assert kind_of(given) == "cuda"


@pytest.mark.usefixtures("cards")
@pytest.mark.parametrize("given", ["cuda:1,cuda:1", "cuda,cuda:1", ["cuda:0", "cuda:1", "cuda:0"]])
def test_the_same_card_twice_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=r"^device: must name every device once, got '.*', which has cuda:[01] twice$"):
        find_devices(given)


def test_only_the_interpreter_has_the_cpu_several_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "interpreting", lambda: False)
    with pytest.raises(ValueError, match=r"^device: must name every device once, got 'cpu,cpu', which has cpu twice$"):
        find_devices("cpu,cpu")
    monkeypatch.setattr(devices, "interpreting", lambda: True)
    assert find_devices(["cpu"] * 3) == (CPU,) * 3


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([], r"^device: must name at least one device, got \[\]$"),
        ("", r"^device: must be one that torch has here, as in cpu, got ''"),
        ("cpu,gpu", r"^device: must be one that torch has here, as in cpu, got 'gpu'"),
        ("cpu,,cpu", r"^device: must be one that torch has here, as in cpu, got ''"),
        ("cpu,cpu:1", r"^device: must be one of the 1 that are here \(cpu:0\), got 'cpu:1'"),
        ("cpu,meta", r"^device: must be one that holds numbers, got 'meta'"),
        (3.5, r"^device: must be one that torch has here, as in cpu, got 3.5"),
        (["cpu", None], r"^device: must be one that torch has here, as in cpu, got None"),
    ],
)
def test_unknown_devices_are_refused(given: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        find_devices(given)


def test_all_cards_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match=r"^device: 'cuda:\*' means all CUDA devices, and torch has none here$"):
        find_devices("cuda:*")
