"""The store of what clients keep: only clients seen take room."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fastfed as ff
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


def test_ids_of_64_bits_come_back_from_a_checkpoint() -> None:
    store, ids = ClientStore(2, torch.float32), torch.tensor([2**64 - 1, 5, 2**63], dtype=torch.uint64)
    store.put(ids, torch.arange(6.0).view(3, 2))
    again = ClientStore(2, torch.float32)
    again.load(store.tensors())
    assert store.tensors()["ids"].dtype is torch.int64
    found = again.get(torch.tensor([2**63, 5, 2**64 - 1], dtype=torch.uint64), torch.zeros(2))
    assert found.tolist() == [[4, 5], [2, 3], [0, 1]]


# ---- a store of a host's own ----------------------------------------------------------------------------------------


class OnDisk:
    """As little of a store as the protocol asks for: every vector a file."""

    def __init__(self, folder: Path, d: int, dtype: torch.dtype, device: torch.device) -> None:
        self.folder, self.d = folder, d

    def get(self, ids: Tensor, default: Tensor) -> Tensor:
        return torch.stack([torch.load(self._file(i)) if self._file(i).exists() else default for i in ids.tolist()])

    def find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        seen = [i for i in ids.tolist() if self._file(i).exists()]
        vectors = torch.stack([torch.load(self._file(i)) for i in seen]) if seen else torch.zeros(0, self.d)
        return vectors, torch.tensor([seen.index(i) if i in seen else -1 for i in ids.tolist()])

    def put(self, ids: Tensor, vectors: Tensor) -> None:
        for i, vector in zip(ids.tolist(), vectors, strict=True):
            torch.save(vector.clone(), self._file(i))

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """It lasts by itself."""

    def _file(self, id: int) -> Path:
        return self.folder / str(id)


@pytest.mark.parametrize("name", ["ControlVariates", "PreviousModels"])
def test_a_run_with_a_store_of_the_hosts_own(name: str, tmp_path: Path) -> None:
    made: list[OnDisk] = []

    def make(d: int, dtype: torch.dtype, device: torch.device) -> OnDisk:
        made.append(OnDisk(tmp_path, d, dtype, device))
        return made[-1]

    def params(**given: Any) -> Tensor:
        exchange = getattr(ff.exchange, name)(**({"mu": 0.5} if name == "PreviousModels" else {}), **given)
        torch.manual_seed(0)
        model, fed = ff.models.mlp(64, 8, 10), ff.data.iid(ff.data.digits(), clients=6)
        sim = ff.Simulation(model, fed, client=ff.clients.SGD(lr=0.1), cohort=3, exchange=exchange)
        sim.run(4, evaluate_every=0, progress=False)
        return sim.params

    assert torch.equal(params(store=make), params())
    assert len(made) == 1
    assert len(list(tmp_path.iterdir())) >= 3


def test_a_store_that_lacks_something_is_refused() -> None:
    exchange = ff.exchange.ControlVariates(store=lambda d, dtype, device: {})  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match=r"store: must be like those of fastfed\.exchange, and {} has no find, load"):
        ff.Simulation(ff.models.mlp(64, 8, 10), ff.data.iid(ff.data.digits(), clients=6),
                      client=ff.clients.SGD(lr=0.1), cohort=3, exchange=exchange)  # fmt: skip
