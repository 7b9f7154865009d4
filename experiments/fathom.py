"""MNIST by its writers: how many rounds FATHOM and FedAvg take to 96% from six starts, good and bad.

10 writers a round, one local epoch; learning rates 0.05 and 0.1, batches of 4, 20 and 256.

    python experiments/fathom.py ../shared/data/qmnist_writers ../shared/data/mnist --evaluate-every 2
"""

from __future__ import annotations

from typing import Any

from common import experiment
from qmnist_writers import make

import fastfed as ff

RATES = (0.05, 0.1)
BATCHES = (4, 20, 256)


def methods() -> dict[str, Any]:
    """FedAvg and FATHOM side by side, for every start."""
    found: dict[str, Any] = {}
    for lr in RATES:
        for batch in BATCHES:
            found[f"FedAvg {lr:g} x {batch}"] = {**ff.methods.fedavg(lr), "batch_size": batch}
            found[f"FATHOM {lr:g} x {batch}"] = ff.methods.fathom(lr, batch_size=batch)
    return found


if __name__ == "__main__":
    experiment(__doc__, make, methods(), rounds=1000, metric="test_accuracy", target=0.96)
