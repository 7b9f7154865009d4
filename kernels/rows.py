"""One vector is a batch of one row: for backends whose kernels only know rows.

The front door hands vectors over as they are, because a view costs as much as the whole check of the arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from .streams import StreamWords


def as_rows(x: Tensor) -> Tensor:
    """(d,) as (1, d); (clients, d) as it is."""
    return x if x.dim() == 2 else x[None]


def measures_rows(measure: Callable[..., None]) -> Callable[..., None]:
    """Lets ``measure(x, ..., out)``, written for x (clients, d) and out (clients,), also take x (d,) and out ()."""

    @wraps(measure)
    def of_any(x: Tensor, *arguments: Any) -> None:
        *others, out = arguments
        measure(as_rows(x), *others, out.reshape(-1))

    return of_any


def draws_rows(draw: Callable[[Tensor, StreamWords, Tensor], None]) -> Callable[..., None]:
    """Lets ``draw(out, stream, clients)``, written for out (clients, n) and clients (clients,), also fill out (n,) with
    the numbers of a single client's id."""

    @wraps(draw)
    def of_any(out: Tensor, stream: StreamWords, clients: Tensor | int) -> None:
        if isinstance(clients, int):
            clients = torch.tensor([clients], dtype=torch.int64, device=out.device)
        draw(as_rows(out), stream, clients)

    return of_any
