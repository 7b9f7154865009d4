"""Fashion-MNIST as in DSGD's Table 1: clients that tune themselves beside clients with a fixed learning rate.

100 clients with 500 examples each, Dirichlet 0.1 over the classes, 10 clients a round, batches of 64, one local epoch.

    python experiments/fashion_mnist.py ../shared/data/fmnist
"""

from __future__ import annotations

from common import Setting, experiment

import fastfed as ff

SGD_RATES = (0.01, 0.05, 0.1, 0.5)

METHODS = {
    "Delta-SGD": ff.methods.delta_sgd(),
    **{f"SGD {lr:g}": {**ff.methods.fedavg(lr), "weights": "uniform"} for lr in SGD_RATES},
    "Adam 0.01": {"client": ff.clients.Adam(lr=0.01), "weights": "uniform"},
    "AdaGrad 0.01": {"client": ff.clients.AdaGrad(lr=0.01), "weights": "uniform"},
    "SPS": {"client": ff.clients.SPS(), "weights": "uniform"},
    "Delta-SGD, same batch": ff.methods.delta_sgd(same_batch=True),
}


def make(root: str) -> Setting:
    """The data of a directory with the four files, and the model."""
    fed = ff.data.dirichlet(ff.data.fashion_mnist(root), clients=100, alpha=0.1, seed=0, examples=500)
    return Setting(fed, lambda: ff.models.fmnist_cnn(dropout=False), cohort=10, epochs=1, batch_size=64)


if __name__ == "__main__":
    experiment(__doc__, make, METHODS, rounds=300, metric="test_accuracy")
