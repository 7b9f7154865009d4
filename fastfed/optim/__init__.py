"""FastFed's rules as optimizers of torch: what servers do with an aggregated delta, and clients with a gradient, for
any module and any training loop.

import fastfed as ff
optimizer = ff.optim.FedYogi(module.parameters(), lr=0.01)
"""

from .base import Descent
from .servers import FedAdagrad, FedAdam, FedAMS, FedAvg, FedAvgM, FedYogi
from .sm3 import SM3, SM3I, SM3Adam
from .step_sizes import SPS, DeltaSGD

__all__ = [
    "SM3",
    "SM3I",
    "SPS",
    "DeltaSGD",
    "Descent",
    "FedAMS",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedYogi",
    "SM3Adam",
]
