"""MNIST by its writers: 539 natural clients, and the five server rules of AFO.

10 writers a round, one local epoch, batches of 20.

    python experiments/qmnist_writers.py ../shared/data/qmnist_writers ../shared/data/mnist
"""

from __future__ import annotations

from common import Setting, experiment

import fastfed as ff

METHODS = {
    "FedAvg": ff.methods.fedavg(0.1),
    "FedAvgM": ff.methods.fedavgm(0.1, 0.3),
    "FedAdagrad": ff.methods.fedadagrad(0.1, 0.03),
    "FedAdam": ff.methods.fedadam(0.1, 0.01),
    "FedYogi": ff.methods.fedyogi(0.1, 0.01),
}


def make(root: str, images: str) -> Setting:
    """The writers' labels of one directory, MNIST's images of another, and the model."""
    fed = ff.data.natural(ff.data.qmnist(root, images))
    return Setting(fed, ff.models.lenet, cohort=10, epochs=1, batch_size=20)


if __name__ == "__main__":
    experiment(__doc__, make, METHODS, rounds=500, metric="test_accuracy")
