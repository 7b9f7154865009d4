"""What clients keep between their rounds: one vector each, held only for clients that have been seen."""

from __future__ import annotations

import torch
from torch import Tensor

_FIRST_CAPACITY = 16


class ClientStore:
    """Vectors (d,) by client id, on one device. Memory grows with the clients seen, never with those registered; ids
    and rows are the host's, and a call moves at most two short lists of them to the device."""

    def __init__(self, d: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        self._rows: dict[int, int] = {}
        self._vectors = torch.empty(0, d, dtype=dtype, device=device)

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, ids: Tensor, default: Tensor) -> Tensor:
        """A copy of the clients' vectors, (len(ids), d); `default` (d,) for clients not seen yet."""
        found = default.repeat(len(ids), 1)
        seen = {position: self._rows[client] for position, client in enumerate(ids.tolist()) if client in self._rows}
        if seen:
            found[list(seen)] = self._vectors[list(seen.values())]
        return found

    def find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """A copy of the vectors of those that have been seen, (m, d), and which of them is whose: (len(ids),) int64, -1
        for clients not seen yet."""
        rows = [self._rows.get(client, -1) for client in ids.tolist()]
        found = [row for row in rows if row >= 0]
        places = iter(range(len(found)))
        return self._vectors[found], torch.tensor([-1 if row < 0 else next(places) for row in rows], dtype=torch.int64)

    def put(self, ids: Tensor, vectors: Tensor) -> None:
        """Keeps `vectors` (len(ids), d)."""
        rows = [self._rows.setdefault(client, len(self._rows)) for client in ids.tolist()]
        self._make_room(len(self._rows))
        self._vectors[rows] = vectors

    def tensors(self) -> dict[str, Tensor]:
        """`ids` (n,) int64, 64 bits each, and `vectors` (n, d), for a checkpoint."""
        ids = torch.tensor(list(self._rows), dtype=torch.uint64).view(torch.int64)
        return {"ids": ids, "vectors": self._vectors[: len(self)]}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Takes over what `tensors` gave."""
        self._rows = {client: row for row, client in enumerate(tensors["ids"].view(torch.uint64).tolist())}
        self._vectors = tensors["vectors"].to(self._vectors.device, copy=True)

    def _make_room(self, clients: int) -> None:
        if clients <= len(self._vectors):
            return
        grown = self._vectors.new_empty(max(clients, 2 * len(self._vectors), _FIRST_CAPACITY), self._vectors.shape[1])
        grown[: len(self._vectors)] = self._vectors
        self._vectors = grown
