"""Ranks of one machine exchange by memory what others send each other: the same numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fastfed import board
from fastfed.kernels import registry

from . import exchanges, support

pytestmark = [
    pytest.mark.skipif(registry.interpreting(), reason="belongs to the session of the CPU's executors"),
    pytest.mark.skipif(board.machine() is None, reason="no compiled extension here, or no memory that processes share"),
]

RANKS = 3


def _job(folder: Path, **environment: str) -> list[dict[str, Any]]:
    processes = support.started(RANKS, "tests.ranks.exchanges", str(folder), **environment)
    for code, _, errors in support.ended(processes):
        assert code == 0, errors
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return _job(tmp_path_factory.mktemp("board"))


def test_both_ways_give_what_one_process_has(found: list[dict[str, Any]]) -> None:
    expected = exchanges.expected(RANKS)
    assert len(set(expected.values())) > 50
    for rank in found:
        assert rank["board"]
        assert rank["exchanged"] == expected
        assert rank["by network"] == expected


def test_memory_that_is_not_to_be_had_is_asked_for_once(found: list[dict[str, Any]]) -> None:
    for number, rank in enumerate(found):
        held = rank["little memory"]
        assert held["sums"] == [[0.0 * 0.25 + 1.0 * 0.5 + 2.0] * 2] * 3
        assert held["asked"] == (number == 0)
        assert held["takes"] == [False, True]


def test_no_file_is_left_while_ranks_run(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank["files"] == []


def test_ranks_that_are_told_to_go_by_the_network(tmp_path: Path) -> None:
    expected = exchanges.expected(RANKS)
    for rank in _job(tmp_path, **{board.LEFT_OUT: "1"}):
        assert not rank["board"]
        assert rank["exchanged"] == expected
