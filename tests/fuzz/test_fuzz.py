"""`make fuzz` itself: a few cases of it, those that were findings once, and that what is wrong is told."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("fastfed._core", reason="the compiled extension is missing")

from . import files, programs
from .damage import KINDS, damage
from .readers import READERS, Reader

# Steps that blow roundings up: one run of the engine erred five times as much as one of autograd in float32; torch
# refuses a group norm over one number.
ONCE_FINDINGS = (1118, 3, 311)


# JAX, if another test has imported it, warns of every fork; these children do not use it.
pytestmark = [
    pytest.mark.filterwarnings("ignore:os.fork"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("number", [*range(20, 50), *ONCE_FINDINGS])
@pytest.mark.filterwarnings("ignore")
def test_a_few_random_programs(number: int) -> None:
    errors = programs.errors_of(programs.case_of(number))
    assert errors is None or errors.are_fine, f"{errors}: python -m tests.fuzz.programs --case {number}"


def test_an_engine_that_errs_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastfed.train.native import Native

    case, run = programs.case_of(20), Native.run

    def slightly_wrong(self: Native, work: Any) -> Any:
        outcome = run(self, work)
        outcome.total.delta.mul_(1 + 1e-5)
        return outcome

    assert programs.errors_of(case).are_fine  # type: ignore[union-attr]
    monkeypatch.setattr(Native, "run", slightly_wrong)
    assert not programs.errors_of(case).are_fine  # type: ignore[union-attr]


def test_every_damage_leaves_bytes_and_changes_them() -> None:
    whole = bytes(range(256)) * 3
    for kind in KINDS:
        changed = [bytes(kind(random.Random(number), bytearray(whole))) for number in range(20)]
        assert sum(one != whole for one in changed) >= 15, kind.__name__


def test_damage_is_that_of_its_number(tmp_path: Path) -> None:
    def spoiled(name: str, number: int) -> tuple[list[str], bytes]:
        root = tmp_path / name
        root.mkdir()
        (root / "a").write_bytes(bytes(1000))
        return damage(random.Random(number), root), (root / "a").read_bytes()

    assert spoiled("one", 5) == spoiled("again", 5) != spoiled("other", 6)


@pytest.mark.parametrize("name", ["mnist", "configuration", "store of images"])
def test_a_few_damaged_files(name: str, tmp_path: Path) -> None:
    verdicts = files.run(name, list(range(5)), tmp_path)
    assert [one.number for one in verdicts] == list(range(5))
    assert not [one for one in verdicts if one.ending == "finding"]


def _written(root: Path) -> None:
    (root / "a").write_bytes(b"something to damage")


def _raises(error: Exception) -> Callable[[Path], Any]:
    def read(root: Path) -> Any:
        raise error

    return read


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (_raises(KeyError("a")), "KeyError"),
        (_raises(MemoryError()), "too much memory"),
        (_raises(ValueError("two\nlines")), "no sentence"),
        (_raises(ValueError("not from our own code")), "no sentence"),
        (lambda root: time.sleep(60), "took more than"),
        (lambda root: os._exit(3), "ended with code 3"),
        (lambda root: torch.zeros(files.MEMORY // 2), "allocate"),
        (lambda root: (root / "a").read_bytes(), "is not what was written"),
    ],
    ids=["error", "memory", "lines", "bare", "slow", "dead", "large", "changed"],
)
def test_a_reader_that_does_otherwise_is_a_finding(
    read: Callable[[Path], Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_when_damaged(root: Path) -> Any:
        content = (root / "a").read_bytes()
        return content if content == b"something to damage" else read(root)

    monkeypatch.setattr(files, "SECONDS", 0.5)
    monkeypatch.setitem(READERS, "bad", Reader(_written, only_when_damaged, seals=True))
    verdicts = files.run("bad", [1, 2], tmp_path)
    assert [one.ending for one in verdicts] == ["finding"] * 2
    assert all(words in one.words for one in verdicts), verdicts
