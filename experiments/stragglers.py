"""MNIST by its writers on a simulated clock: synchronous and asynchronous rounds to 96% among slow and fast clients.

A local step takes 0.1 seconds on the median client, with a lognormal spread of 1 over clients (one in a hundred takes
ten times as long), and sending the model down and up half a second. At most 10 clients train at once.

    python experiments/stragglers.py ../shared/data/qmnist_writers ../shared/data/mnist --evaluate-every 5
"""

from __future__ import annotations

from common import experiment
from qmnist_writers import make

import fastfed as ff

FLEET = ff.fleet.Fleet(step_seconds=0.1, spread=1.0, network_seconds=0.5)
LR = 0.1

METHODS = {
    "synchronous": {**ff.methods.fedavg(LR), "weights": "uniform", "timing": ff.timing.Waves(10, fleet=FLEET)},
    "synchronous, first 8 of 10": {
        **ff.methods.fedavg(LR),
        "weights": "uniform",
        "timing": ff.timing.Waves(10, wanted=8, fleet=FLEET),
    },
    "FedBuff, buffer 5": ff.methods.fedbuff(LR, concurrency=10, buffer=5, staleness=0.5, fleet=FLEET),
    "FedBuff, buffer 10": ff.methods.fedbuff(LR, concurrency=10, buffer=10, staleness=0.5, fleet=FLEET),
    "FedAsync": ff.methods.fedasync(LR, concurrency=10, server=ff.servers.FedAvg(lr=0.3), staleness=0.5, fleet=FLEET),
}


if __name__ == "__main__":
    experiment(__doc__, make, METHODS, rounds=3000, metric="test_accuracy", target=0.96, by=("clock", "round"))
