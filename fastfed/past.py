"""Past global models, as long as clients need them."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor


class PastModels:
    """Past global models by version (the number of server steps before them), rows of one buffer on their device.

    A row is used again once nobody needs its model, so the buffer has at most twice the rows that were ever needed at
    once: it grows by doubling.
    """

    def __init__(self, like: Tensor) -> None:
        self._rows: dict[int, int] = {}
        self._models = like.new_empty(0, like.numel())

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, version: int, model: Tensor) -> None:
        """Keeps a copy of the model (d,)."""
        free = set(range(len(self._models))) - set(self._rows.values())
        if not free:
            grown = self._models.new_empty(max(2 * len(self._models), 2), self._models.shape[1])
            grown[: len(self._models)] = self._models
            free, self._models = {len(self._models)}, grown
        self._rows[version] = min(free)
        self._models[self._rows[version]] = model

    def keep(self, versions: Collection[int]) -> None:
        """Forgets all others."""
        self._rows = {version: row for version, row in self._rows.items() if version in versions}

    def get(self, version: int) -> Tensor:
        """The model (d,), a view."""
        return self._models[self._rows[version]]

    def tensors(self) -> dict[str, Tensor]:
        """`versions` (n,) int64 and `models` (n, d), for a checkpoint."""
        rows = list(self._rows.values())
        return {"versions": torch.tensor(list(self._rows), dtype=torch.int64), "models": self._models[rows]}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Takes over what `tensors` gave."""
        self._rows = {version: row for row, version in enumerate(tensors["versions"].tolist())}
        self._models = tensors["models"].to(self._models.device, copy=True)
