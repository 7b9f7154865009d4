"""Linear targets of normal inputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ....saved.recipe import remembered
from ...arguments import check_real, check_whole
from ...exact import Floats
from ...generated import Generated
from ...sampling import normals
from ...store import Examples
from .common import DRAWS, STYLE, TABLE, Shared, generated, stream_for


@remembered
def synthetic_regression(
    clients: int,
    features: int = 20,
    examples: float = 50,
    skew: float = 0.5,
    noise: float = 0.1,
    spread: float = 0.5,
    test_examples: int = 1000,
    seed: int = 0,
) -> Generated:
    """Normal inputs (features,) and a linear target (1,), both float32, for the loss "mse".

    Every client has its own weights, `skew` standard deviations from the common ones, and its own mean of inputs,
    likewise from 0; targets have normal noise of deviation `noise`. Common weights are standard normal numbers divided
    by the root of `features`. `examples`, `spread` and `test_examples` as in `synthetic_images`.
    """
    features = check_whole("features", features, least=1)
    skew, noise = check_real("skew", skew), check_real("noise", noise)
    shared = Shared(clients, examples, spread, test_examples, seed)
    maker = _Regression.of(features, skew, noise, seed)
    return generated("synthetic_regression", maker, shared, features=features, skew=skew, noise=noise)


@dataclass(frozen=True)
class _Regression:
    """Targets of a client: its inputs times its weights, and noise."""

    seed: int
    skew: float
    noise: float
    weights: Floats  # (features,), the common ones

    @classmethod
    def of(cls, features: int, skew: float, noise: float, seed: int) -> _Regression:
        return cls(seed, skew, noise, normals(features, stream_for(seed, TABLE)) / np.sqrt(features))

    def make(self, clients: Tensor, owner: Tensor, ids: Tensor) -> Examples:
        features, mine = len(self.weights), owner.numpy()
        own = normals(2 * features, stream_for(self.seed, STYLE), clients)
        weights = self.weights + self.skew / np.sqrt(features) * own[:, :features]
        drawn = normals(features + 1, stream_for(self.seed, DRAWS), ids)
        inputs = drawn[:, :features] + self.skew * own[mine, features:]
        targets = self.noise * drawn[:, features:]
        for feature in range(features):  # in order: a matrix product adds as its library likes
            targets += inputs[:, feature : feature + 1] * weights[mine, feature : feature + 1]
        return Examples(*(torch.from_numpy(part.astype(np.float32)) for part in (inputs, targets)))
