"""The order of batches, against the sentence that defines it written out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from fastfed import kernels
from fastfed.purposes import Purpose
from fastfed.train import RoundWork, batches
from fastfed.train.batches import Batches, ChunkBatches, batch_widths, rows_of_clients, steps_taken

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


@pytest.mark.parametrize("batch_size", [3, 20])
def test_drawn_examples_are_any_of_the_client_s(batch_size: int) -> None:
    """The first of the four numbers that a stream position has says which; batches are full, also of few examples."""
    work = work_of(seen=torch.full((4,), 7 * batch_size), drawn=True, batch_size=batch_size)
    chunk = ChunkBatches(work, torch.tensor([2, 0, 3, 1]), memory=8)  # a window for every step
    for place, client in enumerate([2, 0, 3, 1]):
        own = work.rows[work.offsets[client] : work.offsets[client + 1]].tolist()
        stream = kernels.Stream(12, Purpose.DRAW, 5, client=int(work.ids[client]))
        numbers = kernels.uniform(4 * 7 * batch_size, stream)[::4].tolist()
        expected = [own[int(number * len(own))] for number in numbers]
        alone = Batches(work, client)
        for step in range(7):
            wanted = expected[step * batch_size : (step + 1) * batch_size]
            assert alone.at(step).tolist() == wanted
            rows, real = chunk.rows(step)
            assert rows[place].tolist() == wanted
            assert bool(real[place].all())


def test_draws_are_uniform_and_repeat() -> None:
    work = work_of(seen=torch.full((4,), 9000), drawn=True, batch_size=9000, steps=torch.ones(4, dtype=torch.int64))
    counts = torch.bincount(Batches(work, 0).at(0) - 100, minlength=sum(SIZES))
    counts = counts[counts > 0]
    assert len(counts) == 9
    assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_drawn_examples_say_how_many() -> None:
    with pytest.raises(ValueError, match=r"^drawn: examples that are drawn have no epochs that end; give seen"):
        work_of(drawn=True)


@pytest.mark.parametrize("client", range(4))
@pytest.mark.parametrize("batch_size", [3, 4, 20])
def test_positions_run_across_epochs(client: int, batch_size: int) -> None:
    positions = torch.tensor([22, 11, 6, 40])
    work = work_of(seen=positions, batch_size=batch_size, steps=torch.full((4,), 100))
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
    work = round_of(torch.zeros(3), sizes, steps=torch.tensor([3, 3, 0, 9]), seen=seen)
    assert steps_taken(work).tolist() == taken


# ---- many clients at once -------------------------------------------------------------------------------------------


def assert_same_batches(work: RoundWork, clients: torch.Tensor, **given: Any) -> ChunkBatches:
    """A chunk has the batches that its clients have one by one, padded with a row of the same batch."""
    chunk = ChunkBatches(work, clients, **given)
    steps = steps_taken(work)[clients].tolist()
    alone = [Batches(work, position) for position in clients.tolist()]
    for step in range(max(steps, default=0)):
        rows, real = chunk.rows(step)
        epochs = chunk.epochs(step)
        assert rows.shape == real.shape == (len(clients), chunk.widths[step])
        for i, own in enumerate(alone):
            batch = own.at(step).tolist() if step < steps[i] else []
            assert rows[i][real[i]].tolist() == batch
            assert real[i].tolist() == [True] * len(batch) + [False] * (chunk.widths[step] - len(batch))
            if batch:
                assert set(rows[i].tolist()) == set(batch)
                assert int(epochs[i]) == own.epoch(step)
    return chunk


@st.composite
def plans(draw: st.DrawFn) -> RoundWork:
    """Clients of any size, none included, some of which take no step."""
    sizes = draw(st.lists(st.one_of(st.integers(0, 12), st.just(0), st.integers(50, 90)), min_size=1, max_size=7))
    assume(sum(sizes))
    whole = st.lists(st.integers(0, 9), min_size=len(sizes), max_size=len(sizes))
    positions = draw(st.none() | st.lists(st.integers(0, 40), min_size=len(sizes), max_size=len(sizes)))
    return round_of(
        torch.zeros(3),
        sizes,
        rows=torch.randperm(sum(sizes), generator=torch.Generator().manual_seed(0)) + 100,
        steps=torch.tensor(draw(whole)),
        seen=None if positions is None else torch.tensor(positions),
        batch_size=draw(st.sampled_from([1, 2, 3, 5, 20, 1000])),
        seed=draw(st.integers(0, 2**64 - 1)),
        round=draw(st.integers(0, 5)),
    )


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(work=plans(), memory=st.sampled_from([1, 400, 2_000, 1 << 20]), data=st.data())
def test_a_chunk_has_the_batches_of_its_clients(work: RoundWork, memory: int, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(work))))
    clients = torch.tensor(order[: data.draw(st.integers(1, len(work)))])
    assert_same_batches(work, clients, memory=memory)


def test_all_epochs_are_shuffled_at_once_where_they_fit() -> None:
    work = work_of(steps=torch.full((4,), 12))
    opened = {}
    for memory in (1, 500, 1 << 20):
        chunk = ChunkBatches(work, torch.arange(4), memory=memory)
        windows = []
        for step in range(12):
            chunk.rows(step)
            if step not in (windows[-1] if windows else ()):
                windows.append(chunk._window)
            assert chunk._shuffled.numel() * 8 <= max(memory, 8 * (sum(SIZES) + 1))
        opened[memory] = windows
    assert opened[1 << 20] == [range(12)]
    assert opened[1] == [range(step, step + 1) for step in range(12)]
    assert 1 < len(opened[500][0]) < 12


def test_steps_may_be_asked_for_in_any_order() -> None:
    one, other = (ChunkBatches(work_of(), torch.arange(4), memory=500) for _ in range(2))
    forward = [one.rows(step)[0].tolist() for step in range(7)]
    assert [other.rows(step)[0].tolist() for step in reversed(range(7))] == forward[::-1]


def test_few_large_clients_do_not_widen_the_orders_of_many_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []

    def counting(counts: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        orders = kernels.shuffles(counts, *given, **named)
        drawn.append(orders.numel())
        return orders

    monkeypatch.setattr(batches, "shuffles", counting)
    sizes = [1000] + [1, 2, 3, 4] * 50
    work = round_of(torch.zeros(3), sizes, steps=torch.full((len(sizes),), 3))
    chunk = assert_same_batches(work, torch.arange(len(sizes)))
    assert sum(drawn) <= 2 * chunk._shuffled.numel()
    assert len(drawn) <= 4  # of 1, of 2 and 3, of 4, of 1000


def test_rows_may_be_renumbered_and_widths_be_given() -> None:
    work, clients = work_of(), torch.tensor([3, 0])
    own = rows_of_clients(work, clients)
    assert own.tolist() == [*work.rows[14:22].tolist(), *work.rows[:9].tolist()]
    assert torch.equal(rows_of_clients(work, torch.arange(4)), work.rows)
    assert torch.equal(rows_of_clients(work, torch.tensor([3, 1, 2, 0]))[-9:], work.rows[:9])
    numbered = ChunkBatches(work, clients, rows=torch.arange(len(own)), widths=[6] * 7)
    plain = ChunkBatches(work, clients)
    for step in range(7):
        (rows, real), (wanted, shorter) = numbered.rows(step), plain.rows(step)
        assert rows.shape == (2, 6)
        assert torch.equal(own[rows][real], wanted[shorter])


@pytest.mark.parametrize("positions", [None, torch.tensor([6, 11, 2, 0])])
def test_widths_are_the_longest_batches(positions: torch.Tensor | None) -> None:
    work = work_of(seen=positions, steps=torch.tensor([7, 2, 7, 0]))
    steps = steps_taken(work).tolist()
    wanted = [max(len(Batches(work, i).at(step)) for i in range(4) if step < steps[i]) for step in range(max(steps))]
    assert batch_widths(work, torch.arange(4)) == wanted
    assert batch_widths(work, torch.tensor([3])) == []
