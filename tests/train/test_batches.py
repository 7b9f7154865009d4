"""The order of batches, against the sentence that defines it written out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fastfed import kernels
from fastfed.purposes import Purpose
from fastfed.train import RoundWork
from fastfed.train.batches import Batches, padded, steps_taken

from .support import round_of

SIZES = (9, 4, 1, 8)
KEY: dict[str, Any] = {"seed": 12, "round": 5}


def work_of(**given: Any) -> RoundWork:
    rows = torch.randperm(sum(SIZES), generator=torch.Generator().manual_seed(0)) + 100
    return round_of(torch.zeros(3), SIZES, rows=rows, **KEY, **{"steps": torch.full((4,), 7), **given})


def literal_epoch(work: RoundWork, client: int, epoch: int) -> list[int]:
    """The client's rows in the order of an epoch."""
    own = work.rows[work.offsets[client] : work.offsets[client + 1]]
    stream = kernels.Stream(12, Purpose.SHUFFLE, 5, client=int(work.ids[client]), step=epoch)
    return [int(own[j]) for j in kernels.permutation(len(own), stream)]


@pytest.mark.parametrize("client", range(4))
def test_epochs_keep_their_last_short_batch(client: int) -> None:
    work = work_of()
    expected = []
    for epoch in range(7):
        order = literal_epoch(work, client, epoch)
        expected += [(epoch, order[k : k + 4]) for k in range(0, len(order), 4)]
    batches = Batches(work, client)
    for step in range(7):
        epoch, rows = expected[step]
        assert batches.epoch(step) == epoch
        assert batches.at(step).tolist() == rows


@pytest.mark.parametrize("client", range(4))
@pytest.mark.parametrize("batch_size", [3, 4, 20])
def test_positions_run_across_epochs(client: int, batch_size: int) -> None:
    positions = torch.tensor([22, 11, 6, 40])
    work = work_of(positions=positions, batch_size=batch_size, steps=torch.full((4,), 100))
    stream = [row for epoch in range(12) for row in literal_epoch(work, client, epoch)][: int(positions[client])]
    expected = [stream[k : k + batch_size] for k in range(0, len(stream), batch_size)]
    batches = Batches(work, client)
    assert int(steps_taken(work)[client]) == len(expected)
    for step, rows in enumerate(expected):
        assert batches.at(step).tolist() == rows
        assert batches.epoch(step) == step * batch_size // SIZES[client]


def test_batches_may_be_asked_for_in_any_order() -> None:
    one, other = Batches(work_of(), 0), Batches(work_of(), 0)
    forward = [one.at(step).tolist() for step in range(7)]
    assert [other.at(step).tolist() for step in reversed(range(7))] == forward[::-1]


def test_every_epoch_and_client_has_its_own_order() -> None:
    work = round_of(torch.zeros(3), (30, 30), rows=torch.arange(30).repeat(2), batch_size=30)
    orders = {tuple(Batches(work, client).at(step).tolist()) for client in (0, 1) for step in (0, 1)}
    assert len(orders) == 4
    assert all(sorted(order) == list(range(30)) for order in orders)
    again = round_of(torch.zeros(3), (30, 30), rows=torch.arange(30).repeat(2), batch_size=30, round=1)
    assert tuple(Batches(again, 0).at(0).tolist()) not in orders


@pytest.mark.parametrize(
    ("sizes", "positions", "taken"),
    [
        ((5, 0, 5, 5), None, [3, 0, 0, 9]),
        ((5, 0, 5, 5), [9, 9, 9, 0], [3, 0, 0, 0]),
        ((5, 5, 5, 5), [8, 4, 4, 13], [2, 1, 0, 4]),
    ],
)
def test_steps_taken(sizes: tuple[int, ...], positions: list[int] | None, taken: list[int]) -> None:
    seen = None if positions is None else torch.tensor(positions)
    work = round_of(torch.zeros(3), sizes, steps=torch.tensor([3, 3, 0, 9]), positions=seen)
    assert steps_taken(work).tolist() == taken


def test_padding_repeats_rows_of_the_same_batch() -> None:
    work = work_of()
    batches = [Batches(work, client) for client in range(4)]
    rows, real = padded(batches, [True, True, True, False], 2)  # batches of 1, 4 and 1; the last has finished
    assert real.tolist() == [[True] + 3 * [False], 4 * [True], [True] + 3 * [False], 4 * [False]]
    for client in range(3):
        own = batches[client].at(2)
        assert rows[client, : len(own)].tolist() == own.tolist()
        assert set(rows[client].tolist()) == set(own.tolist())
    assert set(rows[3].tolist()) <= set(batches[3].rows.tolist())
