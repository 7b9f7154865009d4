"""Who has what: the clients of a run, as clients.json tells them."""

from __future__ import annotations

from typing import Any

import torch

from ...data import Federation
from ...data.dataset import labels_of

_MOST_SIZES, _MOST_COUNTED = 10_000, 100  # clients that clients.json tells the sizes of, and the classes of


def who_has_what(fed: Federation) -> dict[str, Any]:
    """How many examples clients have, and of which classes: of at most 10,000 and 100 of them, spread over all."""
    sizes, sized, shown = fed.sizes, _spread(len(fed), _MOST_SIZES), _spread(len(fed), _MOST_COUNTED)
    told: dict[str, Any] = {
        "name": fed.name,
        "clients": len(fed),
        "examples": int(sizes.sum()),
        "sizes": sizes[sized].tolist(),
        "shown": shown.tolist(),
        "counts": None,
        "classes": None,
    }
    counts = _class_counts(fed, shown)
    if counts is not None:
        names = list(getattr(fed, "class_names", ()))
        told["counts"] = counts.tolist()
        told["classes"] = [*names, *map(str, range(len(names), counts.shape[1]))]
    return told


def _class_counts(fed: Federation, clients: torch.Tensor) -> torch.Tensor | None:
    """Examples of each class that these clients have, (clients, classes) int64; None where examples have no class."""
    visit = fed.visit(clients)
    try:
        labels = labels_of(visit.examples, fed.name)[visit.rows]
    except ValueError:
        return None
    kinds = max(len(getattr(fed, "class_names", ())), int(labels.max()) + 1 if len(labels) else 0)
    owner = torch.arange(len(clients)).repeat_interleave(visit.offsets.diff())
    return torch.bincount(owner * kinds + labels, minlength=len(clients) * kinds).view(len(clients), kinds)


def _spread(clients: int, wanted: int) -> torch.Tensor:
    """`wanted` of the clients, or all, from the first to the last."""
    return torch.linspace(0, clients - 1, min(clients, wanted), dtype=torch.float64).round().long()
