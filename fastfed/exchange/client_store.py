"""What clients keep between their rounds: one vector each, held only for clients that have been seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..ranks import Ranks

_FIRST_CAPACITY = 16
_TURN = 32  # bits of a stamp for the position in a cohort; above them is the number of the round


class ClientStore:
    """Vectors (d,) by client id, on one device. Memory grows with the clients seen, never with those registered; ids
    and rows are the host's, and a call moves at most two short lists of them to the device.

    Of several ranks (`share`), the one that trained a client last keeps its vector, and `bring` moves it to the one
    that trains it next. Stamps tell when a client was first seen: in that order a checkpoint has them, as one process
    would.
    """

    def __init__(self, d: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        self._rows: dict[int, int] = {}
        self._vectors = torch.empty(0, d, dtype=dtype, device=device)
        self._ranks: Ranks | None = None
        self._stamps: dict[int, int] = {}  # of ranks alone
        self._turn, self._cohort = 0, dict[int, int]()  # which round it is, and who is where in its cohort

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
        if self._ranks is not None:
            for client in ids.tolist():
                self._stamps.setdefault(client, (self._turn << _TURN) + self._cohort[client])

    def tensors(self) -> dict[str, Tensor]:
        """`ids` (n,) int64, 64 bits each, and `vectors` (n, d), for a checkpoint. Of several ranks all ask, and the
        first has all."""
        ids = torch.tensor(sorted(self._rows, key=self._rows.__getitem__), dtype=torch.uint64).view(torch.int64)
        own = {"ids": ids, "vectors": self._vectors[: len(self)]}
        return own if self._ranks is None else self._collected(self._ranks, **own)

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Takes over what `tensors` gave; of several ranks, each takes some."""
        ids, vectors = tensors["ids"].view(torch.uint64).tolist(), tensors["vectors"]
        if self._ranks is not None:
            mine = slice(self._ranks.rank, None, self._ranks.count)
            self._stamps = dict(zip(ids[mine], range(len(ids))[mine], strict=True))
            self._turn = 1  # after all of these
            ids, vectors = ids[mine], vectors[mine]
        self._rows = {client: row for row, client in enumerate(ids)}
        self._vectors = vectors.to(self._vectors.device, copy=True)

    def _make_room(self, clients: int) -> None:
        if clients <= len(self._vectors):
            return
        grown = self._vectors.new_empty(max(clients, 2 * len(self._vectors), _FIRST_CAPACITY), self._vectors.shape[1])
        grown[: len(self._vectors)] = self._vectors
        self._vectors = grown

    # ---- several ranks ----------------------------------------------------------------------------------------------

    def share(self, ranks: Ranks) -> None:
        """From now on it is one of several stores, one on each rank."""
        self._ranks = ranks

    def bring(self, ids: Tensor, to: Tensor) -> None:
        """Moves what the clients `ids` (n,) of a cohort keep to the ranks `to` (n,) that train them. All ranks ask."""
        ranks = self._ranks
        assert ranks is not None
        self._turn, self._cohort = self._turn + 1, {client: place for place, client in enumerate(ids.tolist())}
        stamps = torch.tensor([self._stamps.get(client, -1) for client in ids.tolist()], dtype=torch.int64)
        every = torch.stack(ranks.gathered(stamps, [len(ids)] * ranks.count))
        stamp, owner = every.max(0)
        moves = (stamp >= 0) & (owner != to)
        if not bool(moves.any()):
            return
        leaves = [moves & (owner == ranks.rank) & (to == rank) for rank in range(ranks.count)]
        comes = [moves & (owner == rank) & (to == ranks.rank) for rank in range(ranks.count)]
        came = ranks.dealt(
            [self._vectors[self._rows_of(ids[some])] for some in leaves], [int(some.sum()) for some in comes]
        )
        for some in leaves:
            self._forget(ids[some].tolist())
        for some, vectors in zip(comes, came, strict=True):
            self._stamps |= dict(zip(ids[some].tolist(), stamp[some].tolist(), strict=True))
            self.put(ids[some], vectors)

    def everywhere(self, ids: Tensor, default: Tensor) -> Callable[[int], Tensor]:
        """The vectors (d,) of clients that any rank may keep, by the position among `ids`: one at a time, but where
        there are several ranks, which all ask, and fetch all of them at once."""
        if self._ranks is None:
            return lambda position: self.get(ids[position : position + 1], default)[0]
        return self._gathered(self._ranks, ids, default).__getitem__

    def _gathered(self, ranks: Ranks, ids: Tensor, default: Tensor) -> Tensor:
        has = torch.tensor([client in self._rows for client in ids.tolist()])
        every = torch.stack(ranks.gathered(has.to(torch.uint8), [len(ids)] * ranks.count)).bool()
        numbers = [int(some.sum()) for some in every]
        found = default.repeat(len(ids), 1)
        for some, rows in zip(every, ranks.gathered(self._vectors[self._rows_of(ids[has])], numbers), strict=True):
            found[some] = rows
        return found

    def _rows_of(self, ids: Tensor) -> list[int]:
        return [self._rows[client] for client in ids.tolist()]

    def _forget(self, clients: Sequence[int]) -> None:
        """The last rows take the places of those that leave."""
        whose = sorted(self._rows, key=self._rows.__getitem__) if clients else []
        for client in clients:
            row, mover = self._rows.pop(client), whose.pop()
            del self._stamps[client]
            if mover != client:
                self._vectors[row] = self._vectors[len(self._rows)]
                self._rows[mover], whose[row] = row, mover

    def _collected(self, ranks: Ranks, ids: Tensor, vectors: Tensor) -> dict[str, Tensor]:
        """What all ranks keep, on the first one, in the order in which clients were first seen."""
        stamps = torch.tensor([self._stamps[one] for one in ids.view(torch.uint64).tolist()], dtype=torch.int64)
        numbers = [int(one) for one in torch.cat(ranks.gathered(torch.tensor([len(ids)]), [1] * ranks.count))]
        known = torch.cat(ranks.gathered(torch.stack([ids, stamps], 1), numbers))
        nowhere = [vectors[:0]] * (ranks.count - 1)
        came = torch.cat(ranks.dealt([vectors, *nowhere], numbers if ranks.is_first else [0] * ranks.count))
        order = known[:, 1].argsort()
        return {"ids": known[order, 0], "vectors": came[order]} if ranks.is_first else {"ids": ids, "vectors": vectors}
