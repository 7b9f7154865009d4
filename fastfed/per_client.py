"""One number for all clients, or one each: how settings that clients may differ in are given."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .data.arguments import check_real

PerClient = float | Sequence[float] | Tensor

_MOST_IN_JSON = 10_000  # clients whose settings a checkpoint holds; of more, they must be given again on resume


def per_client(name: str, value: PerClient, above: float | None = None) -> float | tuple[float, ...] | Tensor:
    """`value` as a float, as a tuple of one per client, or as a tensor if they are many; all >= 0, or > `above`."""
    if isinstance(value, Tensor | np.ndarray) or (isinstance(value, Sequence) and not isinstance(value, str)):
        return _many(name, value, above)
    return check_real(name, value, above=above)


def _many(name: str, value: Sequence[float] | Tensor | NDArray[np.float64], above: float | None) -> tuple | Tensor:
    try:
        numbers = torch.as_tensor(value, dtype=torch.float64).detach().cpu().clone()
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{name}: must be a number, or one per client, got {value!r}") from None
    if numbers.dim() == 0:
        return check_real(name, numbers.item(), above=above)  # type: ignore[return-value]
    if numbers.dim() != 1 or not len(numbers):
        raise ValueError(f"{name}: must be a number, or one per client, got the shape {tuple(numbers.shape)}")
    wrong = ~(numbers >= 0 if above is None else numbers > above) | numbers.isinf()
    if bool(wrong.any()):
        client = int(wrong.nonzero()[0])
        check_real(f"{name} of client {client}", numbers[client].item(), above=above)
    return tuple(numbers.tolist()) if len(numbers) <= _MOST_IN_JSON else numbers


def expand(value: PerClient, clients: int) -> Tensor:
    """(clients,) float64, a copy."""
    return torch.as_tensor(value, dtype=torch.float64).expand(clients).clone()


def check_count(name: str, value: PerClient | None, clients: int, *, may_be_one: bool = True) -> None:
    """Refuses what was given for another number of clients; `may_be_one`: one number might have been given for all."""
    if isinstance(value, tuple | Tensor) and len(value) != clients:
        one = "one number for all or " if may_be_one else ""
        raise ValueError(f"{name}: must be {one}one for each of the {clients} clients, got {len(value)}")


def largest(value: PerClient) -> float:
    """The largest of them."""
    return float(torch.as_tensor(value).max())
