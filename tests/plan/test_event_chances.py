"""What the clock of asynchronous rounds leaves to chance: who starts, who drops out; no start tells of another."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from fastfed.plan.events import EventQueue

from ..simulation.literal_clock import SOME, SPEEDS, course, doubles, draws_of


def test_every_client_is_started_alike() -> None:
    """One at a time, so that every start has all to choose from; more clients than a block of the tree."""
    clients = course(EventQueue(torch.ones(150, dtype=torch.float64), concurrency=1, buffer=1, seed=4), 15_000)
    assert stats.chisquare(torch.bincount(clients, minlength=150).numpy()).pvalue > 0.01
    pairs = clients[:-1] // 50 * 3 + clients[1:] // 50  # a start says nothing about the next
    assert stats.chisquare(torch.bincount(pairs, minlength=9).numpy()).pvalue > 0.01


def test_a_million_clients_are_reached_to_the_last() -> None:
    queue = EventQueue(torch.ones(1_000_000, dtype=torch.float64), concurrency=5000, buffer=5000, seed=6)
    clients = course(queue, 40_000)
    assert stats.kstest(clients.numpy() / 1e6, "uniform").pvalue > 0.01
    assert int((clients % 2).sum()) == pytest.approx(20_000, abs=300)  # low bits are random too


def test_who_starts_is_drawn_with_48_bits() -> None:
    """With all to choose from, the number drawn is the client; 24 bits would miss some of a million."""
    clients = course(EventQueue(torch.ones(1_000_000, dtype=torch.float64), concurrency=1, buffer=1, seed=6), 1000)
    drawn = torch.tensor(draws_of(6, 0, 4096), dtype=torch.float64).view(-1, 4)[:1000]
    assert clients.tolist() == ((drawn[:, 0] + drawn[:, 1] / 2**24) * 1_000_000).long().tolist()
    assert clients.tolist() != (drawn[:, 0] * 1_000_000).long().tolist()


def test_a_wave_is_any_subset_alike() -> None:
    """Chi-square over all 10 pairs of 5 clients."""
    pairs = course(EventQueue(doubles(1, 2, 3, 4, 5), concurrency=2, buffer=2, waves=True, seed=1), 8000).view(-1, 2)
    codes = pairs.sort(dim=1).values @ torch.tensor([5, 1])
    counts = torch.bincount(codes)
    assert stats.chisquare(counts[counts > 0].numpy()).pvalue > 0.01
    assert int((counts > 0).sum()) == 10


def test_a_wave_is_keyed_by_its_number_alone() -> None:
    """Not by what the waves before were like."""
    few, many = (EventQueue(SPEEDS, concurrency=6, buffer=buffer, waves=True, seed=9) for buffer in (1, 6))
    for _ in range(10):
        for queue in (few, many):
            queue.advance(until=queue.now)
        assert set(few.tensors()["client"].tolist()) == set(many.tensors()["client"].tolist())
        for queue in (few, many):
            queue.advance()
            queue.commit()


def test_only_those_available_start_each_alike() -> None:
    begin = torch.arange(40, dtype=torch.float64) % 2 * 5  # even ones in [0, 5), odd ones in [5, 10) of every ten
    seconds = torch.full((40,), 0.3, dtype=torch.float64)
    queue = EventQueue(seconds, concurrency=1, buffer=1, windows=(begin, 5.0, 10.0), seed=4)
    counts = torch.zeros(40)
    for _ in range(8000):
        queue.advance()
        client = int(queue.arrived[0])
        counts[client] += 1
        start = (queue.now - 0.3) % 10
        assert min(abs(start - edge) for edge in (0, 5, 10)) < 1e-6 or (start >= 5) == client % 2
        queue.commit()
    assert stats.chisquare(counts[::2].numpy()).pvalue > 0.01
    assert stats.chisquare(counts[1::2].numpy()).pvalue > 0.01


@pytest.mark.parametrize("waves", [False, True])
def test_as_many_drop_out_as_they_should(waves: bool) -> None:
    queue = EventQueue(SOME, concurrency=5, buffer=5, dropout=0.3, waves=waves, seed=2)
    while queue.events < 10_000:
        queue.advance()
        queue.commit()
    assert stats.binomtest(queue.dropped, queue.events, 0.3).pvalue > 0.01


def test_another_seed_is_another_course() -> None:
    first, again, other = (course(EventQueue(SOME, concurrency=5, buffer=2, seed=s), 50).tolist() for s in (1, 1, 2))
    assert first == again
    assert first != other


def test_the_numbers_of_starts_go_on_beyond_a_portion() -> None:
    """Random numbers are drawn for 4096 starts at once: the next ones are others."""
    clients = course(EventQueue(torch.ones(1000, dtype=torch.float64), concurrency=1, buffer=1, seed=4), 8192)
    assert (clients[:4096] == clients[4096:]).sum() < 50
