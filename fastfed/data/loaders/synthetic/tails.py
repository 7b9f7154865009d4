"""Gradients with heavy-tailed noise: FedAda2's Proposition 2 as a data set."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ....saved.recipe import remembered
from ...arguments import check_real, check_whole
from ...exact import Floats, exp
from ...generated import Generated
from ...sampling import log_gammas, normals
from ...store import Examples
from .common import DRAWS, NOISE, Shared, generated, stream_for


@remembered
def synthetic_heavy_tails(
    clients: int,
    degrees: float = 2.0,
    dimensions: int = 1,
    examples: float = 50,
    spread: float = 0.0,
    test_examples: int = 1000,
    seed: int = 0,
) -> Generated:
    """An input that is always 1 and targets (dimensions,) around 0, both float32, for the loss "mse": the stochastic
    gradient of who predicts x is x plus noise, up to a factor (FedAda2, Propositions 2 and 9).

    The noise of client i, counted from 0, follows Student's t distribution with `degrees` + i degrees of freedom. By
    default only the first client's has no variance (2 degrees), as in the paper; 1 degree is Cauchy's distribution.
    Test targets are 0, the optimum. `examples` and `spread` as in `synthetic_images`.
    """
    degrees = check_real("degrees", degrees, above=0)
    dimensions = check_whole("dimensions", dimensions, least=1)
    shared = Shared(clients, examples, spread, test_examples, seed)
    maker = _HeavyTails(seed, degrees, dimensions, clients)
    return generated("synthetic_heavy_tails", maker, shared, degrees=degrees, dimensions=dimensions)


@dataclass(frozen=True)
class _HeavyTails:
    """Targets of a client: Student's t with degrees of its own."""

    seed: int
    degrees: float
    dimensions: int
    clients: int

    def make(self, clients: Tensor, owner: Tensor, ids: Tensor) -> Examples:
        number = clients.clamp(max=self.clients)[owner].numpy()  # those of test examples are nobody's
        degrees = self.degrees + number.astype(np.float64)
        drawn = normals(self.dimensions, stream_for(self.seed, DRAWS), ids)
        targets = drawn / np.sqrt(self._chi_squares(degrees, ids) / degrees)[:, None]
        targets[number == self.clients] = 0.0
        ones = np.ones((len(ids), 1), np.float32)
        return Examples(torch.from_numpy(ones), torch.from_numpy(targets.astype(np.float32)))

    def _chi_squares(self, degrees: Floats, ids: Tensor) -> Floats:
        """One for every example, of so many degrees: twice a gamma variate of half that shape."""
        found = np.empty(len(ids))
        for shape in np.unique(degrees):
            here = degrees == shape
            logs = log_gammas(np.array([shape / 2]), stream_for(self.seed, NOISE), ids[torch.from_numpy(here)])
            found[here] = 2 * exp(logs[:, 0])
        return found
