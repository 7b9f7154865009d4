"""What is written aside is there as a whole or not at all, and nothing is left beside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastfed.files import aside, write_whole


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    for text in ("old", "new, é"):
        write_whole(target, text)
        assert target.read_text(encoding="utf-8") == text
    assert names(tmp_path) == ["a.json"]


class Broken(Exception):
    """While something was being written."""


def write_store(target: Path, error: type[BaseException] | None = None) -> None:
    """A directory with a file in it, unless an error comes in between."""
    with aside(target) as scratch:
        scratch.mkdir()
        (scratch / "rows").write_text("1")
        if error is not None:
            raise error


def write_half(target: Path, error: type[BaseException]) -> None:
    with aside(target) as scratch:
        scratch.write_text("half of the n")
        raise error


@pytest.mark.parametrize("error", [Broken, KeyboardInterrupt])
def test_a_failure_leaves_what_was_there(tmp_path: Path, error: type[BaseException]) -> None:
    target = tmp_path / "a.json"
    target.write_text("old")
    with pytest.raises(error):
        write_half(target, error)
    assert (names(tmp_path), target.read_text()) == (["a.json"], "old")


def test_nothing_is_at_the_target_before_the_end(tmp_path: Path) -> None:
    with aside(tmp_path / "a.json") as scratch:
        scratch.write_text("new")
        assert names(tmp_path) == [scratch.name]
    assert names(tmp_path) == ["a.json"]


def test_directories_too(tmp_path: Path) -> None:
    with pytest.raises(Broken):
        write_store(tmp_path / "store", Broken)
    assert names(tmp_path) == []
    write_store(tmp_path / "store")
    assert names(tmp_path / "store") == ["rows"]


def test_contents_reach_the_disk_before_the_name_if_that_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, there_yet = tmp_path / "a.json", list[bool]()
    monkeypatch.setattr(os, "fsync", lambda number: there_yet.append(target.exists()))
    for synced in (False, True):
        with aside(target, synced=synced) as scratch:
            scratch.write_text("new")
        assert there_yet == [False, True] * synced  # the file's contents, then its name
        target.unlink()
