"""The store of what clients keep: only clients seen take room."""

from __future__ import annotations

import torch

from fastfed.exchange.client_store import ClientStore


def test_clients_not_seen_have_the_default() -> None:
    store = ClientStore(3, torch.float64)
    default = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    assert store.get(torch.tensor([5, 6]), default).tolist() == [[1, 2, 3], [1, 2, 3]]
    assert len(store) == 0


def test_what_is_put_is_found_again_and_nothing_else_grows() -> None:
    store = ClientStore(2, torch.float32)
    ids = torch.tensor([999_999, 3, 70_000])
    store.put(ids, torch.arange(6.0).view(3, 2))
    for client in range(40):  # beyond the first capacity
        store.put(torch.tensor([client + 100]), torch.full((1, 2), float(client)))
    store.put(torch.tensor([3]), torch.tensor([[8.0, 9.0]]))
    found = store.get(torch.tensor([70_000, 3, 1, 139]), torch.zeros(2))
    assert found.tolist() == [[4, 5], [8, 9], [0, 0], [39, 39]]
    assert len(store) == 43
    assert store._vectors.numel() < 2 * 2 * 43 + 64


def test_those_seen_are_found_and_the_others_are_told() -> None:
    store = ClientStore(2, torch.float32)
    vectors, rows = store.find(torch.tensor([4, 1]))
    assert vectors.shape == (0, 2)
    assert rows.tolist() == [-1, -1]
    store.put(torch.tensor([], dtype=torch.int64), torch.empty(0, 2))
    assert len(store) == 0
    store.put(torch.tensor([7, 1, 4]), torch.arange(6.0).view(3, 2))
    vectors, rows = store.find(torch.tensor([4, 5, 7, 6]))
    assert vectors.tolist() == [[4, 5], [0, 1]]
    assert rows.tolist() == [0, -1, 1, -1]
    vectors.zero_()
    assert store.get(torch.tensor([7]), torch.zeros(2)).tolist() == [[0, 1]]


def test_a_copy_is_given() -> None:
    store = ClientStore(2, torch.float32)
    store.put(torch.tensor([1]), torch.ones(1, 2))
    store.get(torch.tensor([1]), torch.zeros(2)).zero_()
    assert store.get(torch.tensor([1]), torch.zeros(2)).tolist() == [[1, 1]]


def test_it_goes_through_a_checkpoint() -> None:
    store, again = ClientStore(2, torch.float32), ClientStore(2, torch.float32)
    store.put(torch.tensor([7, 2]), torch.arange(4.0).view(2, 2))
    again.load(store.tensors())
    again.put(torch.tensor([9]), torch.ones(1, 2))
    assert again.get(torch.tensor([2, 7, 9]), torch.zeros(2)).tolist() == [[2, 3], [0, 1], [1, 1]]
    assert len(store) == 2
