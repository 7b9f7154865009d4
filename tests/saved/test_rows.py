"""Rows beside checkpoints: a file that grows by what is new, of which every checkpoint holds a beginning."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import fastfed as ff
from fastfed.saved import checkpoint
from fastfed.saved.rows import MOST_IN_TAIL, Rows, read

from ..simulation.support import simulation, small_federation


def row(number: int, **more: Any) -> dict[str, Any]:
    return {"round": number, **more}


@pytest.fixture
def no_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row goes into the file at once."""
    monkeypatch.setattr("fastfed.saved.rows.MOST_IN_TAIL", 0)


@pytest.mark.usefixtures("no_tail")
def test_what_is_new_is_appended_and_every_beginning_stays_readable(tmp_path: Path) -> None:
    rows, all_rows, known = Rows(tmp_path), [row(1)], []
    for number in (2, 3, 4):
        all_rows.append(row(number, loss=0.5 / number))
        known.append((rows.add(all_rows), list(all_rows)))
    for beginning, wanted in known:
        assert read(tmp_path, beginning) == wanted
    lines = (tmp_path / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3, 4]  # each written once


@pytest.mark.usefixtures("no_tail")
def test_a_row_that_was_evaluated_later_is_written_again(tmp_path: Path) -> None:
    rows = Rows(tmp_path)
    before = rows.add([row(1), row(2)])
    after = rows.add([row(1), row(2, test_loss=0.25), row(3)])
    assert read(tmp_path, before) == [row(1), row(2)]
    assert read(tmp_path, after) == [row(1), row(2, test_loss=0.25), row(3)]


@pytest.mark.usefixtures("no_tail")
def test_a_run_that_goes_on_from_an_earlier_round_leaves_what_was_there(tmp_path: Path) -> None:
    first = Rows(tmp_path)
    second_round = first.add([row(1), row(2)])
    fourth_round = first.add([row(1), row(2), row(3, loss=1.0), row(4, loss=1.0)])
    again = Rows(tmp_path, second_round)
    third_round = again.add([row(1), row(2), row(3, loss=2.0)])
    assert read(tmp_path, third_round) == [row(1), row(2), row(3, loss=2.0)]
    assert read(tmp_path, fourth_round)[2:] == [row(3, loss=1.0), row(4, loss=1.0)]
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.usefixtures("no_tail")
def test_half_a_line_of_a_killed_run_is_passed_over(tmp_path: Path) -> None:
    beginning = Rows(tmp_path).add([row(1)])
    with (tmp_path / "history.jsonl").open("a") as file:
        file.write('{"round": 2, "lo')
    after = Rows(tmp_path, beginning).add([row(1), row(2)])
    assert read(tmp_path, after) == [row(1), row(2)]
    assert read(tmp_path, beginning) == [row(1)]


@pytest.mark.usefixtures("no_tail")
def test_a_file_that_is_gone_is_written_anew(tmp_path: Path) -> None:
    rows = Rows(tmp_path)
    rows.add([row(1), row(2)])
    (tmp_path / "history.jsonl").unlink()
    assert read(tmp_path, rows.add([row(1), row(2), row(3)])) == [row(1), row(2), row(3)]


@pytest.mark.usefixtures("no_tail")
@pytest.mark.parametrize("damage", [b"", b'{"round": 7}\n'])
def test_rows_that_are_not_what_was_written_are_a_damaged_checkpoint(tmp_path: Path, damage: bytes) -> None:
    sim = simulation(small_federation(), cohort=3)
    sim.run(rounds=2, evaluate_every=0, progress=False, checkpoint=tmp_path)
    (tmp_path / "history.jsonl").write_bytes(damage)
    with pytest.raises(checkpoint.DamagedCheckpoint, match=r"history\.jsonl does not hold what was written"):
        ff.Simulation.resume(tmp_path, model=sim.model, fed=sim.fed)


def test_a_few_rows_are_in_the_checkpoint_and_many_in_the_file(tmp_path: Path) -> None:
    rows, known = Rows(tmp_path), []
    all_rows = [row(number) for number in range(1, 3 * MOST_IN_TAIL)]
    for count in range(10, len(all_rows), 10):
        known.append((rows.add(all_rows[:count]), all_rows[:count]))
        assert known[-1][0].tail.count("\n") <= MOST_IN_TAIL
    assert known[0][0].bytes == 0
    assert len({saved.bytes for saved, _ in known}) == 3  # written to twice, not once per checkpoint
    for saved, wanted in known:
        assert read(tmp_path, saved) == wanted


@pytest.mark.parametrize("done", [3, MOST_IN_TAIL + 3])
def test_a_run_goes_on_with_the_tail_of_its_checkpoint(done: int, tmp_path: Path) -> None:
    first = Rows(tmp_path)
    for count in (min(done, MOST_IN_TAIL + 1), done):
        saved = first.add([row(number) for number in range(1, count + 1)])
    assert saved.tail.count("\n") == (3 if done == 3 else 2)
    all_rows = [*(row(number) for number in range(1, done)), row(done, test_loss=0.5), row(done + 1)]
    after = Rows(tmp_path, saved).add(all_rows)
    assert read(tmp_path, after) == all_rows
    assert after.bytes == saved.bytes  # what is in the file holds
    assert len(read(tmp_path, saved)) == done


def test_a_run_that_goes_back_behind_its_tail_says_so_in_the_file(tmp_path: Path) -> None:
    all_rows = [row(number) for number in range(1, MOST_IN_TAIL + 2)]
    rows = Rows(tmp_path)
    saved = rows.add(all_rows)
    shorter = rows.add(all_rows[:-5])
    assert (saved.tail, shorter.tail) == ("", "")
    assert read(tmp_path, shorter) == all_rows[:-5]
    assert read(tmp_path, saved) == all_rows


def test_a_row_that_could_not_be_written_is_written_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_rows = [row(number) for number in range(1, MOST_IN_TAIL + 2)]
    rows = Rows(tmp_path)
    rows.add(all_rows)
    changed = [*all_rows[:-1], row(MOST_IN_TAIL + 1, test_loss=0.5)]
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full_disk)
        with pytest.raises(OSError, match="No space left"):
            rows.add(changed)
    assert read(tmp_path, rows.add(changed)) == changed


def full_disk(file: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_checkpoint_does_not_grow_with_the_run(tmp_path: Path) -> None:
    sim = simulation(small_federation(), cohort=3)
    sizes = []
    for _ in range(4 * MOST_IN_TAIL // 10):
        sim.run(rounds=10, evaluate_every=0, progress=False, checkpoint=tmp_path)
        sizes.append(checkpoint.newest(tmp_path).stat().st_size)
    half = len(sizes) // 2
    assert max(sizes[half:]) < 1.05 * max(sizes[:half])
    resumed = ff.Simulation.resume(tmp_path, model=sim.model, fed=sim.fed)
    assert resumed.history.rounds == sim.history.rounds
    assert torch.equal(resumed.params, sim.params)


@pytest.mark.usefixtures("no_tail")
def test_files_that_no_checkpoint_knows_are_removed(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").write_text(json.dumps(row(1)) + "\n")  # of a run whose checkpoints are gone
    sim = simulation(small_federation(), cohort=3)
    sim.run(rounds=2, evaluate_every=0, progress=False, checkpoint=tmp_path)
    assert [path.name for path in tmp_path.glob("*.jsonl")] == ["history-2.jsonl"]
    assert len(ff.Simulation.resume(tmp_path, model=sim.model, fed=sim.fed).history) == 2
