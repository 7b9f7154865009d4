"""MOON's term: a client's features are drawn to those of the model it started from, away from its last round's.

It adds to the loss of a batch ``mu * mean over examples of -log(e^(c_g / t) / (e^(c_g / t) + e^(c_p / t)))``, where t
is the temperature, c_g the cosine between an example's features under the local model and under the model that the
client started from, and c_p that between the former and those under the model with which the client ended its last
round. Features are what goes into the model's head, flattened. Those of the two other models are constants, and are
computed with dropout off; those of the local model with the dropout of its training. The cosine with a zero vector is
0, and has no gradient.

A client without a last round has c_p = c_g: its term is mu * log 2 without a gradient, which is to leave it out.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Contrast:
    """A round's contrast: its weight `mu` > 0, its `temperature` > 0, and `head`, the name of the layer whose input is
    compared (None: the last nn.Linear of the module).

    `previous` (n, d) are models at the end of clients' last rounds, `row` (clients,) int64 says which is whose: -1 for
    a client that had none. Without `row`, every client has its own, in order.
    """

    mu: float
    temperature: float
    head: str | None
    previous: Tensor
    row: Tensor | None = None

    def __post_init__(self) -> None:
        check_settings(self.mu, self.temperature, self.head)
        if self.mu == 0:
            raise ValueError("mu: must be > 0; leave the contrast out instead")

    def previous_of(self, client: int) -> Tensor | None:
        """The model (d,) of the client at this position at the end of its last round, if there was one."""
        row = client if self.row is None else int(self.row[client])
        return None if row < 0 else self.previous[row]

    def rows_of(self, clients: Tensor) -> Tensor:
        """The rows of `previous` of the clients at these positions, -1 for none: (len(clients),) int64."""
        return clients if self.row is None else self.row[clients]

    @property
    def unseen_loss(self) -> float:
        """What a client without a last round has as its term."""
        return self.mu * math.log(2)


def check_settings(mu: object, temperature: object, head: object) -> None:
    """Refuses settings of a contrast that are no such; mu may be 0."""
    for name, value, least in (("mu", mu, 0.0), ("temperature", temperature, None)):
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number or not (value > 0 or value == least):  # type: ignore[operator]
            raise ValueError(f"{name}: must be a finite number {'>' if least is None else '>='} 0, got {value!r}")
    if head is not None and not isinstance(head, str):
        raise TypeError(f"head: must be the name of a layer, or None, got {head!r}")


def contrastive_losses(features: Tensor, start: Tensor, previous: Tensor, temperature: float) -> Tensor:
    """The term of every example, before mu: (n,) float64, for features (n, r) under the local model, the client's start
    model and its previous one.

    In double precision: the two cosines are often nearly the same.
    """
    z = features.double()
    apart = _cosines(z, previous.double()) - _cosines(z, start.double())
    return -F.logsigmoid(-apart / temperature)


def _cosines(a: Tensor, b: Tensor) -> Tensor:
    """Row by row: (n,)."""
    squares = (a * a).sum(-1) * (b * b).sum(-1)
    is_zero = squares == 0
    norms = torch.where(is_zero, 1.0, squares).sqrt()  # replaced before the root, whose slope at 0 is infinite
    return torch.where(is_zero, 0.0, (a * b).sum(-1) / norms)
